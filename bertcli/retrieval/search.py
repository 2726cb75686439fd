"""A search of a corpus with a model: queries and texts to vectors, and the nearest of them.

    search = Search.open(folder, EmbedOptions(), SearchOptions(vectors=path), reader)
    if not search.stored:
        search.writing().execute()      # computes the vectors of the texts
    for answers in search.answering(queries.blocks()):
        print(answers[0].query.text, answers[0].hits)

Vectors that are stored answer any number of queries: those are encoded as the manifest says that
the texts were. Without a place for vectors, one pass over the texts answers some queries.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertcli.embedding.embed_run import EmbedRun, RecordVectors
from bertcli.embedding.embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, Embedder
from bertcli.embedding.options import EmbedOptions, read_sentence
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.sentence_modules import described, read_chain, unit
from bertcli.embedding.sparse import has_routes
from bertcli.errors import LOG, InputError, counted, option
from bertcli.formats.arrays import open_arrays
from bertcli.formats.jsonl import lines_of, object_in, value_of
from bertcli.formats.registry import FORMATS, Holds
from bertcli.formats.tables import Spool
from bertcli.formats.vector_files import (
    DIGEST,
    IDS,
    INDICES,
    MAKE_AGAIN,
    ROW,
    ROWS,
    START,
    STOP,
    TERMS,
    VALUES,
    VECTOR,
    VECTORS,
    Array,
    form_of,
    manifest_of,
    parquet_table,
    put_aside,
    stored_lists,
    vectors_in,
)
from bertcli.formats.vector_writer import PIECES, WRITTEN
from bertcli.formats.writers import format_of
from bertcli.io.output_files import OutputFiles
from bertcli.io.printable import listed
from bertcli.io.progress import Display
from bertcli.io.publish import OTHER_FOLDER, unwritable
from bertcli.io.streams import open_bytes
from bertcli.io.typed_json import JsonObject, is_regular, whole_number
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import record_windows
from bertcli.records.input import Input
from bertcli.records.reader import Reader, refuse_pipes
from bertcli.records.record import Record, Text, is_empty, row_of
from bertcli.retrieval.index_update import IndexUpdate, refuse_other_options
from bertcli.retrieval.lexical import DEPTH, RANK_CONSTANT, Bm25, IndexFile, fuse
from bertcli.retrieval.nearest import (
    DIGITS,
    NO_TEXT,
    Match,
    MaxSim,
    Nearest,
    TermProducts,
    refuse_infinite,
)
from bertcli.retrieval.search_index import IndexTexts, SearchIndex, open_index
from bertcli.runs.identity import (
    InputDigest,
    files_of_model,
    numbers_of,
    refuse_changed_file,
)
from bertcli.runs.vector_run import VectorRun, VectorTarget
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertcli.embedding.sparse import TermNames

Collector = Nearest | TermProducts | MaxSim  # of the best rows for queries
SAME = (  # options of which a manifest has the values
    "pooling", "layers", "layer_combine", "dim", "max_length", "special_tokens", "parse_special",
    "on_truncate", "stride", "overlap", "at", "word_vectors",
)  # fmt: skip
AT_ONCE = 1024  # queries that are answered together


def options_of(
    path: str,
    fingerprint: JsonObject,
    folder: ModelFolder,
    options: EmbedOptions,
    option_name: str = "vectors",
) -> EmbedOptions:
    """Return the options with those in place that the vectors in a file were made with.

    ``fingerprint`` is that of their manifest; ``option_name`` is the option of the file. Raises
    InputError when another model made them, or they are not what is searched for.
    """
    recorded = fingerprint.object("options")
    ours = files_of_model(folder)
    if not folder.is_static:
        ours["config"] = numbers_of(folder.config)
    modules = recorded.get("modules") if not options.several else None
    if modules:
        ours["modules"] = described(read_chain(folder, read_sentence(folder).of_texts))
    for name, value in ours.items():
        if {**fingerprint, "modules": modules}.get(name) != value:
            maker = fingerprint.get("model", "unknown")
            raise InputError(
                f"{path}: was made by another model, {maker}: its {name} differs",
                f"give {option('model', maker)}, or leave out {option(option_name)}",
            )
    recorded.text("pooling")
    recorded.switch("special_tokens")
    chosen = {name: recorded[name] for name in SAME if recorded.get(name) is not None}
    layers = recorded.entries("layers")
    chosen["layers"] = (
        tuple(layers.needed(at, whole_number(-99)) for at in layers) or options.layers
    )
    if modules:
        chosen["pooling"] = "auto"
    stored_as = replace(options, token_vectors=False, **chosen, sparse="sparse" in recorded)
    if stored_as.kind != options.kind:
        needed = {
            "terms": f"search with {option('sparse')}",
            "tokens": f"search with {option('token_vectors')}",
        }
        raise InputError(
            f"{path}: holds vectors of {stored_as.kind}, not of {options.kind}",
            needed.get(stored_as.kind, f"leave out {option('vectors')}"),
        )
    return stored_as


@dataclass(frozen=True)
class SearchOptions:
    """How many texts per query, how alike, and where the vectors of the corpus are kept.

    A prompt of None is that of the model for queries, or for documents.
    """

    top_k: int = 10
    threshold: float | None = None  # the least similarity
    similarity: str | None = None  # "cosine" or "dot"; None: the model's
    skip_empty: bool | None = None  # False: texts without a character may be hits
    keep_fields: str | None = None  # that are shown where vectors alone are searched; None: all
    query_prompt: str | None = None
    corpus_prompt: str | None = None
    vectors: Path | None = None  # searched when the file is there, else written
    index: Path | None = None  # a folder instead, which is updated to the corpus if there is one
    corpus: Sequence[str] | None = None  # as the user named it
    hybrid: bool = False  # whether texts are found by their terms as well
    lexical: bool = False  # whether texts of an index are found by their terms alone
    rank_constant: float = RANK_CONSTANT  # of reciprocal ranks (hybrid)
    lexical_weight: float = 1.0  # of ranks by terms; those by vectors have 1


class Answer(NamedTuple):
    """A query and the nearest rows, the nearest first."""

    query: Record
    hits: list[Match]

    def fields(self) -> dict[str, Any]:
        """Return what is written: one object."""
        hits = [hit.fields() for hit in self.hits]
        return row_of(self.query, {"query": self.query.text, "hits": hits})

    def rows(self) -> list[dict[str, Any]]:
        """Return what is written to a table: a row for each hit."""
        return [
            {"query": self.query.text, "rank": rank, "score": hit.score} | hit.fields()
            for rank, hit in enumerate(self.hits, 1)
        ]


@dataclass
class Search:
    """A model and a corpus. ``reader`` is that of its texts, None where it has vectors alone.

    ``asked`` counts the queries.
    """

    embedder: Embedder  # of the corpus
    options: SearchOptions
    reader: Reader | None
    asker: Embedder | None = None  # of queries, where another model makes their vectors
    temporary: TemporaryVectors | None = None  # of the corpus, where they are not kept
    index: SearchIndex | None = None  # of the corpus, once there is one
    rerank: Callable[[Iterable[list[Answer]]], Iterable[list[Answer]]] = iter  # of all answers
    asked: TokenCounts = field(default_factory=TokenCounts, init=False)

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        compute: EmbedOptions,
        options: SearchOptions,
        reader: Reader | None,
    ) -> Search:
        """Load the model. Raises InputError when another one made the vectors that are there."""
        path = str(options.vectors)
        index = None
        if options.index is not None:
            path = str(options.index)
            index = open_index(options.index)
            if index is None and reader is None:
                raise InputError(f"{path}: index not found", f"{option('corpus')} FILE makes it")
            if index is not None:
                requested = compute
                compute = options_of(path, index.fingerprint, folder, compute, "index")
                if reader is not None:
                    division = [
                        {"on_truncate": how.on_truncate, "at": how.at}
                        for how in (compute, requested)
                    ]
                    refuse_other_options(options.index, *division)
        elif options.vectors is not None and options.vectors.exists():
            OutputFiles(options.vectors).tidy()
            manifest = manifest_of(path)
            if fingerprint := manifest.object("fingerprint"):
                compute = options_of(path, fingerprint, folder, compute)
            else:
                LOG.warn(
                    f"{path}: no manifest says which model made it; assuming it was {folder.name}"
                )
            if digest := manifest.text("sha256"):
                refuse_changed_file(options.vectors, digest, InputError, MAKE_AGAIN)
        elif reader is None:
            raise InputError(
                f"{path}: file not found", f"{option('corpus')} FILE computes the vectors"
            )
        embedder = Embedder.open(folder, compute)
        function = embedder.sentence.similarity
        scores = {"texts": "cosines", "terms": "dot products"}.get(compute.kind, "MaxSim")
        known = (None, "cosine", "dot", scores.lower())
        if not options.similarity and (function and function.lower()) not in known:
            LOG.warn(f"{function} similarity, the model's, is not available; scores are {scores}")
        asker = None
        if compute.sparse and has_routes(folder):
            other = replace(
                compute, prompt_name=QUERY_PROMPTS[0], max_length=None, special_tokens=True
            )
            asker = Embedder.open(folder, replace(other, pooling="auto"))
        embedder = embedder.with_prompt(DOCUMENT_PROMPTS, options.corpus_prompt)
        return cls(embedder, options, reader and embedder.divided(reader), asker, index=index)

    @property
    def by_dot(self) -> bool:
        """Whether vectors are compared by dot product: as asked, or as the model says."""
        if self.options.similarity is None:
            return compares_by_dot(self.embedder)
        return not self.embedder.options.several and self.options.similarity == "dot"

    @property
    def stored(self) -> bool:
        """Whether the vectors of the corpus are there, and no killed run that can be resumed."""
        path = self.options.vectors
        is_begun = self.reader and path and OutputFiles(path).is_interrupted
        return path is not None and path.exists() and not is_begun

    @property
    def store(self) -> VectorFile | TemporaryVectors:
        """The vectors of the corpus."""
        return self.temporary or VectorFile(str(self.options.vectors))

    @property
    def texts(self) -> Reader:
        """The texts of a corpus that has any."""
        assert self.reader is not None
        return self.reader

    def writing(self) -> VectorRun:
        """Return the run that writes the vectors of the corpus, or resumes one."""
        path = Path(str(self.options.vectors))
        reader = self.texts.again(keep=None)
        target = VectorTarget(path, format_of(path), resume=True)
        return VectorRun(self.embedder, reader, target)

    def indexing(self) -> IndexUpdate:
        """Return what has to be done so that the index has the texts of the corpus."""
        options = self.options
        assert options.index is not None
        texts = self.texts
        return IndexUpdate.plan(
            options.index, self.embedder, texts, options.corpus or texts.source.paths, self.index
        )

    def hit_texts(self, terms: Bm25 | None = None) -> CorpusTexts | IndexTexts | None:
        """Return the texts of hits, whose terms are added to ``terms``; None for vectors alone."""
        if self.index is not None:
            if terms:
                self.index.add_terms(terms)
            keep = None if self.reader else self.options.keep_fields
            return IndexTexts(self.index, keep, with_empty=self.options.skip_empty is False)
        return CorpusTexts(self, terms) if self.reader else None

    def _lexical_answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        """Yield the texts of the index with the terms of queries, as these come."""
        terms = Bm25(self.embedder.runtime.tokenizer)
        texts = self.hit_texts(terms)
        assert texts is not None
        for batch in record_windows(queries, AT_ONCE):
            matches = [terms.best(query, self.options.top_k) for query in batch]
            rows = rows_of(matches)
            yield answers_of(batch, matches, texts.records(rows, len(terms.postings.lengths)))

    def answering(self, queries: Iterable[Sequence[Record]]) -> Iterable[list[Answer]]:
        """Yield answers from the vectors that are stored, as soon as queries come.

        Raises InputError when they were made from other texts than those of the corpus.
        """
        if self.options.lexical:
            return self.rerank(self._lexical_answering(queries))
        return self.rerank(self._answering(queries))

    def _answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        options = self.options
        top_k = options.top_k
        index = Bm25(self.embedder.runtime.tokenizer) if self.options.hybrid else None
        texts = self.hit_texts(index)
        depth = max(top_k, DEPTH) if index else top_k
        for batch in record_windows(queries, AT_ONCE):
            nearest = self.asking(batch, depth)
            if texts:
                nearest.excluded = np.array(texts.empty, int)
            if self.index is not None:
                add_indexed(nearest, self.index)
            else:
                add_stored(nearest, self.store, self.embedder.term_names)
            matches = nearest.matches()
            if index:
                constants = options.rank_constant, options.lexical_weight
                matches = [
                    fuse(best, index.best(query, depth, of_literals=True), top_k, *constants)
                    for query, best in zip(batch, matches, strict=True)
                ]
            rows = rows_of(matches)
            if texts:
                records = texts.records(rows, nearest.rows)
            else:
                records = records_at(str(options.vectors), rows, options.keep_fields)
            answers = answers_of(batch, matches, records)
            if texts is None and options.skip_empty is not False:
                for answer in answers:
                    # A row without a text, None, is no empty one.
                    answer.hits[:] = [hit for hit in answer.hits if str(hit.record.text).strip()]
            yield answers

    def empty_rows(self, records: Iterable[Record], first: int) -> list[int]:
        """Return the rows of empty texts that may be no hits; the first record is row ``first``."""
        if self.options.skip_empty is False:
            return []
        return [row for row, record in enumerate(records, first) if is_empty(record)]

    def asking(self, queries: Sequence[Record], top_k: int | None = None) -> Collector:
        """Return what collects the rows nearest to some queries."""
        embedder = self.asker or self.embedder
        asking = embedder.with_prompt(QUERY_PROMPTS, self.options.query_prompt)
        run = RecordVectors(asking, queries)
        self.asked.merge(run.execute())
        limits = top_k or self.options.top_k, self.options.threshold
        if asking.options.several:
            many = [vectors for block in run.blocks for vectors in block.vectors]
            return (TermProducts if asking.terms else MaxSim)(many, *limits)
        return Nearest(run.vectors, *limits, dot=self.by_dot)


@contextmanager
def stored_vectors(search: Search, display: Display) -> Iterator[Search]:
    """Yield the search once the vectors of its corpus are stored, for a while if need be."""
    if search.reader:
        refuse_pipes(search.reader)
    if search.options.index is not None:
        if search.reader:
            _update_index(search, display)
        yield search
        return
    if search.options.vectors is not None:
        if not search.stored:
            _embed_corpus(search.writing(), search, display)
        yield search
        return
    with closing(TemporaryVectors(search)) as search.temporary:
        _embed_corpus(search.temporary, search, display)
        yield search


def _update_index(search: Search, display: Display) -> None:
    """Update the index of a corpus, and say what has changed."""
    update = search.indexing()
    if update.is_current:
        update.settle()
        if search.index is not None:
            search.index.spellings = update.spellings
        return
    run = update.run()
    display.follow(run)
    display.warn(run.tally.truncation(search.embedder.max_length))
    if run.reader.records:
        run.reader.summarize(display)
    search.index = open_index(update.path)
    if search.index is not None:
        search.index.spellings = update.spellings
        display.note(update.summary(search.index))


def _embed_corpus(run: VectorRun | EmbedRun, search: Search, display: Display) -> None:
    """Compute the vectors of a corpus, and say whether they are kept."""
    display.follow(run)
    display.warn(run.tally.truncation(search.embedder.max_length))
    if file := search.options.vectors:
        texts = counted(run.tally.records, "text")
        display.note(f"vectors of {texts} kept in {file} for the next search")


def answers(search: Search, queries: Reader, display: Display) -> Iterator[list[Answer]]:
    """Yield the answers as queries come, or after a pass over texts whose vectors are not kept."""
    options = search.options
    if options.index is not None or options.vectors is not None or options.hybrid:
        with stored_vectors(search, display) as stored:
            yield from stored.answering(queries.blocks())
        return
    run = PassingSearch(search, list(queries))
    _embed_corpus(run, search, display)
    yield from search.rerank([run.answers()])


def compares_by_dot(embedder: Embedder) -> bool:
    """Return whether the model's folder says that its vectors are compared by dot product."""
    options = embedder.options
    return not (options.several or options.normalize) and embedder.sentence.similarity == "dot"


class VectorFile:
    """Vectors of a corpus in a file of whatever program."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.manifest = manifest_of(path)

    def blocks(self, dim: int, *, of_others: bool = False) -> Iterator[Array]:
        """Yield vectors, one a text, as `vectors_in` does."""
        return vectors_in(self.path, dim, of_others=of_others)

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield several vectors a text, or weights of terms, as `stored_lists` does."""
        return stored_lists(self.path, names)

    @property
    def index(self) -> IndexFile | None:
        """The index of the terms of the texts."""
        manifest = self.manifest
        return IndexFile(Path(self.path), manifest.text("sha256"), manifest.text("corpus_sha256"))

    def refuse_others(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the vectors, so many, are those of the texts in the digest."""
        made_of = self.manifest.get("corpus_sha256", digest.texts)  # other programs write none
        if rows != digest.records or made_of != digest.texts:
            raise InputError(
                f"{self.path}: has {counted(rows, 'row')}, and the corpus has "
                f"{counted(digest.records, 'text')}: it was made from other texts",
                f"{option('index')} FOLDER follows a corpus that changes; delete {self.path} to "
                f"make it again, or leave out {option('vectors')}",
            )


class TemporaryVectors(EmbedRun):
    """Vectors of a corpus that are not kept: execute it once, which computes them. To be closed.

    They are in a temporary file without a name, so a kill leaves nothing.
    """

    index = None

    def __init__(self, search: Search) -> None:
        super().__init__(search.embedder, search.texts.again(keep=None), self._add, full=True)
        self.digest = InputDigest()
        with no_room_explained():
            self.spool = Spool()
        self.close = self.spool.close

    def _add(self, block: EmbeddedBlock) -> None:
        self.digest.add(block.records)
        with no_room_explained():
            self.spool.add(block.vectors)

    def blocks(self, dim: int, *, of_others: bool = False) -> Iterator[Array]:
        """Yield vectors, one a text: [n, D]."""
        yield self.embedder.nothing
        yield from self.spool

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield several vectors a text, or weights of terms, of some texts at a time."""
        yield from self.spool

    def refuse_others(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the texts in the digest are those that were embedded."""
        if rows != digest.records or self.digest.texts != digest.texts:
            names = ", ".join(self.reader.source.paths)
            raise InputError(f"{names}: was changed while it was read", "run the command again")


@contextmanager
def no_room_explained() -> Iterator[None]:
    """Raise OutputError where the temporary folder takes no more."""
    try:
        yield
    except OSError as failed:
        raise unwritable(gettempdir(), failed, OTHER_FOLDER) from None


def add_stored(
    nearest: Collector, store: VectorFile | TemporaryVectors, names: TermNames | None = None
) -> None:
    """Add all vectors of a corpus; ``names`` are those of terms."""
    if not isinstance(nearest, Nearest):
        for texts in store.lists(names):
            nearest.add(texts)
        return
    for vectors in store.blocks(nearest.queries.shape[1]):
        nearest.add(vectors)


def add_indexed(nearest: Collector, index: SearchIndex) -> None:
    """Add all vectors of an index, which has one for each row."""
    assert isinstance(nearest, Nearest)  # as --index excludes --sparse and --token-vectors
    for vectors in index.blocks(nearest.queries.shape[1]):
        nearest.add(vectors)


def corpus_vectors(search: Search, *, of_others: bool = False) -> Array:
    """Return the vectors that are stored, of length 1, in a temporary file: [n, D].

    Raises InputError for those that `vectors_in` refuses, and for NaN or infinity.
    """

    def units() -> Iterator[Array]:
        rows = 0
        width = search.embedder.nothing.shape[-1]
        for block in search.store.blocks(width, of_others=of_others):
            refuse_infinite(block, rows)
            rows += len(block)
            yield unit(block)

    return put_aside(units())


class PassingSearch(EmbedRun):
    """Queries on their way through texts whose vectors are not kept: execute it once."""

    def __init__(self, search: Search, queries: Sequence[Record]) -> None:
        self.search, self.queries, self.nearest = search, queries, search.asking(queries)
        self.texts: Texts = {}
        super().__init__(search.embedder, search.texts, self._see)

    def answers(self) -> list[Answer]:
        """Return the answers, once all texts were seen."""
        return answers_of(self.queries, self.nearest.matches(), self.texts)

    def _see(self, block: EmbeddedBlock) -> None:
        """Keep the texts of the rows that are nearest so far."""
        first = self.nearest.rows
        vectors: Any = block.vectors
        self.nearest.excluded = np.array(self.search.empty_rows(block.records, first), int)
        self.nearest.add(vectors)
        near = rows_of(self.nearest.matches())
        fresh = {row: block.records[row - first] for row in near if row >= first}
        self.texts = {row: text for row, text in (self.texts | fresh).items() if row in near}


def lexical_answers(
    queries: Iterable[Sequence[Record]], reader: Reader, tokenizer: Tokenizer, top_k: int
) -> Iterator[list[Answer]]:
    """Yield the texts with the terms of queries, as these come: no model is needed."""
    index = Bm25(tokenizer)
    for block in reader.blocks():
        index.add(block)
    for batch in record_windows(queries, AT_ONCE):
        matches = [index.best(query, top_k) for query in batch]
        yield answers_of(batch, matches, texts_at(rows_of(matches), reader.again().blocks()))


def rows_of(matches: Iterable[Iterable[Match]]) -> set[int]:
    """Return the rows that are best for any query."""
    return {match.row for best in matches for match in best}


def texts_at(rows: Container[int], blocks: Iterable[Sequence[Record]]) -> Texts:
    """Return the texts of some rows among all."""
    records = enumerate(chain.from_iterable(blocks))
    return {row: record for row, record in records if row in rows}


def answers_of(
    queries: Sequence[Record], matches: Iterable[Sequence[Match]], texts: Texts
) -> list[Answer]:
    """Return what was found."""
    return [
        Answer(
            query,
            [match._replace(record=texts.get(match.row, NO_TEXT)) for match in best],
        )
        for query, best in zip(queries, matches, strict=True)
    ]


Texts = dict[int, Record]  # by the number of their row

# Fields of what is written beside vectors, or of a hit, that are not shown as fields of a text.
OF_HITS = frozenset(
    {"query", "rank", "score", "row", "id", "text", "dense_rank", "lexical_rank", "retrieval_score"}
)
OF_VECTORS = OF_HITS | {*WRITTEN, *PIECES, VECTORS, TERMS, INDICES, VALUES, STOP, DIGEST}
OWN = ("id", "text")  # of what is written beside vectors


class CorpusTexts:
    """The texts of vectors that are stored, which are read again where they are needed.

    ``empty`` are the rows of texts that may be no hits. Given an ``index``, the terms of all texts
    are added to it, or read where they are kept beside the vectors.
    """

    def __init__(self, search: Search, index: Bm25 | None = None) -> None:
        self.store = search.store
        self.reader = search.texts
        self.digest = InputDigest()
        self.empty = array("q")
        file = self.store.index if index else None
        postings = file.read() if file else None
        for block in self.reader.blocks():
            if index and not postings:
                index.add(block)
            self.empty.extend(search.empty_rows(block, self.digest.records))
            self.digest.add(block)
        if index and postings and len(postings.lengths) == self.digest.records:
            index.postings = postings
            return
        if index and postings:  # of other texts, whatever it says
            for block in self.reader.again().blocks():
                index.add(block)
        if index and file and file.texts == self.digest.texts:
            file.write(index.postings)

    def records(self, rows: Container[int], count: int) -> Texts:
        """Return some of ``count`` texts. Raises InputError as `blocks` does."""
        return texts_at(rows, self.blocks(count))

    def blocks(self, count: int) -> Iterable[Sequence[Record]]:
        """Return all of ``count`` texts.

        Raises InputError when they are other texts than those that the vectors were made of.
        """
        self.store.refuse_others(count, self.digest)
        return self.reader.again().blocks()


def records_at(path: str, rows: Container[int], keep: str | None = None) -> Texts:
    """Return what was kept with the vectors of these rows: ids, texts and other fields.

    They stand in the rows of JSONL, CSV and Parquet, in an array of NPZ (ids alone), else in an
    index; a text that is not there is None. ``keep`` names the other fields; None: all.
    Raises InputError when they cannot be read.
    """
    records = Texts()
    names = None if keep in (None, "*") else [name.strip() for name in str(keep).split(",")]
    for row, fields in enumerate(_fields_in(path, rows)):
        if row not in rows:
            continue
        hidden = OF_VECTORS | ({START} if STOP in fields else set())  # of tokens, not of a chunk
        extra = {name: value for name, value in fields.items() if name not in hidden}
        for name in names or ():
            if name not in extra:
                available = f"available: {listed(extra)}"
                raise InputError(f"{path}: field {name!r} not found", available)
        text: Any = fields.get("text")
        shown = extra if names is None else {name: extra[name] for name in names}
        records[row] = Record(text, id=fields.get("id"), extra=shown)
    return records


def _fields_in(path: str, chosen: Container[int]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each row. Lines of JSON are parsed for ``chosen`` rows only."""
    entry = FORMATS[form_of(path)]
    index = OutputFiles(Path(path)).index
    if entry.can_hold(Holds.ARRAYS) and is_regular(index, InputError, MAKE_AGAIN):
        for row, (where, fields) in enumerate(_objects_in(str(index), chosen)):
            if fields.get(ROW, row) != row:
                raise InputError(f"{where}: not the index of row {row}", MAKE_AGAIN)
            yield fields
    elif entry.can_hold(Holds.IDS):
        with open_arrays(path, path, entry.name) as arrays:
            for block in arrays[IDS]().blocks(ROWS) if IDS in arrays else ():
                yield from ({"id": key or None} for key in block.tolist())
    elif entry.is_json:
        for _, fields in _objects_in(path, chosen):
            yield fields
    elif entry.is_columnar:
        with parquet_table(path) as table:
            own = [name for name in table.names if name in OWN or name not in OF_VECTORS]
            for _, columns in table.columns(own):
                for values in zip(*(columns[name] for name in own), strict=True):
                    yield dict(zip(own, values, strict=True))
    elif entry.can_hold(Holds.ROWS):
        reader = Reader(Input.of(paths=(path,), text_field=VECTOR, no_pairs=True, keep="*"))
        yield from ({"id": record.id, **(record.extra or {})} for record in reader)


def _objects_in(path: str, chosen: Container[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and fields of each line of JSON; none of rows that are not ``chosen``."""
    with open_bytes(path) as stream:
        for row, (number, line) in enumerate(chain.from_iterable(lines_of(stream, path))):
            where = f"{path}:{number}"
            value = value_of(line, where) if row in chosen else []
            yield where, {} if isinstance(value, list) else object_in(value, where)


@dataclass
class Mining:
    """A pass over pairs of anchor and positive. ``negatives`` counts what was found."""

    search: Search
    reader: Reader
    margin: float = 0.0
    pairs: int = 0
    negatives: int = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Yield rows with an anchor, its positive and a negative: as many as are found of each.

        Raises InputError for a record without a positive.
        """
        texts = CorpusTexts(self.search)
        excluded = self._excluded(texts)
        pairs: list[tuple[Text, Text]] = []
        not_negative: dict[Text, set[Text]] = defaultdict(set)  # of an anchor
        for record in self.reader:
            if record.pair is None:
                raise InputError(
                    f"{record.where}: has no positive",
                    'a record is an object like {"anchor": "...", "positive": "..."}',
                )
            pairs.append((record.text, record.pair))
            not_negative[record.text] |= {record.text, record.pair}
        self.pairs = len(pairs)
        for start in range(0, len(pairs), AT_ONCE):
            batch = pairs[start : start + AT_ONCE]
            top_k = self.search.options.top_k
            most = top_k + max(len(not_negative[anchor]) for anchor, _ in batch)
            nearest = self.search.asking([Record(anchor) for anchor, _ in batch], most)
            assert isinstance(nearest, Nearest)  # as --mine excludes --sparse and --token-vectors
            run = RecordVectors(self.search.embedder, [Record(positive) for _, positive in batch])
            run.execute()
            positives = nearest.scaled(run.vectors)
            scores = np.einsum("nd,nd->n", nearest.queries, positives)
            nearest.excluded = excluded
            nearest.ceilings = scores - self.margin
            add_stored(nearest, self.search.store)
            records = texts_at(rows_of(nearest.matches()), texts.blocks(nearest.rows))
            rows: list[dict[str, Any]] = []
            for (anchor, positive), score, matches in zip(
                batch, scores, nearest.matches(), strict=True
            ):
                negatives = [
                    {"anchor": anchor, "positive": positive, "negative": text, "margin": margin}
                    for match in matches
                    if (margin := round(float(score) - match.score, DIGITS)) >= self.margin
                    and (text := records[match.row].text) not in not_negative[anchor]
                ]
                rows += negatives[:top_k]
            self.negatives += len(rows)
            yield rows

    def _excluded(self, texts: CorpusTexts) -> Array:
        """Return the rows of texts that an earlier row has, or that are empty."""
        seen: set[int] = set()
        rows = [*texts.empty]
        records = chain.from_iterable(texts.blocks(texts.digest.records))
        for row, key in enumerate(hash(str(record.text)) for record in records):
            if key in seen:
                rows.append(row)
            seen.add(key)
        return np.array(rows, int)
