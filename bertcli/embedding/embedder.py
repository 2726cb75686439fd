"""Texts to vectors: records are tokenized, run in batches by length, pooled, and come in order.

    embedder = Embedder.open(find_model("all-MiniLM-L6-v2", files=MODEL_FILES), EmbedOptions())
    run = embedder.run(Reader(Input(texts=('I love NLP!',))))
    for window in embedder.windows(run):
        for part in window:                      # the batches on the way, and blocks of vectors
            ...

What a vector is made of is settled when the model is opened: ``Embedder.chosen`` says it.
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

    # Most models have no use for these, which are imported where they have.
    from bertcli.embedding.late_interaction import LateInteraction
    from bertcli.embedding.sparse import TermMaker, TermNames

BEGUN = 3  # windows for each device that are begun before the first is written
HELD = 1 << 14  # tokens whose vectors are held at a time, or little more, where each has its own
QUERY_PROMPTS = ("query",)  # names of prompts in sentence-transformers, the first found counts
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
CHOSEN = (  # options that are in manifests as they are
    *("pooling", "normalize", "dim", "on_truncate", "stride", "prompt"),
    *("special_tokens", "parse_special", "window", "word_vectors", "layer_combine"),
)


@dataclass(frozen=True)
class Embedder:
    """A model that is ready to turn records into vectors."""

    folder: ModelFolder
    runtime: Runtime
    options: EmbedOptions
    sentence: Sentence
    modules: tuple[VectorModule, ...] = ()  # behind the pooling
    terms: TermMaker | None = None  # what makes weights of terms instead
    late: LateInteraction | None = None  # what tokens are matched one by one

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        options: EmbedOptions,
        *,
        extra: bool = False,
        scores: bool = False,
    ) -> Self:
        """Load a model and settle how its vectors are made.

        With ``extra``, records have the ids of their words that the model may need. With
        ``scores``, the last layer may give scores, as that of a cross-encoder.

        Raises ModelError for a folder that is not a whole BERT, UsageError for a choice that this
        model or this machine cannot follow.
        """
        pooling = "" if options.sparse else options.pooling
        sentence = read_sentence(folder, pooling=pooling, scores=scores)
        kind = "BertModel"
        maker = None
        if options.sparse:
            from bertcli.embedding.sparse import read_sparse

            options, sentence, kind, maker = read_sparse(folder, options, sentence)
        kind = STATIC if sentence.static else kind
        own = options.pooling == "auto" and not options.per_token  # else the encoder alone
        modules = read_chain(folder, sentence.of_texts if own else ())
        place = folder if sentence.static else folder.part(sentence.transformer)
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
        if extra and not sentence.static:  # texts that have ids for their words keep these words
            changed = late or options.prompt or options.on_truncate == "chunk"
            if changed and place.config.extra_embeddings:
                raise UsageError(
                    "this model needs an id for each word, so its texts cannot be changed",
                    f"leave out {option('prompt')}, {option('on_truncate', 'chunk')} and "
                    f"{option('token_vectors')}",
                )
        pooler = options.pooling == "pooler"
        # A prompt that is not pooled may come later: then [CLS] is not what is read.
        first = options.pooling == "cls" and sentence.include_prompt
        reading = Reading(options.layers, options.layer_combine, first or pooler)
        runtime = open_runtime(ModelSpec(place, options, kind, reading, pooler), tokenizer)
        return cls(folder, runtime, options, sentence, modules, terms, late).with_dim(asked)

    def with_dim(self, asked: int | None) -> Self:
        """Return this with no more dimensions than its vectors have.

        UsageError where more are ``asked`` for; what the folder names is clipped.
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
        """Return this with a prompt: ``text``, or the first of the names that the model has.

        Without either, the prompt is unchanged. Source: the documentation of encode_query and
        encode_document; sentence-transformers 6.2 always has a "document", which may be empty.
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
        if names is QUERY_PROMPTS:  # queries have a length of their own
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
        """The number of dimensions of what is pooled, for each token."""
        states = self.runtime.config.hidden_size
        if self.options.layer_combine == "concat":
            states *= len(self.options.layers)
        return states

    @property
    def nothing(self) -> np.ndarray:
        """No vector, [0, D...], or no term, [0, 2]: what an empty input becomes."""
        if self.terms:
            return np.zeros((0, 2), np.float32)
        return np.zeros((0, *self._stacked, self.options.dim or self.width), np.float32)

    @property
    def max_length(self) -> int:
        """The number of tokens, special ones included, that a text is truncated to."""
        meant = (self.late and self.late.length) or self.sentence.max_length
        asked = self.options.max_length
        return token_limit(self.runtime.config, self.runtime.tokenizer, asked, meant)

    @property
    def _stacked(self) -> tuple[int, ...]:
        """The layers that have a vector each, where there is not just one: (), or (k,)."""
        return (len(self.options.layers),) if self.options.layer_combine == "stack" else ()

    @property
    def chunks(self) -> bool:
        """Whether long texts are divided, so that each of their pieces has a vector."""
        return self.options.on_truncate == "chunk"

    def divided(self, reader: Reader) -> Reader:
        """Return the reader, which divides long texts where those have several vectors.

        A piece with its prompt is not too long.
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
        """Return the fields of records that say where they come from, beside their ids."""
        positions = PLACE if self.chunks else ()
        return (*positions, *ORIGIN) if reader.source.fields.with_location else positions

    @property
    def layout(self) -> Layout:
        """How texts become tokens."""
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
        """Return the tokenized records of a reader, in windows.

        Windows that are ``full`` do not depend on how fast the records came, so the vectors of a
        run that is resumed are the same to the last bit.
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
        """Yield what comes of the windows of a run, in order; each is counted once it is iterated.

        Where GPUs compute, later windows are begun while they could run out of work, unless the
        windows come as slowly as their records.
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
        """Count a window when its turn comes, and yield what comes of it."""
        run.tally.merge(counts)
        yield from self.embedded(batch, work)

    def embedded(
        self, batch: TokenBatch, work: Work | None = None
    ) -> Iterator[Ran | EmbeddedBlock]:
        """Yield the records of one window with their vectors, and the batches on the way.

        How they are divided depends on the window alone. ``work`` is that of ``_begun``.
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
        """Hand a window out before its turn; one that is refused is refused when its turn comes."""
        try:
            self.refuse(batch)
            return self._started(batch)
        except BertcliError:
            return None

    def _started(self, batch: TokenBatch) -> Work:
        """Hand texts to the model. Only windows that have tokens of the prompt leave them out."""
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
        """Return how many first tokens of each window are not pooled, [B]; None without windows.

        Those are [CLS] and what the window has of the prompt. Without any of it, [CLS] is pooled.
        """
        if not self._prompt_tokens or len(batch.windows) == len(batch):
            return None
        before = np.cumsum(np.asarray(batch.columns[PLACES]) < self._prompt_tokens)
        before = np.concatenate([[0], before])
        offsets = np.asarray(batch.offsets)
        skips = before[offsets[1:]] - before[offsets[:-1]]
        return np.where(skips > int(self.options.special_tokens), skips, 0)

    def _tokens(self, batch: TokenBatch) -> Tokens:
        """Return texts as the model takes them; InputError for one without the ids it needs."""
        if self.runtime.extra.fields:
            read = RecordBatch.of(self.prepare(batch.records))  # the words that were tokenized
            batch = self.runtime.extra.added(replace(batch, records=read), self.runtime.tokenizer)
        return Tokens.of(batch)

    def refuse(self, batch: TokenBatch) -> None:
        """Raise InputError or ModelError for a record that can have no vector."""
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
        """Yield the records with a vector each, or the weights of terms, of all its windows."""
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
        """Yield records, given as their windows, with the vectors of their tokens or words."""
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
        """Run the model: a vector [D...] per text, or those of all its tokens, [L, D...]."""
        return self.runtime.run(texts, self._pooling)

    def vectors_of(self, texts: Tokens) -> np.ndarray:
        """Return the vectors of texts that are tokens already, [n, D]."""
        return self._finished(np.asarray(result_of(self._run(texts)), np.float32))

    def _finished(self, vectors: np.ndarray) -> np.ndarray:
        for module in self.modules:
            vectors = module(vectors)
        normalize = bool(self.options.normalize)
        options = self.options
        return finish(vectors, dim=options.dim, normalize=normalize, dim_last=options.dim_last)

    def chosen(self) -> dict[str, Any]:
        """Return what decides the numbers of a vector, for manifests and for the curious."""
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
        """The words of the vocabulary, where texts become weights of terms."""
        if not self.terms:
            return None
        from bertcli.embedding.sparse import TermNames

        return TermNames(self.runtime.tokenizer, self.width)

    def prepare(self, records: Sequence[Record], *, whole: bool = False) -> Sequence[Record]:
        """Return records as they are tokenized: with the prompt, in lower case if it has to be."""
        lower = self.sentence.lower_case
        most = None if whole else self._most_characters
        return prepared(records, self.options.prompt or "", lower=lower, most=most)

    @cached_property
    def _most_characters(self) -> int | None:
        """The characters of a text that model2vec reads: all its tokens at the median length."""
        cuts = self.sentence.static == "model2vec" and self.max_length < LARGEST_NUMBER
        if not cuts or self.options.on_truncate in ("window", "chunk"):
            return None
        tokens = self.runtime.tokenizer.core.get_vocab()
        return self.max_length * int(np.median([*map(len, tokens)]))

    def _with_rest_counted(self, batch: TokenBatch, counts: TokenCounts) -> TokenBatch:
        """Return a window in which the tokens of characters that are not read count as dropped."""
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
        """What is kept of the states of each text; tokens of a prompt may be left out."""
        return self.terms or Pooling(self.options.modes, self._prompt_tokens)

    @cached_property
    def _prompt_tokens(self) -> int:
        """The first tokens of a text that are not pooled: [CLS] and the prompt.

        0 where the prompt is pooled. Source: sentence-transformers 6.2, prompt_length.
        """
        pooled = self.sentence.include_prompt or self.terms or self.options.per_token
        if pooled or not self.options.prompt:
            return 0
        layout = Layout(("input_ids",), special_tokens=self.options.special_tokens)
        (encoded,) = self.runtime.tokenizer.encode_records(self.prepare([Record("")]), layout)
        return encoded.length - self.options.special_tokens  # less the [SEP]


def _in_order(works: Sequence[Work], groups: Sequence[np.ndarray]) -> Work:
    """Return vectors that are computed in groups, in the order of their numbers in these."""
    vectors = []
    for work in works:
        vectors.append((yield from work))
    return np.concatenate(vectors)[np.argsort(np.concatenate(groups))]


def refuse_infinite(
    records: Sequence[Record],
    vectors: np.ndarray | list[np.ndarray],
    what: str = "its vector contains",
) -> None:
    """Raise ModelError for a record whose vector, or any of whose vectors, has NaN or infinity."""
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
