"""Search a corpus with a model: embed queries and texts, and find the nearest texts.

    search = Search.open(folder, EmbedOptions(), SearchOptions(vectors=path), reader)
    if not search.stored:
        search.vector_run().execute()      # computes the vectors of the texts
    for answers in search.answering(queries.blocks()):
        print(answers[0].query.text, answers[0].hits)

Stored vectors answer any number of queries, which are embedded with the options in the manifest of
the vectors. Without stored vectors, a finite set of queries is answered in one pass over the texts.
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
from bertcli.embedding.options import EmbedOptions, read_sentence_settings
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.record_embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, RecordEmbedder
from bertcli.embedding.sentence_modules import describe_modules, read_modules, unit_vectors
from bertcli.embedding.sparse import has_routes
from bertcli.errors import LOG, BertcliError, InputError, UsageError, counted, option
from bertcli.formats.arrays import open_arrays
from bertcli.formats.jsonl import numbered_lines, object_in, value_of
from bertcli.formats.registry import FORMATS, Holds
from bertcli.formats.tables import Spool
from bertcli.formats.vector_files import (
    DIGEST,
    IDS,
    INDICES,
    MAKE_AGAIN,
    ROW,
    ROWS_PER_BLOCK,
    START,
    STOP,
    TERMS,
    VALUES,
    VECTOR,
    VECTORS,
    Array,
    manifest_of,
    memory_mapped,
    open_parquet_columns,
    read_text_vectors,
    read_vector_lists,
    vector_format_of,
)
from bertcli.formats.vector_writer import UNIT_COLUMNS, VECTOR_FIELDS
from bertcli.formats.writers import format_of
from bertcli.io.output_files import OutputFiles
from bertcli.io.printable import listed
from bertcli.io.progress import Display
from bertcli.io.publish import FREE_TEMP_SPACE, unwritable
from bertcli.io.streams import open_bytes
from bertcli.io.system_calls import LargeBlocks
from bertcli.io.threads import checked, in_background
from bertcli.io.typed_json import JsonObject, is_regular, whole_number
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import record_windows
from bertcli.records.input import Input
from bertcli.records.reader import Reader, refuse_pipes
from bertcli.records.record import Record, Text, is_empty, row_of
from bertcli.retrieval.explain import EXPLANATION_FIELDS, Explainer
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
    config_values,
    model_digests,
    refuse_changed_file,
)
from bertcli.runs.vector_run import VectorRun, VectorTarget
from bertcli.tokenizing.run import TokenCounts
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from bertcli.embedding.sparse import TermNames

Collector = Nearest | TermProducts | MaxSim  # collects the best rows for queries
RECORDED_OPTIONS = (  # options of stored vectors, which their queries are embedded with
    "pooling", "layers", "layer_combine", "dim", "max_length", "special_tokens", "parse_special",
    "on_truncate", "stride", "overlap", "at", "word_vectors",
)  # fmt: skip
QUERIES_PER_BATCH = 1024


def recorded_options(
    path: str,
    fingerprint: JsonObject,
    folder: ModelFolder,
    options: EmbedOptions,
    option_name: str = "vectors",
) -> EmbedOptions:
    """Return the options, updated with those that the vectors in a file were computed with.

    ``fingerprint`` comes from the manifest of the vectors; ``option_name`` is the option that names
    the file. Raises InputError if the vectors are of another model, or of another unit (texts,
    words, tokens or terms) than ``options``.
    """
    recorded = fingerprint.object("options")
    model_facts = model_digests(folder)
    if not folder.is_static:
        model_facts["config"] = config_values(folder.config)
    modules = recorded.get("modules") if not options.has_several_rows else None
    if modules:
        model_facts["modules"] = describe_modules(
            read_modules(folder, read_sentence_settings(folder).of_texts)
        )
    for name, value in model_facts.items():
        if {**fingerprint, "modules": modules}.get(name) != value:
            other_model = fingerprint.get("model", "unknown")
            raise InputError(
                f"{path}: was made by another model, {other_model}: its {name} differs",
                f"give {option('model', other_model)}, or leave out {option(option_name)}",
            )
    recorded.text("pooling")
    recorded.switch("special_tokens")
    changes = {name: recorded[name] for name in RECORDED_OPTIONS if recorded.get(name) is not None}
    layers = recorded.entries("layers")
    changes["layers"] = (
        tuple(layers.needed(key, whole_number(-99)) for key in layers) or options.layers
    )
    if modules:
        changes["pooling"] = "auto"
    changes["sparse"] = "sparse" in recorded
    updated = replace(options, token_vectors=False, **changes)
    if updated.row_unit != options.row_unit:
        needed = {
            "terms": f"search with {option('sparse')}",
            "tokens": f"search with {option('token_vectors')}",
        }
        raise InputError(
            f"{path}: holds vectors of {updated.row_unit}, not of {options.row_unit}",
            needed.get(updated.row_unit, f"leave out {option('vectors')}"),
        )
    return updated


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search: number and similarity of hits, and the files of the corpus.

    A prompt of None means the model's prompt for queries or documents.
    """

    top_k: int = 10
    threshold: float | None = None  # minimum similarity of a hit
    similarity: str | None = None  # "cosine" or "dot"; None: the model's
    skip_empty: bool | None = None  # False: empty texts may be hits
    keep_fields: str | None = None  # fields of hits when searching without a corpus; None: all
    query_prompt: str | None = None
    corpus_prompt: str | None = None
    vectors: Path | None = None  # file that is searched if it exists, else written
    index: Path | None = None  # folder of an index, updated if a corpus is given
    corpus: Sequence[str] | None = None  # paths as given by the user
    hybrid: bool = False  # True: fuse dense and lexical search
    lexical: bool = False  # True: search an index by terms only
    rank_constant: float = RANK_CONSTANT  # of reciprocal rank fusion (hybrid)
    lexical_weight: float = 1.0  # weight of lexical ranks; dense ranks have weight 1
    explain: bool = False  # True: add tokens with their shares of the score to hits

    def __post_init__(self) -> None:
        for name in ("hybrid", "lexical"):
            if self.explain and getattr(self, name):
                raise UsageError(
                    f"{option('explain')} cannot be combined with {option(name, True)}",
                    "it divides the scores of a search by vectors",
                )


class Answer(NamedTuple):
    """A query and its hits, best first."""

    query: Record
    hits: list[Match]

    def fields(self) -> dict[str, Any]:
        """Return the output object with the query and all hits."""
        hits = [hit.fields() for hit in self.hits]
        return row_of(self.query, {"query": self.query.text, "hits": hits})

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of an output table, one per hit."""
        return [
            {"query": self.query.text, "rank": rank, "score": hit.score} | hit.fields()
            for rank, hit in enumerate(self.hits, 1)
        ]


@dataclass
class Search:
    """A search with a model over a corpus.

    ``reader`` reads the texts of the corpus; None to search stored vectors or an index only.
    """

    embedder: RecordEmbedder  # embeds the corpus
    options: SearchOptions
    reader: Reader | None
    query_embedder: RecordEmbedder | None = None  # for models that embed queries differently
    temporary: TemporaryVectors | None = None  # vectors of the corpus if not stored
    index: SearchIndex | None = None  # the open index, if there is one
    vectors_check: Future[None] | None = None  # fails if the file was changed after it was made
    rerank: Callable[[Iterable[list[Answer]]], Iterable[list[Answer]]] = iter  # default: unchanged
    explainer: Explainer | None = None
    query_tally: TokenCounts = field(default_factory=TokenCounts, init=False)

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        compute: EmbedOptions,
        options: SearchOptions,
        reader: Reader | None,
    ) -> Search:
        """Load the model and open the stored vectors or index.

        Raises InputError if they were made by another model, or do not exist and ``reader`` is
        None; UsageError for ``explain`` if scores are not sums over tokens.
        """
        if options.explain and compute.sparse:
            raise UsageError(f"{option('explain')} cannot be combined with {option('sparse')}")
        path = str(options.vectors)
        index = None
        check = None
        if options.index is not None:
            path = str(options.index)
            index = open_index(options.index)
            if index is None and reader is None:
                raise InputError(f"{path}: index not found", f"{option('corpus')} FILE makes it")
            if index is not None:
                requested = compute
                compute = recorded_options(path, index.fingerprint, folder, compute, "index")
                if reader is not None:
                    recorded_chunking = {"on_truncate": compute.on_truncate, "at": compute.at}
                    chunking = {"on_truncate": requested.on_truncate, "at": requested.at}
                    refuse_other_options(options.index, recorded_chunking, chunking)
        elif options.vectors is not None and options.vectors.exists():
            OutputFiles(options.vectors).tidy()
            manifest = manifest_of(path)
            if fingerprint := manifest.object("fingerprint"):
                compute = recorded_options(path, fingerprint, folder, compute)
            else:
                LOG.warn(
                    f"{path}: no manifest says which model made it; assuming it was {folder.name}"
                )
            if digest := manifest.text("sha256"):
                check = in_background(
                    refuse_changed_file, options.vectors, digest, InputError, MAKE_AGAIN
                )
        elif reader is None:
            raise InputError(
                f"{path}: file not found", f"{option('corpus')} FILE computes the vectors"
            )
        embedder = RecordEmbedder.open(folder, compute)
        similarity = embedder.sentence.similarity
        scores = {"texts": "cosines", "terms": "dot products"}.get(compute.row_unit, "MaxSim")
        available = (None, "cosine", "dot", scores.lower())
        if not options.similarity and (similarity and similarity.lower()) not in available:
            LOG.warn(f"{similarity} similarity, the model's, is not available; scores are {scores}")
        query_embedder = None
        if compute.sparse and has_routes(folder):
            query_options = replace(
                compute,
                prompt_name=QUERY_PROMPTS[0],
                max_length=None,
                special_tokens=True,
                pooling="auto",
            )
            query_embedder = RecordEmbedder.open(folder, query_options)
        embedder = embedder.with_prompt(DOCUMENT_PROMPTS, options.corpus_prompt)
        return cls(
            embedder,
            options,
            reader and embedder.divide_texts(reader),
            query_embedder,
            index=index,
            vectors_check=check,
            explainer=Explainer(embedder) if options.explain else None,
        )

    def over(self, reader: Reader) -> Search:
        """Return a search over other texts, whose vectors are not stored, with the same model."""
        options = replace(self.options, vectors=None, index=None)
        return replace(
            self, options=options, reader=self.embedder.divide_texts(reader), temporary=None
        )

    @property
    def by_dot(self) -> bool:
        """True if vectors are compared by dot product, by option or by the model's setting."""
        if self.options.similarity is None:
            return compares_by_dot(self.embedder)
        return not self.embedder.options.has_several_rows and self.options.similarity == "dot"

    @property
    def stored(self) -> bool:
        """True if the file of vectors is complete: it exists, with no interrupted run to resume."""
        path = self.options.vectors
        is_interrupted = self.reader and path and OutputFiles(path).is_interrupted
        return path is not None and path.exists() and not is_interrupted

    @property
    def store(self) -> VectorFile | TemporaryVectors:
        """The vectors of the corpus, stored or temporary."""
        return self.temporary or VectorFile(str(self.options.vectors), self.vectors_check)

    @property
    def texts(self) -> Reader:
        """The reader of the corpus, which must not be None."""
        assert self.reader is not None
        return self.reader

    def wait_for_check(self) -> None:
        """Wait for the check of stored vectors, if any; raise InputError if they were changed."""
        if self.index is not None:
            self.index.check.result()
        elif self.vectors_check:
            self.vectors_check.result()

    def vector_run(self) -> VectorRun:
        """Return the run that writes the vectors of the corpus, resuming an interrupted one."""
        path = Path(str(self.options.vectors))
        reader = self.texts.again(keep=None)
        target = VectorTarget(path, format_of(path), resume=True)
        return VectorRun(self.embedder, reader, target)

    def index_update(self) -> IndexUpdate:
        """Return the planned update of the index to the corpus."""
        options = self.options
        assert options.index is not None
        texts = self.texts
        return IndexUpdate.plan(
            options.index, self.embedder, texts, options.corpus or texts.source.paths, self.index
        )

    def open_texts(self, terms: Bm25 | None = None) -> CorpusTexts | IndexTexts | None:
        """Return the texts of the corpus or index, and add their terms to the index ``terms``.

        Returns None if stored vectors are searched without a corpus.
        """
        if self.index is not None:
            if terms:
                self.index.add_terms(terms)
            keep = None if self.reader else self.options.keep_fields
            return IndexTexts(self.index, keep, with_empty=self.options.skip_empty is False)
        return CorpusTexts(self, terms) if self.reader else None

    def _lexical_answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        """Yield the answers of a lexical search of the index, one batch of queries at a time."""
        self.wait_for_check()
        terms = Bm25(self.embedder.runtime.tokenizer)
        texts = self.open_texts(terms)
        assert texts is not None
        for batch in record_windows(queries, QUERIES_PER_BATCH):
            matches = [terms.best(query, self.options.top_k) for query in batch]
            rows = rows_of(matches)
            yield answers_of(batch, matches, texts.records(rows, len(terms.postings.lengths)))

    def answering(self, queries: Iterable[Sequence[Record]]) -> Iterable[list[Answer]]:
        """Yield answers from the stored vectors, one batch of queries at a time.

        Raises InputError if the vectors were made from other texts than the corpus has.
        """
        if self.options.lexical:
            return self.rerank(self._lexical_answering(queries))
        return self.rerank(self._answering(queries))

    def _answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        """Yield the answers of a search by vectors, or of a hybrid search."""
        options = self.options
        top_k = options.top_k
        terms = Bm25(self.embedder.runtime.tokenizer) if options.hybrid else None
        texts = self.open_texts(terms)
        depth = max(top_k, DEPTH) if terms else top_k
        for batch in record_windows(queries, QUERIES_PER_BATCH):
            nearest = self.collector(batch, depth)
            if texts:
                nearest.excluded = np.array(texts.empty, int)
            if self.index is not None:
                add_indexed(nearest, self.index)
            else:
                add_stored(nearest, self.store, self.embedder.term_names)
            matches = nearest.matches()
            if terms:
                fused = []
                for query, dense in zip(batch, matches, strict=True):
                    lexical = terms.best(query, depth, of_literals=True)
                    fused.append(
                        fuse(dense, lexical, top_k, options.rank_constant, options.lexical_weight)
                    )
                matches = fused
            rows = rows_of(matches)
            if texts:
                records = texts.records(rows, nearest.rows)
            else:
                records = stored_records(str(options.vectors), rows, options.keep_fields)
            answers = answers_of(batch, matches, records)
            if texts is None and options.skip_empty is not False:
                for answer in answers:
                    # None, a row without a stored text, is not an empty text.
                    answer.hits[:] = [hit for hit in answer.hits if str(hit.record.text).strip()]
            yield self.explained(answers, nearest)

    def explained(self, answers: list[Answer], nearest: Collector) -> list[Answer]:
        """Return answers with the shares of tokens in the scores, if requested."""
        if self.explainer is None or isinstance(nearest, TermProducts):
            return answers
        hits_of_queries = self.explainer.explain([answer.hits for answer in answers], nearest)
        return [
            answer._replace(hits=hits)
            for answer, hits in zip(answers, hits_of_queries, strict=True)
        ]

    def empty_rows(self, records: Iterable[Record], first_row: int) -> list[int]:
        """Return the rows of empty texts to exclude from hits; records start at ``first_row``."""
        if self.options.skip_empty is False:
            return []
        return [row for row, record in enumerate(records, first_row) if is_empty(record)]

    def collector(self, queries: Sequence[Record], top_k: int | None = None) -> Collector:
        """Embed queries and return the collector of their nearest rows."""
        embedder = self.query_embedder or self.embedder
        embedder = embedder.with_prompt(QUERY_PROMPTS, self.options.query_prompt)
        run = RecordVectors(embedder, queries)
        self.query_tally.merge(run.execute())
        k = top_k or self.options.top_k
        threshold = self.options.threshold
        if not embedder.options.has_several_rows:
            return Nearest(run.vectors, k, threshold, dot=self.by_dot)
        vectors: list[Array] = []
        for block in run.blocks:
            vectors += block.vectors
        return (TermProducts if embedder.terms else MaxSim)(vectors, k, threshold)


@contextmanager
def stored_vectors(search: Search, display: Display) -> Iterator[Search]:
    """Yield the search with the vectors of its corpus computed or updated.

    Without a file or an index, the vectors are temporary and removed at the end. Raises InputError
    at the end if stored vectors were changed after they were made.
    """
    with _vectors_of(search, display):
        LargeBlocks.keep()  # NumPy allocates and frees arrays of scores for each block of vectors
        try:
            yield search
        except BertcliError:  # changed vectors may be the cause: raise the error of the check
            search.wait_for_check()
            raise
        search.wait_for_check()


@contextmanager
def _vectors_of(search: Search, display: Display) -> Iterator[None]:
    """Compute or update the vectors of a corpus, and close those that are temporary."""
    if search.reader:
        refuse_pipes(search.reader)
    if search.options.index is not None:
        if search.reader:
            _update_index(search, display)
        yield
        return
    if search.options.vectors is not None:
        if not search.stored:
            search.wait_for_check()
            _embed_corpus(search.vector_run(), search, display)
            search.vectors_check = None  # of the file that was just replaced
        yield
        return
    with closing(TemporaryVectors(search)) as search.temporary:
        _embed_corpus(search.temporary, search, display)
        yield


def _update_index(search: Search, display: Display) -> None:
    """Update the index of a corpus, and display the number of changes."""
    update = search.index_update()
    if update.is_current:
        update.update_file_times()
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
    """Compute the vectors of a corpus, and display the file that keeps them, if any."""
    display.follow(run)
    display.warn(run.tally.truncation(search.embedder.max_length))
    if file := search.options.vectors:
        texts = counted(run.tally.records, "text")
        display.note(f"vectors of {texts} kept in {file} for the next search")


def answers(search: Search, queries: Reader, display: Display) -> Iterator[list[Answer]]:
    """Yield the answers to queries.

    With stored vectors or an index, answers are yielded as queries arrive; otherwise after all
    queries are read and one pass over the corpus is done.
    """
    options = search.options
    if options.index is not None or options.vectors is not None or options.hybrid:
        with stored_vectors(search, display) as stored:
            yield from stored.answering(queries.blocks())
        return
    run = PassingSearch(search, list(queries))
    _embed_corpus(run, search, display)
    yield from search.rerank([run.answers()])


def compares_by_dot(embedder: RecordEmbedder) -> bool:
    """Return True if the model's similarity is the dot product and vectors are not normalized."""
    options = embedder.options
    return (
        not (options.has_several_rows or options.normalize)
        and embedder.sentence.similarity == "dot"
    )


class VectorFile:
    """Vectors of a corpus in a file, which may be written by another program."""

    def __init__(self, path: str, check: Future[None] | None = None) -> None:
        self.path = path
        self.manifest = manifest_of(path)
        self.check = check

    def blocks(self, dim: int, *, any_model: bool = False) -> Iterator[Array]:
        """Yield blocks of vectors, one vector per text, as `read_text_vectors` does.

        Then raises InputError if the file was changed after it was made.
        """
        blocks = read_text_vectors(self.path, dim, any_model=any_model)
        return checked(blocks, self.check) if self.check else blocks

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield lists of token vectors or term weights per text, as `read_vector_lists` does.

        Then raises InputError as above.
        """
        lists = read_vector_lists(self.path, names)
        return checked(lists, self.check) if self.check else lists

    @property
    def index(self) -> IndexFile | None:
        """The file of the BM25 index beside the vectors."""
        manifest = self.manifest
        return IndexFile(Path(self.path), manifest.text("sha256"), manifest.text("corpus_sha256"))

    def refuse_other_texts(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the vectors, ``rows`` of them, belong to the digested texts."""
        # Files of other programs have no digest.
        recorded_digest = self.manifest.get("corpus_sha256", digest.texts)
        if rows != digest.records or recorded_digest != digest.texts:
            raise InputError(
                f"{self.path}: has {counted(rows, 'row')}, and the corpus has "
                f"{counted(digest.records, 'text')}: it was made from other texts",
                f"{option('index')} FOLDER follows a corpus that changes; delete {self.path} to "
                f"make it again, or leave out {option('vectors')}",
            )


class TemporaryVectors(EmbedRun):
    """A run that computes the vectors of a corpus to a temporary file. Execute once, then close.

    The file has no name, so a killed process leaves no file.
    """

    index = None

    def __init__(self, search: Search) -> None:
        super().__init__(search.embedder, search.texts.again(keep=None), self._add, full=True)
        self.digest = InputDigest()
        with errors_of_temporary_folder():
            self.spool = Spool()
        self.close = self.spool.close

    def _add(self, block: EmbeddedBlock) -> None:
        """Store the vectors of a block, and add its texts to the digest."""
        self.digest.add(block.records)
        with errors_of_temporary_folder():
            self.spool.add(block.vectors)

    def blocks(self, dim: int, *, any_model: bool = False) -> Iterator[Array]:
        """Yield blocks of vectors [n, D], one vector per text."""
        yield self.embedder.empty_output
        yield from self.spool

    def lists(self, names: TermNames | None) -> Iterator[Sequence[Array]]:
        """Yield lists of token vectors or term weights, for some texts at a time."""
        yield from self.spool

    def refuse_other_texts(self, rows: int, digest: InputDigest) -> None:
        """Raise InputError unless the digested texts are the embedded texts."""
        if rows != digest.records or self.digest.texts != digest.texts:
            names = ", ".join(self.reader.source.paths)
            raise InputError(f"{names}: was changed while it was read", "run the command again")


@contextmanager
def errors_of_temporary_folder() -> Iterator[None]:
    """Turn an OSError of the temporary folder, such as a full disk, into an OutputError."""
    try:
        yield
    except OSError as error:
        raise unwritable(gettempdir(), error, FREE_TEMP_SPACE) from None


def add_stored(
    nearest: Collector, store: VectorFile | TemporaryVectors, names: TermNames | None = None
) -> None:
    """Add all vectors or terms of a corpus to a collector; ``names`` are the names of terms."""
    if not isinstance(nearest, Nearest):
        for texts in store.lists(names):
            nearest.add(texts)
        return
    for vectors in store.blocks(nearest.queries.shape[1]):
        nearest.add(vectors)


def add_indexed(nearest: Collector, index: SearchIndex) -> None:
    """Add all vectors of an index to a collector."""
    assert isinstance(nearest, Nearest)  # as --index excludes --sparse and --token-vectors
    for vectors in index.blocks(nearest.queries.shape[1]):
        nearest.add(vectors)


def corpus_vectors(search: Search, *, any_model: bool = False) -> Array:
    """Return the stored vectors normalized to length 1, [n, D], mapped from a temporary file.

    Raises InputError for vectors that `read_text_vectors` refuses, and for NaN or infinity.
    """
    return memory_mapped(unit_blocks(search, any_model=any_model))


def unit_blocks(search: Search, *, any_model: bool = False) -> Iterator[Array]:
    """Yield the stored vectors normalized to length 1, in blocks [n, D]. Raises as above."""
    rows = 0
    width = search.embedder.empty_output.shape[-1]
    for block in search.store.blocks(width, any_model=any_model):
        refuse_infinite(block, rows)
        rows += len(block)
        yield unit_vectors(block)


class PassingSearch(EmbedRun):
    """A run that answers queries in one pass over the texts, without storing vectors."""

    def __init__(self, search: Search, queries: Sequence[Record]) -> None:
        self.search = search
        self.queries = queries
        self.nearest = search.collector(queries)
        self.texts: Texts = {}
        super().__init__(search.embedder, search.texts, self._add_block)

    def answers(self) -> list[Answer]:
        """Return the answers, after the run has been executed."""
        answers = answers_of(self.queries, self.nearest.matches(), self.texts)
        return self.search.explained(answers, self.nearest)

    def _add_block(self, block: EmbeddedBlock) -> None:
        """Add a block, and keep only the texts of the rows that are nearest so far."""
        first = self.nearest.rows
        vectors: Any = block.vectors
        self.nearest.excluded = np.array(self.search.empty_rows(block.records, first), int)
        self.nearest.add(vectors)
        best_rows = rows_of(self.nearest.matches())
        texts = {row: text for row, text in self.texts.items() if row in best_rows}
        for row in best_rows:
            if row >= first:
                texts[row] = block.records[row - first]
        self.texts = texts


def lexical_answers(
    queries: Iterable[Sequence[Record]], reader: Reader, tokenizer: Tokenizer, top_k: int
) -> Iterator[list[Answer]]:
    """Yield the answers of a lexical search, one batch of queries at a time, without a model."""
    terms = Bm25(tokenizer)
    for block in reader.blocks():
        terms.add(block)
    for batch in record_windows(queries, QUERIES_PER_BATCH):
        matches = [terms.best(query, top_k) for query in batch]
        yield answers_of(batch, matches, records_of_rows(rows_of(matches), reader.again().blocks()))


def rows_of(matches: Iterable[Iterable[Match]]) -> set[int]:
    """Return the rows of all matches."""
    return {match.row for best in matches for match in best}


def records_of_rows(rows: Container[int], blocks: Iterable[Sequence[Record]]) -> Texts:
    """Return the records of the given rows; ``blocks`` are all records in order."""
    records = enumerate(chain.from_iterable(blocks))
    return {row: record for row, record in records if row in rows}


def answers_of(
    queries: Sequence[Record], matches: Iterable[Sequence[Match]], texts: Texts
) -> list[Answer]:
    """Return the answers to queries: their matches with the records of the rows."""
    return [
        Answer(
            query,
            [match._replace(record=texts.get(match.row, NO_TEXT)) for match in best],
        )
        for query, best in zip(queries, matches, strict=True)
    ]


Texts = dict[int, Record]  # by row

# Fields of hits that are not carried fields.
HIT_FIELDS = frozenset(
    {"query", "rank", "score", "row", "id", "text", "dense_rank", "lexical_rank", "retrieval_score"}
)
# Fields of rows stored with vectors that are not carried fields.
STORED_FIELDS = HIT_FIELDS | {
    *VECTOR_FIELDS,
    *UNIT_COLUMNS,
    VECTORS,
    TERMS,
    INDICES,
    VALUES,
    STOP,
    DIGEST,
}
RECORD_FIELDS = ("id", "text")  # those of `STORED_FIELDS` that are parts of a record


def hit_fields(*, explain: bool) -> frozenset[str]:
    """Return the fields of hits that no carried field may be called."""
    return HIT_FIELDS | EXPLANATION_FIELDS if explain else HIT_FIELDS


class CorpusTexts:
    """The texts of a corpus with stored vectors, read again from the input when needed.

    ``empty`` are the rows of empty texts to exclude from hits. With an index ``terms``, the terms
    of all texts are added to it, or read from the index file beside the vectors.
    """

    def __init__(self, search: Search, terms: Bm25 | None = None) -> None:
        self.store = search.store
        self.reader = search.texts
        self.digest = InputDigest()
        self.empty = array("q")
        file = self.store.index if terms else None
        postings = file.read() if file else None
        for block in self.reader.blocks():
            if terms and not postings:
                terms.add(block)
            self.empty.extend(search.empty_rows(block, self.digest.records))
            self.digest.add(block)
        if terms and postings and len(postings.lengths) == self.digest.records:
            terms.postings = postings
            return
        if terms and postings:  # stale postings of other texts
            for block in self.reader.again().blocks():
                terms.add(block)
        if terms and file and file.texts_digest == self.digest.texts:
            file.write(terms.postings)

    def records(self, rows: Container[int], count: int) -> Texts:
        """Return the texts of the given rows. Raises InputError as `blocks` does."""
        return records_of_rows(rows, self.blocks(count))

    def blocks(self, count: int) -> Iterable[Sequence[Record]]:
        """Return all texts.

        Raises InputError if the vectors, ``count`` of them, were made from other texts.
        """
        self.store.refuse_other_texts(count, self.digest)
        return self.reader.again().blocks()


def stored_records(path: str, rows: Container[int], keep: str | None = None) -> Texts:
    """Return the ids, texts and fields stored with the vectors of these rows.

    They are in the rows of JSONL, CSV and Parquet, in an array of NPZ (ids only), else in an index
    beside the vectors. A missing text is None. ``keep`` lists the fields, separated by commas;
    None: all. Raises InputError if they cannot be read or a field is missing.
    """
    records: Texts = {}
    names = None if keep in (None, "*") else [name.strip() for name in str(keep).split(",")]
    for row, fields in enumerate(_stored_fields(path, rows)):
        if row not in rows:
            continue
        hidden = STORED_FIELDS | ({START} if STOP in fields else set())  # of tokens, not a chunk
        carried = {name: value for name, value in fields.items() if name not in hidden}
        for name in names or ():
            if name not in carried:
                available = f"available: {listed(carried)}"
                raise InputError(f"{path}: field {name!r} not found", available)
        text: Any = fields.get("text")
        if names is not None:
            carried = {name: carried[name] for name in names}
        records[row] = Record(text, id=fields.get("id"), extra=carried)
    return records


def _stored_fields(path: str, needed_rows: Container[int]) -> Iterator[dict[str, Any]]:
    """Yield the fields of each row. JSON lines are parsed only for ``needed_rows``."""
    file_format = FORMATS[vector_format_of(path)]
    index = OutputFiles(Path(path)).index
    if file_format.can_hold(Holds.ARRAYS) and is_regular(index, InputError, MAKE_AGAIN):
        for row, (where, fields) in enumerate(_json_objects(str(index), needed_rows)):
            if fields.get(ROW, row) != row:
                raise InputError(f"{where}: not the index of row {row}", MAKE_AGAIN)
            yield fields
    elif file_format.can_hold(Holds.IDS):
        with open_arrays(path, path, file_format.name) as arrays:
            for block in arrays[IDS]().blocks(ROWS_PER_BLOCK) if IDS in arrays else ():
                yield from ({"id": key or None} for key in block.tolist())
    elif file_format.is_json:
        for _, fields in _json_objects(path, needed_rows):
            yield fields
    elif file_format.is_columnar:
        with open_parquet_columns(path) as table:
            hidden = STORED_FIELDS.difference(RECORD_FIELDS)
            names = [name for name in table.names if name not in hidden]
            for _, columns in table.columns(names):
                for values in zip(*(columns[name] for name in names), strict=True):
                    yield dict(zip(names, values, strict=True))
    elif file_format.can_hold(Holds.ROWS):
        reader = Reader(Input.of(paths=(path,), text_field=VECTOR, no_pairs=True, keep="*"))
        yield from ({"id": record.id, **(record.extra or {})} for record in reader)


def _json_objects(path: str, needed_rows: Container[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and fields of each JSON line; {} for rows not in ``needed_rows``."""
    with open_bytes(path) as stream:
        for row, (number, line) in enumerate(chain.from_iterable(numbered_lines(stream, path))):
            where = f"{path}:{number}"
            value = value_of(line, where) if row in needed_rows else []
            yield where, {} if isinstance(value, list) else object_in(value, where)


@dataclass
class Mining:
    """A pass that finds hard negatives for pairs of anchor and positive.

    ``pairs`` and ``negatives`` count the pairs that were read and the negatives that were found.
    """

    search: Search
    reader: Reader
    margin: float = 0.0
    pairs: int = 0
    negatives: int = 0

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Yield lists of rows with an anchor, its positive and a negative.

        A pair has at most ``top_k`` negatives. Raises InputError for a record without a positive.
        """
        texts = CorpusTexts(self.search)
        excluded = self._excluded(texts)
        pairs: list[tuple[Text, Text]] = []
        not_negative: dict[Text, set[Text]] = defaultdict(set)  # anchor -> excluded texts
        for record in self.reader:
            if record.pair is None:
                raise InputError(
                    f"{record.where}: has no positive",
                    'a record is an object like {"anchor": "...", "positive": "..."}',
                )
            pairs.append((record.text, record.pair))
            not_negative[record.text] |= {record.text, record.pair}
        self.pairs = len(pairs)
        for start in range(0, len(pairs), QUERIES_PER_BATCH):
            batch = pairs[start : start + QUERIES_PER_BATCH]
            top_k = self.search.options.top_k
            depth = top_k + max(len(not_negative[anchor]) for anchor, _ in batch)
            nearest = self.search.collector([Record(anchor) for anchor, _ in batch], depth)
            assert isinstance(nearest, Nearest)  # as --mine excludes --sparse and --token-vectors
            run = RecordVectors(self.search.embedder, [Record(positive) for _, positive in batch])
            run.execute()
            positives = nearest.scaled(run.vectors)
            scores = np.einsum("nd,nd->n", nearest.queries, positives)
            nearest.excluded = excluded
            nearest.ceilings = scores - self.margin
            add_stored(nearest, self.search.store)
            records = records_of_rows(rows_of(nearest.matches()), texts.blocks(nearest.rows))
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
        """Return the rows of empty texts and of repeated texts."""
        seen: set[int] = set()
        rows = list(texts.empty)
        records = chain.from_iterable(texts.blocks(texts.digest.records))
        for row, key in enumerate(hash(str(record.text)) for record in records):
            if key in seen:
                rows.append(row)
            seen.add(key)
        return np.array(rows, int)
