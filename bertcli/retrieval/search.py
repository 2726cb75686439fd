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

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertcli.embedding.embed_run import EmbedRun, RecordVectors
from bertcli.embedding.options import EmbedOptions, read_sentence_settings
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.record_embedder import DOCUMENT_PROMPTS, QUERY_PROMPTS, RecordEmbedder
from bertcli.embedding.sentence_modules import describe_modules, read_modules, unit_vectors
from bertcli.embedding.sparse import has_routes
from bertcli.errors import LOG, BertcliError, InputError, UsageError, counted, option
from bertcli.formats.vector_files import (
    MAKE_AGAIN,
    Array,
    manifest_of,
    memory_mapped,
)
from bertcli.formats.writers import format_of
from bertcli.io.output_files import OutputFiles
from bertcli.io.progress import Display
from bertcli.io.system_calls import LargeBlocks
from bertcli.io.threads import in_background
from bertcli.io.typed_json import JsonObject, whole_number
from bertcli.model_folder.folder import ModelFolder
from bertcli.records.batch import record_windows
from bertcli.records.reader import Reader, refuse_pipes
from bertcli.records.record import Record, row_of
from bertcli.retrieval.corpus import (
    HIT_FIELDS,
    CorpusTexts,
    HitTexts,
    StoredTexts,
    TemporaryVectors,
    Texts,
    VectorFile,
    empty_rows,
    records_of_rows,
    rows_of,
)
from bertcli.retrieval.explain import EXPLANATION_FIELDS, Explainer
from bertcli.retrieval.index_update import IndexUpdate, refuse_other_options
from bertcli.retrieval.lexical import DEPTH, RANK_CONSTANT, Bm25, fuse
from bertcli.retrieval.nearest import (
    NO_TEXT,
    Match,
    MaxSim,
    Nearest,
    TermProducts,
    refuse_infinite,
)
from bertcli.retrieval.search_index import IndexTexts, SearchIndex, open_index
from bertcli.runs.identity import (
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
    recorded_facts = {**fingerprint, "modules": modules}
    for name, value in model_facts.items():
        if recorded_facts.get(name) != value:
            other_model = fingerprint.get("model", "unknown")
            verb = "differ" if name.endswith("s") else "differs"
            raise InputError(
                f"{path}: was made by another model, {other_model}: its {name} {verb}",
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


def options_of_index(
    index: SearchIndex, folder: ModelFolder, options: EmbedOptions, *, with_corpus: bool
) -> EmbedOptions:
    """Return the options, updated with those of an index.

    Raises InputError as `recorded_options` does; ``with_corpus``, also if texts would be divided
    differently.
    """
    recorded = recorded_options(str(index.path), index.fingerprint, folder, options, "index")
    if with_corpus:
        recorded_chunking = {"on_truncate": recorded.on_truncate, "at": recorded.at}
        chunking = {"on_truncate": options.on_truncate, "at": options.at}
        refuse_other_options(index.path, recorded_chunking, chunking)
    return recorded


def options_of_vectors(path: Path, folder: ModelFolder, options: EmbedOptions) -> EmbedOptions:
    """Return the options, updated with those of the manifest of vectors; warn if it has none.

    Raises InputError as `recorded_options` does.
    """
    OutputFiles(path).tidy()
    if fingerprint := manifest_of(str(path)).object("fingerprint"):
        return recorded_options(str(path), fingerprint, folder, options)
    LOG.warn(f"{path}: no manifest says which model made it; assuming it was {folder.name}")
    return options


def warn_of_other_similarity(embedder: RecordEmbedder) -> None:
    """Warn if the similarity of the model is none that a search has."""
    similarity = embedder.sentence.similarity
    unit = embedder.options.row_unit
    scores = {"texts": "cosines", "terms": "dot products"}.get(unit, "MaxSim")
    if similarity and similarity.lower() not in ("cosine", "dot", scores.lower()):
        LOG.warn(f"{similarity} similarity, the model's, is not available; scores are {scores}")


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
                    "it explains scores of vector search only",
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
        index = None
        check = None
        if options.index is not None:
            index = open_index(options.index)
            if index is not None:
                compute = options_of_index(index, folder, compute, with_corpus=reader is not None)
            elif reader is None:
                raise InputError(
                    f"{options.index}: index not found", f"{option('corpus')} FILE makes it"
                )
        elif options.vectors is not None and options.vectors.exists():
            compute = options_of_vectors(options.vectors, folder, compute)
            if digest := manifest_of(str(options.vectors)).text("sha256"):
                check = in_background(
                    refuse_changed_file, options.vectors, digest, InputError, MAKE_AGAIN
                )
        elif reader is None:
            raise InputError(
                f"{options.vectors}: file not found",
                f"{option('corpus')} FILE computes the vectors",
            )
        embedder = RecordEmbedder.open(folder, compute)
        if not options.similarity:
            warn_of_other_similarity(embedder)
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

    def open_texts(self, tokenizer: Tokenizer | None = None) -> tuple[HitTexts, Bm25 | None]:
        """Return the texts of the index or corpus, or those stored with the vectors.

        With a tokenizer, also return the BM25 index of the texts.
        """
        keep = None if self.reader else self.options.keep_fields
        if self.index is not None:
            bm25 = self.index.bm25(tokenizer) if tokenizer else None
            return IndexTexts(self.index, keep, with_empty=self.with_empty), bm25
        if self.reader:
            texts = self.corpus_texts(tokenizer)
            return texts, texts.bm25
        return StoredTexts(str(self.options.vectors), keep, with_empty=self.with_empty), None

    def corpus_texts(self, tokenizer: Tokenizer | None = None) -> CorpusTexts:
        """Return the texts of the corpus; with a tokenizer, with their BM25 index."""
        return CorpusTexts(self.store, self.texts, with_empty=self.with_empty, tokenizer=tokenizer)

    @property
    def with_empty(self) -> bool:
        """True if empty texts may be hits."""
        return self.options.skip_empty is False

    def _lexical_answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        """Yield the answers of a lexical search of the index, one batch of queries at a time."""
        self.wait_for_check()
        texts, bm25 = self.open_texts(self.embedder.runtime.tokenizer)
        assert self.index is not None and bm25 is not None
        for batch in record_windows(queries, QUERIES_PER_BATCH):
            matches = [bm25.best(query, self.options.top_k) for query in batch]
            yield answers_of(batch, matches, texts.records(rows_of(matches), self.index.count))

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
        tokenizer = self.embedder.runtime.tokenizer if options.hybrid else None
        texts, bm25 = self.open_texts(tokenizer)
        depth = max(options.top_k, DEPTH) if bm25 else options.top_k
        for batch in record_windows(queries, QUERIES_PER_BATCH):
            nearest = self.collector(batch, depth)
            while True:
                self._add_vectors(nearest, texts.empty)
                matches = nearest.matches()
                if bm25:
                    matches = self._fused(batch, matches, bm25, depth)
                records = texts.records(rows_of(matches), nearest.rows)
                if not texts.found_empty(records, nearest.rows):
                    break
                nearest.restart()
            yield self.explained(answers_of(batch, matches, records), nearest)

    def _add_vectors(self, nearest: Collector, empty: Sequence[int] | Array) -> None:
        """Add all vectors of the corpus, whose rows ``empty`` are no hits, to a collector."""
        nearest.excluded = np.array(empty, int)
        if self.index is not None:
            add_indexed(nearest, self.index)
        else:
            add_stored(nearest, self.store, self.embedder.term_names)

    def _fused(
        self, queries: Sequence[Record], matches: list[list[Match]], bm25: Bm25, depth: int
    ) -> list[list[Match]]:
        """Return the matches of each query, fused with those of a lexical search."""
        options = self.options
        fused = []
        for query, dense in zip(queries, matches, strict=True):
            lexical = bm25.best(query, depth, of_literals=True)
            fused.append(
                fuse(dense, lexical, options.top_k, options.rank_constant, options.lexical_weight)
            )
        return fused

    def explained(self, answers: list[Answer], nearest: Collector) -> list[Answer]:
        """Return answers with the shares of tokens in the scores, if requested."""
        if self.explainer is None or isinstance(nearest, TermProducts):
            return answers
        hits_of_queries = self.explainer.explain([answer.hits for answer in answers], nearest)
        return [
            answer._replace(hits=hits)
            for answer, hits in zip(answers, hits_of_queries, strict=True)
        ]

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
    with closing(TemporaryVectors(search.embedder, search.texts)) as search.temporary:
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


def hit_fields(*, explain: bool) -> frozenset[str]:
    """Return the fields of hits that no carried field may be called."""
    return HIT_FIELDS | EXPLANATION_FIELDS if explain else HIT_FIELDS


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
        if not self.search.with_empty:
            self.nearest.excluded = np.array(empty_rows(block.records, first), int)
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
    bm25 = Bm25(tokenizer)
    for block in reader.blocks():
        bm25.add(block)
    for batch in record_windows(queries, QUERIES_PER_BATCH):
        matches = [bm25.best(query, top_k) for query in batch]
        yield answers_of(batch, matches, records_of_rows(rows_of(matches), reader.again().blocks()))


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
