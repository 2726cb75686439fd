"""Texts to vectors: tokenize records, run batches of similar length, pool, and restore the order.

    folder = find_model("all-MiniLM-L6-v2", files=MODEL_FILES)
    embedder = RecordEmbedder.open(folder, EmbedOptions())
    run = embedder.run(Reader(Input(texts=('I love NLP!',))))
    for window in embedder.windows(run):
        for event in window:                      # progress events and blocks of vectors
            ...

Commands and other packages use `RecordEmbedder`; `embedder` adds the methods of Python users.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bertcli.embedding.options import (
    EmbedOptions,
    SentenceSettings,
    prepare_records,
    read_sentence_settings,
    resolve_options,
)
from bertcli.embedding.pooling import (
    POSITIONS,
    TOKEN_COLUMNS,
    EmbeddedBlock,
    Pooling,
    TokenFields,
    merge_windows,
    pool,
    pool_windows,
    pool_words,
    split_by_sizes,
    truncate_and_normalize,
    words_with_tokens,
)
from bertcli.embedding.sentence_modules import (
    VectorModule,
    describe_modules,
    output_width,
    read_modules,
)
from bertcli.engines.engine import (
    MODEL_COLUMNS,
    ModelRun,
    ModelSpec,
    Outputs,
    PackedTokens,
    Reduction,
    Runtime,
    StateSelection,
    result_of,
)
from bertcli.engines.runtime import (
    open_runtime,
    open_tokenizer,
    refuse_pairs,
    token_limit,
    window_characters,
)
from bertcli.errors import BertcliError, InputError, ModelError, UsageError, option
from bertcli.io.progress import BatchDone
from bertcli.io.typed_json import LARGEST_NUMBER
from bertcli.model_folder.files import STATIC, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import CHARACTERS, RecordBatch
from bertcli.records.input import ORIGIN
from bertcli.records.reader import Reader
from bertcli.records.record import Record, TextWindow
from bertcli.tokenizing.batch import CHUNK_FIELDS, Encoded, Layout, TokenBatch
from bertcli.tokenizing.run import TokenCounts, TokenizeRun

if TYPE_CHECKING:
    from typing_extensions import Self

    # Imported only for the models that need them.
    from bertcli.embedding.late_interaction import LateInteraction
    from bertcli.embedding.sparse import TermNames, TermReduction

WINDOWS_AHEAD = 3  # windows per device that are started ahead of the window being written
TOKENS_PER_BLOCK = 1 << 14  # of token vectors (approximately)
QUERY_PROMPTS = ("query",)  # prompt names in sentence-transformers, in order of preference
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
MANIFEST_OPTIONS = (  # options that are copied to manifests unchanged
    *("pooling", "normalize", "dim", "on_truncate", "stride", "prompt"),
    *("special_tokens", "parse_special", "window", "word_vectors", "layer_combine"),
)


@dataclass(frozen=True)
class RecordEmbedder:
    """A loaded model that turns the records of an input into blocks of vectors.

    The options that determine a vector are resolved when the model is opened.
    """

    folder: ModelFolder
    runtime: Runtime
    options: EmbedOptions
    sentence: SentenceSettings
    modules: tuple[VectorModule, ...] = ()  # applied after the pooling
    terms: TermReduction | None = None  # computes term weights instead of vectors
    late: LateInteraction | None = None  # settings of a late-interaction model

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        options: EmbedOptions,
        *,
        reads_extra_ids: bool = False,
        scores: bool = False,
    ) -> Self:
        """Load a model and resolve the options that determine its vectors.

        With ``reads_extra_ids``, records may carry the per-word ids that a model with extra
        embeddings needs. With ``scores``, the last layer may output scores, as in a cross-encoder.

        Raises ModelError for a folder that is not a complete BERT, UsageError for an option that
        this model or this machine does not support.
        """
        requested_dim = options.dim
        pooling = "" if options.sparse else options.pooling
        sentence = read_sentence_settings(folder, pooling=pooling, scores=scores)
        architecture = "BertModel"
        read_terms = None
        if options.sparse:
            from bertcli.embedding.sparse import read_sparse

            options, sentence, architecture, read_terms = read_sparse(folder, options, sentence)
        if sentence.static:
            architecture = STATIC
        encoder_folder = folder if sentence.static else folder.subfolder(sentence.transformer)
        modules: tuple[VectorModule, ...] = ()
        if options.pooling == "auto" and not options.per_token:
            modules = read_modules(folder, sentence.of_texts)
        load_tokenizer = cache(
            partial(
                open_tokenizer,
                encoder_folder,
                architecture=architecture,
                parse_special=options.parse_special,
                reads_extra_ids=reads_extra_ids,
            )
        )
        late = None
        if options.per_token and options.word_vectors is None and not sentence.static:
            from bertcli.embedding.late_interaction import read_late_interaction

            late = read_late_interaction(folder, load_tokenizer(), options.prompt_name)
        if late:
            _refuse_with_late_interaction(late, encoder_folder, options)
            if options.normalize is None:
                options = replace(options, normalize=late.normalize)
            modules = late.modules
            prompts = {**sentence.prompts, **late.prompts}
            sentence = replace(sentence, prompts=prompts, default_prompt="document")
        options = resolve_options(options, sentence)
        terms = read_terms(load_tokenizer()) if read_terms else None
        if reads_extra_ids and not sentence.static:
            _refuse_changed_texts(encoder_folder, options, late)
        needs_pooler = options.pooling == "pooler"
        # With include_prompt=False, a prompt set later moves "cls" pooling off the first token.
        is_first_token = options.pooling == "cls" and sentence.include_prompt
        selection = StateSelection(
            options.layers, options.layer_combine, is_first_token or needs_pooler
        )
        spec = ModelSpec(encoder_folder, options, architecture, selection, needs_pooler)
        runtime = open_runtime(spec, load_tokenizer)
        embedder = cls(folder, runtime, options, sentence, modules, terms, late)
        return embedder.with_clipped_dim(requested_dim)

    def with_clipped_dim(self, requested: int | None) -> Self:
        """Return a copy whose ``dim`` does not exceed the width of its vectors.

        A ``dim`` from the model folder is clipped. Raises UsageError if ``requested``, the dim
        given by the user, exceeds the width.
        """
        width = self.width
        if requested and requested > width:
            raise UsageError(
                f"{option('dim', requested)} is not possible: the vectors have {width} dimensions",
                f"give a number from 1 to {width}",
            )
        dim = self.options.dim
        return replace(self, options=replace(self.options, dim=dim and min(dim, width)))

    def with_prompt(self, names: Sequence[str], text: str | None = None) -> Self:
        """Return a copy with a prompt: ``text``, or the model's prompt for the first known name.

        If ``text`` is None and the model has none of the names, return this embedder unchanged.
        Source: the documentation of encode_query and encode_document; sentence-transformers 6.2
        always has a "document" prompt, which may be empty.
        """
        prompts = self.sentence.prompts
        if text is None:
            text = next((prompts[name] for name in names if name in prompts), None)
        if text is None:
            return self
        options = replace(self.options, prompt=text)
        if not self.late:
            return replace(self, options=options)
        from bertcli.embedding.late_interaction import read_late_interaction

        late = read_late_interaction(self.folder, self.runtime.tokenizer, names[0])
        if names == QUERY_PROMPTS:  # queries have their own maximum length
            options = replace(options, max_length=None)
        return replace(self, options=options, late=late)

    @property
    def width(self) -> int:
        """The number of dimensions of a vector before truncation to ``dim``."""
        config = self.runtime.config
        if self.terms:
            output_width(self.terms.layers, config.hidden_size, self.folder)  # may raise
            table = self.terms.table
            return config.vocab_size if table is None else len(table)
        pooled_width = self.state_width * len(self.options.modes)
        return output_width(self.modules, pooled_width, self.folder)

    @property
    def state_width(self) -> int:
        """The number of dimensions of the token states that are pooled."""
        width = self.runtime.config.hidden_size
        if self.options.layer_combine == "concat":
            width *= len(self.options.layers)
        return width

    @property
    def empty_output(self) -> np.ndarray:
        """The output for an empty input: an array of no vectors [0, D...] or no terms [0, 2]."""
        if self.terms:
            return np.zeros((0, 2), np.float32)
        return np.zeros((0, *self._layer_axis, self.options.dim or self.width), np.float32)

    @property
    def max_length(self) -> int:
        """The number of tokens to which a text is truncated, special tokens included."""
        folder_limit = (self.late and self.late.length) or self.sentence.max_length
        runtime = self.runtime
        requested = self.options.max_length
        return token_limit(runtime.config, runtime.tokenizer, requested, folder_limit)

    @property
    def _layer_axis(self) -> tuple[int, ...]:
        """The shape of the layer axis: (k,) if each of k layers has its own vector, else ()."""
        return (len(self.options.layers),) if self.options.layer_combine == "stack" else ()

    @property
    def makes_chunks(self) -> bool:
        """True if long texts are divided into chunks with one vector each."""
        return self.options.makes_chunks

    @property
    def window_length(self) -> int:
        """The number of tokens of a window in late chunking: the positions of the model."""
        return self.runtime.config.most_tokens

    def divide_texts(self, reader: Reader) -> Reader:
        """Make a reader divide long texts into chunks if ``on_truncate`` says so; return it.

        A chunk including its prompt fits in ``max_length`` tokens.
        """
        if not self.makes_chunks:
            return reader
        from bertcli.tokenizing.chunks import Chunker, ChunkSettings, chunk_records
        from bertcli.tokenizing.late_chunks import TextWindows

        options = self.options
        settings = ChunkSettings(
            self.max_length, options.overlap, options.at, special_tokens=options.special_tokens
        )
        chunker = Chunker(
            self.runtime.tokenizer,
            settings,
            self._prepared_texts,
        )
        find_windows = None
        if options.on_truncate == "late-chunk":
            find_windows = TextWindows(chunker, self.window_length, options.stride).of
        reader.divide_by(partial(chunk_records, chunker, find_windows=find_windows))
        return reader

    def location_fields(self, reader: Reader) -> tuple[str, ...]:
        """Return the names of the fields that locate a record in its input, besides its id."""
        fields = CHUNK_FIELDS if self.makes_chunks else ()
        return (*fields, *ORIGIN) if reader.source.fields.with_location else fields

    @property
    def layout(self) -> Layout:
        """The tokenization settings: columns, special tokens, truncation and windows."""
        has_windows = self.options.on_truncate == "window"
        columns = [*MODEL_COLUMNS, *self.runtime.extra_columns.needed_columns]
        if self.options.per_token:
            columns += TOKEN_COLUMNS
        if self.options.word_vectors:
            columns.append("word_ids")
        if self.options.per_token or (has_windows and self.unpooled_prompt_tokens):
            columns.append(POSITIONS)
        return Layout(
            columns=tuple(dict.fromkeys(columns)),
            special_tokens=self.options.special_tokens,
            max_length=self.max_length - bool(self.late and self.late.prefix),
            truncation="longest_first",
            stride=self.options.stride if has_windows else 0,
            overflowing=has_windows,
        )

    def run(self, reader: Reader, *, fixed_windows: bool = False) -> TokenizeRun:
        """Return the tokenization run of a reader, which yields windows of records.

        With ``fixed_windows``, windows do not depend on the speed of the input, so a resumed run
        computes bit-identical vectors.
        """
        return TokenizeRun(
            reader,
            self.runtime.tokenizer,
            self.layout,
            self.options.window,
            fixed_windows=fixed_windows,
            characters=window_characters(self.runtime) if fixed_windows else CHARACTERS,
            growing=fixed_windows,
            prepare=self.prepare,
        )

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[BatchDone | EmbeddedBlock]]:
        """Yield an iterator of results for each window of a run, in order.

        A window is added to the tally of the run when its iterator is started. With ``full``
        windows, later ones are started ahead, so that no engine runs out of work: up to
        ``WINDOWS_AHEAD`` per GPU, one if several batches run on a CPU at once.
        """
        needs_states = self.options.per_token or self.options.on_truncate == "late-chunk"
        starts_ahead = run.fixed_windows and not needs_states and self.runtime.threads
        devices = self.runtime.engine.devices
        max_ahead = 0
        if starts_ahead:
            max_ahead = 1 if devices == ("cpu",) else WINDOWS_AHEAD * len(devices)
        pending: deque[Iterator[BatchDone | EmbeddedBlock]] = deque()
        for counts, batch in self.counted(run):
            model_run = self._start_ahead(batch) if starts_ahead else None
            pending.append(self._counted_results(run, counts, batch, model_run))
            if len(pending) > max_ahead:
                yield pending.popleft()
        yield from pending

    def counted(self, run: TokenizeRun) -> Iterator[tuple[TokenCounts, TokenBatch]]:
        """Yield the counts and the tokens of each window of a run.

        Like `TokenizeRun.counted`, and unread characters count as dropped tokens.
        """
        for counts, batch in run.counted():
            if self._max_characters:
                batch = self._with_unread_counted(batch, counts)
            yield counts, batch

    def tokenized(
        self, texts: Sequence[str], truncation_side: Literal["left", "right"] | None = None
    ) -> TokenBatch:
        """Return the tokens of a few texts, as `counted` for a run of them, in less time."""
        layout = self._few_texts_layout
        if truncation_side:
            layout = replace(layout, truncation_side=truncation_side)
        records = RecordBatch.of([Record(text, line=line) for line, text in enumerate(texts, 1)])
        batch = self.runtime.tokenizer.encode_records(self.prepare(records), layout)
        batch = replace(batch, records=records.take(batch.samples))  # without prompts
        if self._max_characters:
            batch = self._with_unread_counted(batch, TokenCounts())
        return batch

    @cached_property
    def _few_texts_layout(self) -> Layout:
        return self.layout

    def _counted_results(
        self, run: TokenizeRun, counts: TokenCounts, batch: TokenBatch, model_run: ModelRun | None
    ) -> Iterator[BatchDone | EmbeddedBlock]:
        """Add the counts of a window to the tally of the run, then yield its results."""
        run.tally.merge(counts)
        yield from self.embed_window(batch, model_run)

    def embed_window(
        self, batch: TokenBatch, model_run: ModelRun | None = None
    ) -> Iterator[BatchDone | EmbeddedBlock]:
        """Yield blocks of the records of one window with their vectors, and progress events.

        The division into blocks depends only on the window. ``model_run`` is the result of
        ``_start_ahead`` if the window was started ahead.
        """
        if not len(batch):
            return
        self.refuse_without_vector(batch)
        if windows := [window for window in batch.records.windows or () if window]:
            yield from self._chunk_vectors(batch, windows)
            return
        if not self.options.per_token:
            yield from self._text_vectors(batch, model_run or self._start(batch))
            return
        records = split_by_sizes([*batch], batch.windows_per_record)
        ends = accumulate(sum(row.length for row in windows) for windows in records)
        ends_and_records = zip(ends, records, strict=True)
        for _, block in groupby(ends_and_records, lambda pair: pair[0] // TOKENS_PER_BLOCK):
            yield from self._token_vectors([windows for _, windows in block])

    def _start_ahead(self, batch: TokenBatch) -> ModelRun | None:
        """Start a window ahead; return None on an error, which is raised again in its turn."""
        try:
            self.refuse_without_vector(batch)
            return self._start(batch)
        except BertcliError:
            return None

    def _start(self, batch: TokenBatch) -> ModelRun:
        """Start the model on texts, grouped by the number of prompt tokens to leave out."""
        tokens = self._model_input(batch)
        unpooled = self._unpooled_tokens(batch)
        if unpooled is None:
            return self._run(tokens)
        groups = {int(count): np.flatnonzero(unpooled == count) for count in np.unique(unpooled)}
        runs = [
            self.runtime.run(tokens.take(rows), Pooling(self.options.modes, count))
            for count, rows in groups.items()
        ]
        return _run_all(runs, [*groups.values()])

    def _unpooled_tokens(self, batch: TokenBatch) -> np.ndarray | None:
        """Return the number of leading tokens of each window that are not pooled, int [B].

        These are [CLS] and the prompt tokens in the window; in a window without prompt tokens,
        [CLS] is pooled. None if no text has several windows or no prompt is left out.
        """
        if not self.unpooled_prompt_tokens or len(batch.windows_per_record) == len(batch):
            return None
        is_prompt = np.asarray(batch.columns[POSITIONS]) < self.unpooled_prompt_tokens
        prompt_tokens_before = np.concatenate([[0], np.cumsum(is_prompt)])
        offsets = np.asarray(batch.offsets)
        unpooled = prompt_tokens_before[offsets[1:]] - prompt_tokens_before[offsets[:-1]]
        return np.where(unpooled > int(self.options.special_tokens), unpooled, 0)

    def _model_input(self, batch: TokenBatch) -> PackedTokens:
        """Return the model input of a batch. Raises InputError for a text without required ids."""
        extra_columns = self.runtime.extra_columns
        if extra_columns.fields:
            tokenized = RecordBatch.of(self.prepare(batch.records))
            batch = extra_columns.add_to(replace(batch, records=tokenized), self.runtime.tokenizer)
        return PackedTokens.of(batch)

    def refuse_without_vector(self, batch: TokenBatch) -> None:
        """Raise InputError or ModelError for a record that cannot have a vector."""
        if batch.records.pairs is not None:
            refuse_pairs(batch, self.runtime.config)
        if self.options.on_truncate == "error" and any(batch.dropped_tokens):
            row = next(row for row in batch if row.dropped_tokens)
            raise InputError(
                f"{row.record.where}: {row.length + row.dropped_tokens} tokens, "
                f"and {self.max_length} is the limit",
                f"{option('on_truncate', 'warn')} truncates texts, window and chunk encode "
                "all of them",
            )
        is_table = self.runtime.spec.architecture in (STATIC, TERM_TABLE)
        may_be_empty = self.options.per_token or is_table
        if not (may_be_empty or all(batch.lengths)):
            where = batch.records[batch.lengths.index(0)].where
            raise InputError(
                f"{where}: has no tokens, so it has no vector",
                f"leave out {option('special_tokens', False)}, or drop the text",
            )

    def _text_vectors(
        self, batch: TokenBatch, model_run: ModelRun
    ) -> Iterator[BatchDone | EmbeddedBlock]:
        """Yield progress events, then a block with one vector (or the term weights) per record."""
        outputs: Any = yield from model_run
        window_counts = batch.windows_per_record
        has_windows = len(window_counts) < len(batch)
        if self.terms:
            from bertcli.embedding.sparse import largest_terms, terms_of_records

            outputs = terms_of_records(self.terms, batch, outputs)
            vectors: Any = [largest_terms(terms, self.options.top_terms) for terms in outputs]
        else:
            outputs = np.asarray(outputs, np.float32)
            if has_windows:
                outputs = pool_windows(outputs, window_counts, self._window_weights(batch))
            outputs = self._apply_modules(outputs)
            vectors = outputs
        if has_windows:  # the first window of each record stands for it
            batch = batch.take(accumulate(window_counts[:-1], initial=0))
        block = EmbeddedBlock(batch, vectors)
        refuse_infinite(block.records, outputs)
        yield block

    def _chunk_vectors(
        self, batch: TokenBatch, windows: Sequence[TextWindow]
    ) -> Iterator[BatchDone | EmbeddedBlock]:
        """Yield progress events, then a block with one vector per chunk, pooled from its window.

        The chunks of a window are consecutive, and the window is encoded once.
        """
        lengths_and_windows = zip(batch.lengths, windows, strict=True)
        chunks_of_windows = []
        token_counts = []
        for _, chunks in groupby(lengths_and_windows, lambda pair: pair[1].text):
            lengths, chunk_windows = zip(*chunks, strict=True)
            chunks_of_windows.append(chunk_windows)
            token_counts.append(sum(lengths))
        ends_and_chunks = zip(accumulate(token_counts), chunks_of_windows, strict=True)
        vectors: list[np.ndarray] = []
        for _, block in groupby(ends_and_chunks, lambda pair: pair[0] // TOKENS_PER_BLOCK):
            vectors += yield from self._pooled_chunks([chunks for _, chunks in block])
        outputs = self._apply_modules(np.concatenate(vectors))
        refuse_infinite(batch.records, outputs)
        yield EmbeddedBlock(batch, outputs)

    def _pooled_chunks(
        self, windows: Sequence[Sequence[TextWindow]]
    ) -> Generator[BatchDone, None, list[np.ndarray]]:
        """Yield progress events; return the pooled states of all chunks, [1, D...] each.

        Each window is given as the list of its chunks.
        """
        from bertcli.tokenizing.late_chunks import WINDOW_COLUMNS, tokens_of_chunks

        columns = (*MODEL_COLUMNS, *WINDOW_COLUMNS)
        layout = Layout(columns, special_tokens=self.options.special_tokens)
        texts = [chunks[0].text for chunks in windows]
        batch = self.runtime.tokenizer.encode_records(self.prepare([*map(Record, texts)]), layout)
        states = yield from _without_texts(self._run(PackedTokens.of(batch), Pooling(("none",))))
        vectors = []
        for chunks, row, window_states in zip(windows, batch, states, strict=True):
            for tokens in tokens_of_chunks(row, chunks, self._prepared_texts):
                skip = 0 if tokens.start else self.unpooled_prompt_tokens
                chunk_states = window_states[tokens]
                vectors.append(pool(chunk_states, [len(chunk_states)], self.options.modes, skip))
            yield BatchDone(len(chunks))
        return vectors

    def _window_weights(self, batch: TokenBatch) -> list[int]:
        """Return the weight of each window: its number of tokens, at least 1.

        Special tokens, and prompt tokens that are not pooled, do not count.
        """
        weights = np.array(batch.lengths)
        if self.options.special_tokens:
            weights -= self.runtime.tokenizer.core.num_special_tokens_to_add(False)
        unpooled = self._unpooled_tokens(batch)
        if unpooled is not None:
            weights -= np.maximum(unpooled - int(self.options.special_tokens), 0)
        return np.maximum(weights, 1).tolist()

    def _token_vectors(
        self, records: Sequence[Sequence[Encoded]]
    ) -> Iterator[BatchDone | EmbeddedBlock]:
        """Yield progress events, then a block with token or word vectors per record.

        Each record is given as the list of its windows.
        """
        if self.late:
            add_prefix = partial(self.late.with_prefix, special=self.options.special_tokens)
            records = [[*map(add_prefix, windows)] for windows in records]
        unfilled_lengths = [row.length for windows in records for row in windows]
        if self.late:
            records = [[*map(self.late.fill_up, windows)] for windows in records]
        rows = [row for windows in records for row in windows]
        batch = TokenBatch.of([row for row in rows if row.length], MODEL_COLUMNS)
        tokens = self._model_input(batch)
        if self.late and self.late.hides_filling:
            lengths = zip(unfilled_lengths, rows, strict=True)
            attended = [length for length, row in lengths if row.length]
            tokens = replace(tokens, attended=np.array(attended, np.int64))
        states = iter((yield from self._run(tokens)))
        no_states = np.zeros((0, *self._layer_axis, self.state_width), np.float32)
        merged_rows = []
        vectors = []
        token_fields = []
        for windows in records:
            window_states = [next(states) if row.length else no_states for row in windows]
            merged, merged_states = merge_windows(windows, window_states)
            fields, record_vectors = self._vectors_of_record(merged, merged_states)
            record_vectors = self._apply_modules(record_vectors)
            refuse_infinite([merged.record], [record_vectors])
            merged_rows.append(merged)
            vectors.append(record_vectors)
            token_fields.append(fields)
        yield EmbeddedBlock(TokenBatch.of(merged_rows), vectors, token_fields)

    def _vectors_of_record(
        self, row: Encoded, states: np.ndarray
    ) -> tuple[TokenFields, np.ndarray]:
        """Return the tokens or words of a record that have a vector, and their vectors [L, D...].

        ``states`` [T, D...] are those of all its tokens.
        """
        if self.options.word_vectors is not None:
            (tokenized,) = self.prepare([row.record])
            words, tokens_of_words = words_with_tokens(row._replace(record=tokenized))
            return words, pool_words(states, tokens_of_words, self.options.word_vectors)
        if self.late:
            row, states = self.late.matched_tokens(row, states)
        columns = (list(row.columns[name]) for name in TOKEN_COLUMNS)
        return TokenFields("tokens", *columns), states

    def _run(self, texts: PackedTokens, reduction: Reduction | None = None) -> ModelRun:
        """Run the model; the results are a vector [D...] or token vectors [L, D...] per text."""
        return self.runtime.run(texts, reduction or self._reduction)

    def vectors_of(self, texts: PackedTokens) -> np.ndarray:
        """Return the vectors of tokenized texts, [n, D]."""
        return self._apply_modules(np.asarray(result_of(self._run(texts)), np.float32))

    def _apply_modules(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the modules after the pooling, truncate to ``dim`` and normalize."""
        for module in self.modules:
            vectors = module(vectors)
        options = self.options
        return truncate_and_normalize(
            vectors,
            dim=options.dim,
            normalize=bool(options.normalize),
            dim_last=options.dim_last,
        )

    def vector_settings(self) -> dict[str, Any]:
        """Return the settings that determine the values of a vector, for manifests."""
        options = self.options
        settings = {name: getattr(options, name) for name in MANIFEST_OPTIONS}
        settings |= {
            "layers": list(options.layers),
            "max_length": self.max_length,
            "include_prompt": self.sentence.include_prompt,
            "lower_case": self.sentence.lower_case,
            **self.runtime.engine.facts(),
        }
        if self.terms:
            settings |= {
                "sparse": True,
                **self.terms.manifest_settings,
                "top_terms": options.top_terms,
            }
        if self.late:
            settings["late_interaction"] = self.late.manifest_settings
        if self.modules:
            settings["modules"] = describe_modules(self.modules)
        if options.dim_last and options.normalize:
            settings["dim_last"] = True
        if self.makes_chunks:
            settings |= {"overlap": options.overlap, "at": options.at}
        if options.on_truncate == "late-chunk":
            settings["window_length"] = self.window_length
        return settings

    @property
    def term_names(self) -> TermNames | None:
        """The names of terms by id for a sparse model, else None."""
        if not self.terms:
            return None
        from bertcli.embedding.sparse import TermNames

        return TermNames(self.runtime.tokenizer, self.width)

    def prepare(
        self, records: Sequence[Record], *, all_characters: bool = False
    ) -> Sequence[Record]:
        """Return records as they are tokenized: with the prompt, lower-cased if the model says so.

        With ``all_characters``, texts of a model2vec model are not truncated to the characters that
        it reads.
        """
        return prepare_records(
            records,
            self.options.prompt or "",
            lower=self.sentence.lower_case,
            max_characters=None if all_characters else self._max_characters,
        )

    def _prepared_texts(self, texts: Sequence[str]) -> Sequence[Any]:
        """Return texts as they are tokenized."""
        return RecordBatch.of(self.prepare([*map(Record, texts)])).texts

    @cached_property
    def _max_characters(self) -> int | None:
        """The number of characters of a text that model2vec reads; None for no limit.

        It is ``max_length`` times the median length of a token of the vocabulary.
        """
        has_limit = self.sentence.static == "model2vec" and self.max_length < LARGEST_NUMBER
        if not has_limit or self.options.on_truncate in ("window", "chunk"):
            return None
        tokens = self.runtime.tokenizer.core.get_vocab()
        return self.max_length * int(np.median([*map(len, tokens)]))

    def _with_unread_counted(self, batch: TokenBatch, counts: TokenCounts) -> TokenBatch:
        """Return the window with the tokens of unread characters counted as dropped tokens."""
        dropped_tokens = [*batch.dropped_tokens]
        for row, record in enumerate(self.prepare(batch.records, all_characters=True)):
            texts = [text for text in (record.text, record.pair) if isinstance(text, str)]
            unread = "".join(text[self._max_characters :] for text in texts)
            if unread:
                tokens = self.runtime.tokenizer.core.encode(unread, add_special_tokens=False)
                if not dropped_tokens[row]:
                    counts.truncated += 1
                counts.cut += len(tokens)
                dropped_tokens[row] += len(tokens)
        return replace(batch, dropped_tokens=dropped_tokens)

    @cached_property
    def _reduction(self) -> Reduction:
        """The reduction of the states of each text: term weights, or a pooling."""
        return self.terms or Pooling(self.options.modes, self.unpooled_prompt_tokens)

    @cached_property
    def unpooled_prompt_tokens(self) -> int:
        """The number of leading tokens of a text that are not pooled: [CLS] and the prompt.

        0 if the prompt is pooled. Source: sentence-transformers 6.2, prompt_length.
        """
        is_pooled = self.sentence.include_prompt or self.terms or self.options.per_token
        if is_pooled or not self.options.prompt:
            return 0
        layout = Layout(("input_ids",), special_tokens=self.options.special_tokens)
        (row,) = self.runtime.tokenizer.encode_records(self.prepare([Record("")]), layout)
        return row.length - self.options.special_tokens  # without [SEP]


def _refuse_with_late_interaction(
    late: LateInteraction, folder: ModelFolder, options: EmbedOptions
) -> None:
    """Raise ModelError or UsageError for what late interaction does not support."""
    if late.hides_filling and folder.config.structure.blank_padding:
        raise ModelError(f"{folder}: query expansion is not supported for DeBERTa")
    if options.on_truncate == "window":
        raise UsageError(
            f"{option('on_truncate', 'window')} cannot be combined with a model of "
            "late interaction",
            "use bertcli chunk, and embed the chunks",
        )


def _refuse_changed_texts(
    folder: ModelFolder, options: EmbedOptions, late: LateInteraction | None
) -> None:
    """Raise UsageError if texts would be changed for a model whose ids belong to their words."""
    is_changed = late or options.prompt or options.makes_chunks
    if is_changed and folder.config.extra_embeddings:
        raise UsageError(
            "this model needs an id for each word, so its texts cannot be changed",
            f"leave out {option('prompt')}, {option('on_truncate', 'chunk')} and "
            f"{option('token_vectors')}",
        )


def _run_all(runs: Sequence[ModelRun], groups: Sequence[np.ndarray]) -> ModelRun:
    """Execute runs one after another and return their vectors in the original order of the rows.

    ``groups`` holds the row numbers of each run.
    """
    vectors = []
    for run in runs:
        vectors.append((yield from run))
    return np.concatenate(vectors)[np.argsort(np.concatenate(groups))]


def _without_texts(run: ModelRun) -> ModelRun:
    """Execute a run whose texts are windows: its steps count tokens only."""
    while True:
        try:
            step = next(run)
        except StopIteration as end:
            outputs: Outputs = end.value
            return outputs
        yield step._replace(texts=0)


def refuse_infinite(
    records: Sequence[Record],
    vectors: np.ndarray | list[np.ndarray],
    problem: str = "its vector contains",
) -> None:
    """Raise ModelError for a record with a NaN or an infinity in any of its vectors.

    ``problem`` begins the message.
    """
    if isinstance(vectors, np.ndarray):
        finite = np.isfinite(vectors).reshape(len(records), -1).all(axis=1)
    else:
        finite = np.array([np.isfinite(vector).all() for vector in vectors])
    if not finite.all():
        record = records[int(finite.argmin())]
        raise ModelError(
            f"{record.where}: {problem} NaN or infinity",
            "bertcli inspect --verify checks the weights; float16 overflows, float32 does not",
        )
