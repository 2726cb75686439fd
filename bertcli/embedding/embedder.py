"""Texts to vectors: tokenize records, run batches of similar length, pool, and restore the order.

    embedder = Embedder.open(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), EmbedOptions())
    run = embedder.run(Reader(Input(texts=('I love NLP!',))))
    for window in embedder.windows(run):
        for part in window:                      # progress events and blocks of vectors
            ...

The options that determine a vector are resolved when the model is opened; ``Embedder.chosen``
returns them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.embedding.options import (
    EmbedOptions,
    Sentence,
    prepared,
    read_sentence,
    settled,
)
from bertcli.embedding.pooling import (
    PLACES,
    TOKEN_COLUMNS,
    EmbeddedBlock,
    Pooling,
    TokenVectors,
    finish,
    joined,
    pool_windows,
    pool_words,
    split,
    words_of,
)
from bertcli.embedding.sentence_modules import (
    VectorModule,
    described,
    read_chain,
    width_after,
)
from bertcli.engines.engine import (
    COLUMNS,
    Finish,
    ModelSpec,
    Reading,
    Runtime,
    Tokens,
    Work,
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
from bertcli.io.progress import Ran
from bertcli.io.typed_json import LARGEST_NUMBER
from bertcli.model_folder.files import STATIC, TERM_TABLE
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import CHARACTERS, RecordBatch
from bertcli.records.input import ORIGIN
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tokenizing.batch import PLACE, Encoded, Layout, TokenBatch
from bertcli.tokenizing.run import TokenCounts, TokenizeRun

if TYPE_CHECKING:
    from typing_extensions import Self

    # Imported only for the models that need them.
    from bertcli.embedding.late_interaction import LateInteraction
    from bertcli.embedding.sparse import TermMaker, TermNames

BEGUN = 3  # windows per device that are started ahead of the window being written
HELD = 1 << 14  # tokens per block of token vectors (approximately)
QUERY_PROMPTS = ("query",)  # prompt names in sentence-transformers, in order of preference
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
CHOSEN = (  # options that are copied to manifests unchanged
    *("pooling", "normalize", "dim", "on_truncate", "stride", "prompt"),
    *("special_tokens", "parse_special", "window", "word_vectors", "layer_combine"),
)


@dataclass(frozen=True)
class Embedder:
    """A loaded model that turns records into vectors."""

    folder: ModelFolder
    runtime: Runtime
    options: EmbedOptions
    sentence: Sentence
    modules: tuple[VectorModule, ...] = ()  # applied after the pooling
    terms: TermMaker | None = None  # computes term weights instead of vectors
    late: LateInteraction | None = None  # settings of a late-interaction model

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        options: EmbedOptions,
        *,
        extra: bool = False,
        scores: bool = False,
    ) -> Self:
        """Load a model and resolve the options that determine its vectors.

        With ``extra``, records may carry the per-word ids that a model with extra embeddings needs.
        With ``scores``, the last layer may output scores, as in a cross-encoder.

        Raises ModelError for a folder that is not a complete BERT, UsageError for an option that
        this model or this machine does not support.
        """
        pooling = "" if options.sparse else options.pooling
        sentence = read_sentence(folder, pooling=pooling, scores=scores)
        kind = "BertModel"
        maker = None
        if options.sparse:
            from bertcli.embedding.sparse import read_sparse

            options, sentence, kind, maker = read_sparse(folder, options, sentence)
        kind = STATIC if sentence.static else kind
        own = options.pooling == "auto" and not options.per_token  # else only the encoder is used
        modules = read_chain(folder, sentence.of_texts if own else ())
        place = folder if sentence.static else folder.subfolder(sentence.transformer)
        special = options.parse_special
        tokenizer = cache(
            partial(open_tokenizer, place, kind=kind, parse_special=special, extra=extra)
        )
        late = None
        if options.per_token and options.word_vectors is None and not sentence.static:
            from bertcli.embedding.late_interaction import read_late

            late = read_late(folder, tokenizer(), options.prompt_name)
        if late:
            if late.hides_filling and place.config.structure.blank_padding:
                raise ModelError(f"{place}: queries of a DeBERTa cannot be filled up")
            if options.on_truncate == "window":
                raise UsageError(
                    f"{option('on_truncate', 'window')} cannot be combined with a model of "
                    "late interaction",
                    "use bertcli chunk, and embed the chunks",
                )
            normalize = late.normalize if options.normalize is None else options.normalize
            options = replace(options, normalize=normalize)
            modules = late.modules
            prompts = {**sentence.prompts, **late.prompts}
            sentence = replace(sentence, prompts=prompts, default_prompt="document")
        asked = options.dim
        options = settled(options, sentence)
        terms = maker(tokenizer()) if maker else None
        if extra and not sentence.static:  # per-word ids only match unchanged texts
            changed = late or options.prompt or options.on_truncate == "chunk"
            if changed and place.config.extra_embeddings:
                raise UsageError(
                    "this model needs an id for each word, so its texts cannot be changed",
                    f"leave out {option('prompt')}, {option('on_truncate', 'chunk')} and "
                    f"{option('token_vectors')}",
                )
        pooler = options.pooling == "pooler"
        # With include_prompt=False, a prompt set later moves "cls" pooling off the first token.
        first = options.pooling == "cls" and sentence.include_prompt
        reading = Reading(options.layers, options.layer_combine, first or pooler)
        runtime = open_runtime(ModelSpec(place, options, kind, reading, pooler), tokenizer)
        return cls(folder, runtime, options, sentence, modules, terms, late).with_dim(asked)

    def with_dim(self, asked: int | None) -> Self:
        """Return a copy whose ``dim`` does not exceed the width of its vectors.

        A ``dim`` from the model folder is clipped. Raises UsageError if ``asked``, the dim given by
        the user, exceeds the width.
        """
        width = self.width
        dim = self.options.dim
        if asked and asked > width:
            raise UsageError(
                f"{option('dim', asked)} is not possible: the vectors have {width} dimensions",
                f"give a number from 1 to {width}",
            )
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
        from bertcli.embedding.late_interaction import read_late

        late = read_late(self.folder, self.runtime.tokenizer, names[0])
        if names is QUERY_PROMPTS:  # queries have their own maximum length
            options = replace(options, max_length=None)
        return replace(self, options=options, late=late)

    @property
    def width(self) -> int:
        """The number of dimensions of a vector before truncation to ``dim``."""
        if self.terms:
            width_after(self.terms.layers, self.runtime.config.hidden_size, self.folder)
            table = self.terms.table
            return self.runtime.config.vocab_size if table is None else len(table)
        pooled = self.state_width * len(self.options.modes)
        return width_after(self.modules, pooled, self.folder)

    @property
    def state_width(self) -> int:
        """The number of dimensions of the token states that are pooled."""
        states = self.runtime.config.hidden_size
        if self.options.layer_combine == "concat":
            states *= len(self.options.layers)
        return states

    @property
    def nothing(self) -> np.ndarray:
        """The output for an empty input: an array of no vectors [0, D...] or no terms [0, 2]."""
        if self.terms:
            return np.zeros((0, 2), np.float32)
        return np.zeros((0, *self._stacked, self.options.dim or self.width), np.float32)

    @property
    def max_length(self) -> int:
        """The number of tokens to which a text is truncated, special tokens included."""
        meant = (self.late and self.late.length) or self.sentence.max_length
        asked = self.options.max_length
        return token_limit(self.runtime.config, self.runtime.tokenizer, asked, meant)

    @property
    def _stacked(self) -> tuple[int, ...]:
        """The shape of the layer axis: (k,) if each of k layers has its own vector, else ()."""
        return (len(self.options.layers),) if self.options.layer_combine == "stack" else ()

    @property
    def chunks(self) -> bool:
        """True if long texts are divided into chunks with one vector each."""
        return self.options.on_truncate == "chunk"

    def divided(self, reader: Reader) -> Reader:
        """Return the reader; with ``on_truncate="chunk"``, make it divide long texts into chunks.

        A chunk including its prompt fits in ``max_length`` tokens.
        """
        if not self.chunks:
            return reader
        from bertcli.tokenizing.chunks import Chunker, ChunkSettings, pieces

        options = self.options
        settings = ChunkSettings(
            self.max_length, options.overlap, options.at, special_tokens=options.special_tokens
        )
        chunker = Chunker(
            self.runtime.tokenizer,
            settings,
            lambda texts: RecordBatch.of(self.prepare([*map(Record, texts)])).texts,
        )
        reader.divide_by(partial(pieces, chunker))
        return reader

    def places(self, reader: Reader) -> tuple[str, ...]:
        """Return the names of the fields that locate a record in its input, besides its id."""
        positions = PLACE if self.chunks else ()
        return (*positions, *ORIGIN) if reader.source.fields.with_location else positions

    @property
    def layout(self) -> Layout:
        """The tokenization settings: columns, special tokens, truncation and windows."""
        window = self.options.on_truncate == "window"
        columns = (*COLUMNS, *self.runtime.extra.needed)
        if self.options.per_token:
            words = ("word_ids",) if self.options.word_vectors else ()
            columns = (*columns, *TOKEN_COLUMNS, *words, PLACES)
        elif window and self._prompt_tokens:
            columns = (*columns, PLACES)
        return Layout(
            columns=tuple(dict.fromkeys(columns)),
            special_tokens=self.options.special_tokens,
            max_length=self.max_length - bool(self.late and self.late.prefix),
            truncation="longest_first",
            stride=self.options.stride if window else 0,
            overflowing=window,
        )

    def run(self, reader: Reader, *, full: bool = False) -> TokenizeRun:
        """Return the tokenization run of a reader, which yields windows of records.

        With ``full``, window sizes do not depend on the speed of the input, so a resumed run
        computes bit-identical vectors.
        """
        return TokenizeRun(
            reader,
            self.runtime.tokenizer,
            self.layout,
            self.options.window,
            full=full,
            characters=window_characters(self.runtime) if full else CHARACTERS,
            growing=full,
            prepare=self.prepare,
        )

    def windows(self, run: TokenizeRun) -> Iterator[Iterator[Ran | EmbeddedBlock]]:
        """Yield an iterator of results for each window of a run, in order.

        A window is added to the tally of the run when its iterator is started. With ``full``
        windows on GPUs, up to ``BEGUN`` later windows per device are started ahead, so that the
        GPUs do not run out of work.
        """
        ahead = run.full and not self.options.per_token and self.runtime.threads
        most = BEGUN * len(self.runtime.engine.places) if ahead else 0
        begun: deque[Iterator[Ran | EmbeddedBlock]] = deque()
        for counts, items in run.counted():
            if self._most_characters:
                items = self._with_rest_counted(items, counts)
            work = self._begun(items) if ahead else None
            begun.append(self._in_turn(run, counts, items, work))
            if len(begun) > most:
                yield begun.popleft()
        yield from begun

    def _in_turn(
        self, run: TokenizeRun, counts: TokenCounts, batch: TokenBatch, work: Work | None
    ) -> Iterator[Ran | EmbeddedBlock]:
        """Add the counts of a window to the tally of the run, then yield its results."""
        run.tally.merge(counts)
        yield from self.embedded(batch, work)

    def embedded(
        self, batch: TokenBatch, work: Work | None = None
    ) -> Iterator[Ran | EmbeddedBlock]:
        """Yield blocks of the records of one window with their vectors, and progress events.

        The division into blocks depends only on the window. ``work`` is the result of ``_begun``
        if the window was started ahead.
        """
        if not len(batch):
            return
        self.refuse(batch)
        if not self.options.per_token:
            yield from self._texts(batch, work or self._started(batch))
            return
        records = split([*batch], batch.windows)
        ends = accumulate(sum(item.length for item in windows) for windows in records)
        portions = groupby(zip(ends, records, strict=True), lambda portion: portion[0] // HELD)
        for _, portion in portions:
            yield from self._pieces([windows for _, windows in portion])

    def _begun(self, batch: TokenBatch) -> Work | None:
        """Start a window ahead; return None on an error, which is raised again in its turn."""
        try:
            self.refuse(batch)
            return self._started(batch)
        except BertcliError:
            return None

    def _started(self, batch: TokenBatch) -> Work:
        """Start the model on texts, grouped by the number of prompt tokens to leave out."""
        tokens = self._tokens(batch)
        skips = self._skips(batch)
        if skips is None:
            return self._run(tokens)
        groups = {int(skip): np.flatnonzero(skips == skip) for skip in np.unique(skips)}
        works = [
            self.runtime.run(tokens.take(rows), Pooling(self.options.modes, skip))
            for skip, rows in groups.items()
        ]
        return _in_order(works, [*groups.values()])

    def _skips(self, batch: TokenBatch) -> np.ndarray | None:
        """Return the number of leading tokens of each window that are not pooled, int [B].

        These are [CLS] and the prompt tokens in the window; in a window without prompt tokens,
        [CLS] is pooled. None if no text has several windows or no prompt is left out.
        """
        if not self._prompt_tokens or len(batch.windows) == len(batch):
            return None
        before = np.cumsum(np.asarray(batch.columns[PLACES]) < self._prompt_tokens)
        before = np.concatenate([[0], before])
        offsets = np.asarray(batch.offsets)
        skips = before[offsets[1:]] - before[offsets[:-1]]
        return np.where(skips > int(self.options.special_tokens), skips, 0)

    def _tokens(self, batch: TokenBatch) -> Tokens:
        """Return the model input of a batch. Raises InputError for a text without required ids."""
        if self.runtime.extra.fields:
            read = RecordBatch.of(self.prepare(batch.records))  # as tokenized
            batch = self.runtime.extra.added(replace(batch, records=read), self.runtime.tokenizer)
        return Tokens.of(batch)

    def refuse(self, batch: TokenBatch) -> None:
        """Raise InputError or ModelError for a record that cannot have a vector."""
        if batch.records.pairs is not None:
            refuse_pairs(batch, self.runtime.config)
        if self.options.on_truncate == "error" and any(batch.dropped_tokens):
            item = next(item for item in batch if item.cut)
            raise InputError(
                f"{item.record.where}: {item.length + item.cut} tokens, "
                f"and {self.max_length} is the limit",
                f"{option('on_truncate', 'warn')} truncates texts, window and chunk encode "
                "all of them",
            )
        may_be_empty = self.options.per_token or self.runtime.spec.kind in (STATIC, TERM_TABLE)
        if not (may_be_empty or all(batch.lengths)):
            where = batch.records[batch.lengths.index(0)].where
            raise InputError(
                f"{where}: has no tokens, so it has no vector",
                f"leave out {option('special_tokens', False)}, or drop the text",
            )

    def _texts(self, batch: TokenBatch, work: Work) -> Iterator[Ran | EmbeddedBlock]:
        """Yield progress events, then a block with one vector (or the term weights) per record."""
        outputs: Any = yield from work
        counts = batch.windows
        several = len(counts) < len(batch)
        if self.terms:
            from bertcli.embedding.sparse import largest, merged

            texts = Tokens.of(batch)
            ids = split(texts.ids, texts.lengths.tolist())
            outputs = [self.terms.terms(*pair) for pair in zip(ids, outputs, strict=True)]
            if several:
                outputs = [merged(part, self.terms.how) for part in split(outputs, counts)]
            vectors: Any = [largest(terms, self.options.top_terms) for terms in outputs]
        else:
            outputs = np.asarray(outputs, np.float32)
            if several:
                special = self.runtime.tokenizer.core.num_special_tokens_to_add(False)
                special = 0 if self.sentence.static else special
                pooled = np.array(batch.lengths) - special
                if (skips := self._skips(batch)) is not None:
                    pooled -= np.maximum(skips - int(self.options.special_tokens), 0)
                outputs = pool_windows(outputs, counts, np.maximum(pooled, 1).tolist())
            vectors = outputs = self._finished(outputs)
        firsts = batch.take(accumulate(counts[:-1], initial=0)) if several else batch
        block = EmbeddedBlock(firsts, vectors)
        refuse_infinite(block.records, outputs)
        yield block

    def _pieces(self, records: Sequence[Sequence[Encoded]]) -> Iterator[Ran | EmbeddedBlock]:
        """Yield progress events, then a block with token or word vectors per record.

        Each record is given as the list of its windows.
        """
        if self.late:
            add = partial(self.late.with_prefix, special=self.options.special_tokens)
            records = [[*map(add, windows)] for windows in records]
        own_lengths = [item.length for windows in records for item in windows]
        if self.late:
            records = [[*map(self.late.filled_up, windows)] for windows in records]
        items = [item for windows in records for item in windows]
        tokens = self._tokens(TokenBatch.of([item for item in items if item.length], COLUMNS))
        if self.late and self.late.hides_filling:
            pairs = zip(own_lengths, items, strict=True)
            own_lengths = [length for length, item in pairs if item.length]
            tokens = replace(tokens, attended=np.array(own_lengths, np.int64))
        states = iter((yield from self._run(tokens)))
        nothing = np.zeros((0, *self._stacked, self.state_width), np.float32)
        joined_items = []
        vectors = []
        owners = []
        for windows in records:
            parts = [next(states) if item.length else nothing for item in windows]
            item, vector = joined(windows, parts)
            matched, vector = self.late.matched(item, vector) if self.late else (item, vector)
            columns = (list(matched.columns[name]) for name in TOKEN_COLUMNS)
            pieces = TokenVectors("tokens", *columns)
            if self.options.word_vectors is not None:
                (read,) = self.prepare([item.record])
                pieces, words = words_of(item._replace(record=read))
                vector = pool_words(vector, words, self.options.word_vectors)
            vector = self._finished(vector)
            refuse_infinite([item.record], [vector])
            joined_items.append(item)
            vectors.append(vector)
            owners.append(pieces)
        yield EmbeddedBlock(TokenBatch.of(joined_items), vectors, owners)

    def _run(self, texts: Tokens) -> Work:
        """Run the model; the results are a vector [D...] or token vectors [L, D...] per text."""
        return self.runtime.run(texts, self._pooling)

    def vectors_of(self, texts: Tokens) -> np.ndarray:
        """Return the vectors of tokenized texts, [n, D]."""
        return self._finished(np.asarray(result_of(self._run(texts)), np.float32))

    def _finished(self, vectors: np.ndarray) -> np.ndarray:
        for module in self.modules:
            vectors = module(vectors)
        normalize = bool(self.options.normalize)
        options = self.options
        return finish(vectors, dim=options.dim, normalize=normalize, dim_last=options.dim_last)

    def chosen(self) -> dict[str, Any]:
        """Return the settings that determine the values of a vector, for manifests."""
        options = self.options
        chosen = {name: getattr(options, name) for name in CHOSEN}
        chosen |= {
            "layers": list(options.layers),
            "max_length": self.max_length,
            "include_prompt": self.sentence.include_prompt,
            "lower_case": self.sentence.lower_case,
            **self.runtime.engine.facts(),
        }
        if self.terms:
            chosen |= {"sparse": True, **self.terms.described, "top_terms": options.top_terms}
        if self.late:
            chosen["late_interaction"] = self.late.described
        if self.modules:
            chosen["modules"] = described(self.modules)
        if options.dim_last and options.normalize:
            chosen["dim_last"] = True
        if self.chunks:
            chosen |= {"overlap": options.overlap, "at": options.at}
        return chosen

    @property
    def term_names(self) -> TermNames | None:
        """The names of terms by id for a sparse model, else None."""
        if not self.terms:
            return None
        from bertcli.embedding.sparse import TermNames

        return TermNames(self.runtime.tokenizer, self.width)

    def prepare(self, records: Sequence[Record], *, whole: bool = False) -> Sequence[Record]:
        """Return records as they are tokenized: with the prompt, lower-cased if the model says so.

        With ``whole``, texts of a model2vec model are not cut to the characters that it reads.
        """
        lower = self.sentence.lower_case
        most = None if whole else self._most_characters
        return prepared(records, self.options.prompt or "", lower=lower, most=most)

    @cached_property
    def _most_characters(self) -> int | None:
        """The number of characters of a text that model2vec reads; None for no limit.

        It is ``max_length`` times the median length of a token of the vocabulary.
        """
        cuts = self.sentence.static == "model2vec" and self.max_length < LARGEST_NUMBER
        if not cuts or self.options.on_truncate in ("window", "chunk"):
            return None
        tokens = self.runtime.tokenizer.core.get_vocab()
        return self.max_length * int(np.median([*map(len, tokens)]))

    def _with_rest_counted(self, batch: TokenBatch, counts: TokenCounts) -> TokenBatch:
        """Return the window with the tokens of unread characters counted as dropped tokens."""
        dropped = [*batch.dropped_tokens]
        for at, record in enumerate(self.prepare(batch.records, whole=True)):
            texts = [text for text in (record.text, record.pair) if isinstance(text, str)]
            rest = "".join(text[self._most_characters :] for text in texts)
            if rest:
                tokens = self.runtime.tokenizer.core.encode(rest, add_special_tokens=False)
                counts.truncated += not dropped[at]
                counts.cut += len(tokens)
                dropped[at] += len(tokens)
        return replace(batch, dropped_tokens=dropped)

    @cached_property
    def _pooling(self) -> Finish:
        """The reduction of the states of each text: term weights, or a pooling."""
        return self.terms or Pooling(self.options.modes, self._prompt_tokens)

    @cached_property
    def _prompt_tokens(self) -> int:
        """The number of leading tokens of a text that are not pooled: [CLS] and the prompt.

        0 if the prompt is pooled. Source: sentence-transformers 6.2, prompt_length.
        """
        pooled = self.sentence.include_prompt or self.terms or self.options.per_token
        if pooled or not self.options.prompt:
            return 0
        layout = Layout(("input_ids",), special_tokens=self.options.special_tokens)
        (encoded,) = self.runtime.tokenizer.encode_records(self.prepare([Record("")]), layout)
        return encoded.length - self.options.special_tokens  # without [SEP]


def _in_order(works: Sequence[Work], groups: Sequence[np.ndarray]) -> Work:
    """Run works one after another and return their vectors in the original order of the rows.

    ``groups`` holds the row numbers of each work.
    """
    vectors = []
    for work in works:
        vectors.append((yield from work))
    return np.concatenate(vectors)[np.argsort(np.concatenate(groups))]


def refuse_infinite(
    records: Sequence[Record],
    vectors: np.ndarray | list[np.ndarray],
    what: str = "its vector contains",
) -> None:
    """Raise ModelError for a record with a NaN or an infinity in any of its vectors."""
    if isinstance(vectors, np.ndarray):
        finite = np.isfinite(vectors).reshape(len(records), -1).all(axis=1)
    else:
        finite = np.array([np.isfinite(vector).all() for vector in vectors])
    if not finite.all():
        record = records[int(finite.argmin())]
        raise ModelError(
            f"{record.where}: {what} NaN or infinity",
            "bertcli inspect --verify checks the weights; float16 overflows, float32 does not",
        )
