"""A search of a corpus with a model: queries and texts to vectors, and the nearest of them.

    search = Search.open(folder, EmbedOptions(), SearchOptions(vectors=path), reader)
    if not search.stored:
        for step in search.writing():      # computes the vectors of the texts
            ...
    for answers in search.answering(queries.blocks()):
        print(answers[0].query.text, answers[0].hits)

Vectors that are stored answer any number of queries: those are encoded as the manifest says that
the texts were. Without a place for vectors, one pass over the texts answers some queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertcli.checkpoints.scan import bert_folder, is_static, read_config
from bertcli.embedding.embedded_block import EmbeddedBlock
from bertcli.embedding.embedder import Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.sentence_config import read_sentence
from bertcli.embedding.sentence_modules import described, read_chain
from bertcli.embedding.sparse_config import has_routes
from bertcli.embedding.term_weights import TermNames
from bertcli.errors import InputError
from bertcli.files.writers import TENSORS, format_of
from bertcli.hub import ModelFolder
from bertcli.inference.progress import Step
from bertcli.inference.tell import SILENCE, Tell
from bertcli.records.reader import Reader
from bertcli.records.records import Record, carried
from bertcli.records.source import Source
from bertcli.records.windows import windows
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.corpus import (
    CorpusTexts,
    Ids,
    Texts,
    check_maker,
    ids_at,
    is_known,
    refuse_other_width,
)
from bertcli.vectors.fingerprint import numbers_of, tokenizer_of, weights_of
from bertcli.vectors.multiple import MaxSim, TermProducts
from bertcli.vectors.nearest import Match, Nearest
from bertcli.vectors.output import end_killed
from bertcli.vectors.packed import add_packed
from bertcli.vectors.reading import floats, form_of, precision_of
from bertcli.vectors.run import EmbedRun, stacked
from bertcli.vectors.sink import Target
from bertcli.vectors.stored_lists import index_of, stored_terms, stored_tokens
from bertcli.vectors.stream import EmbedStream

Collector = Nearest | TermProducts | MaxSim  # of the best rows for queries
QUERY = ("query",)
# Options that have one name in a manifest and here.
SAME_TEXTS = ("pooling", "on_truncate")
SAME_NUMBERS = ("dim", "max_length", "stride")
SAME_SWITCHES = ("special_tokens", "parse_special")
COMBINED = ("mean", "sum", "concat", "stack")
LAYERS = 10_000  # more than any model has
DOCUMENT = ("document", "passage", "corpus")  # names of prompts, as in sentence-transformers
AT_ONCE = 1024  # queries that are answered together


def prompted(embedder: Embedder, names: Sequence[str], text: str | None = None) -> Embedder:
    """Return the embedder with this prompt, or the first of these that its model has.

    Without either, it keeps the prompt that it has. Source: the documentation of encode_query and
    encode_document; sentence-transformers 6.2 always finds a "document", if only an empty one.
    """
    there = embedder.sentence.prompts
    found = [there[name] for name in names if name in there] if text is None else [text]
    if not found:
        return embedder
    options = replace(embedder.options, prompt=found[0])
    if not embedder.late:
        return replace(embedder, options=options)
    late = replace(embedder.late, is_query=names is QUERY)
    length = None if late.is_query else options.max_length  # queries have one of their own
    return replace(embedder, options=replace(options, max_length=length), late=late)


def options_of(path: str, folder: ModelFolder, options: EmbedOptions) -> EmbedOptions:
    """Return the options with those in place that the vectors in a file were made with.

    Raises InputError when another model made them.
    """
    inner = bert_folder(folder.path)
    digests = {"weights": weights_of(inner), "tokenizer": tokenizer_of(inner)}
    numbers = {} if is_static(folder.path) else numbers_of(read_config(inner))
    made = check_maker(path, digests, numbers, options.kind)
    layers, combine = made.wholes("layers", least=-LAYERS), made.text("layer_combine")
    if combine not in (None, *COMBINED):
        raise made.bad("layer_combine", f"one of {', '.join(COMBINED)}")
    named: dict[str, Any] = {name: made.text(name) for name in SAME_TEXTS}
    named |= {name: made.whole(name) for name in SAME_NUMBERS}
    named |= {name: made.switch(name) for name in SAME_SWITCHES}
    named |= {"combine": combine, "layers": None if layers is None else tuple(layers)}
    known = {name: value for name, value in named.items() if value is not None}
    modules = [dict(one) for one in made.list_of_objects("modules")]
    if modules and not options.several:
        _refuse_other_modules(path, folder, modules)
        known["pooling"] = "auto"
    return replace(options, **known)


def _refuse_other_modules(path: str, folder: ModelFolder, theirs: list[dict[str, Any]]) -> None:
    sentence = read_sentence(folder.path)
    mine = described(read_chain(folder.path, (*sentence.of_tokens, *sentence.of_texts)))
    if mine != theirs:
        raise InputError(
            f"{path}: was made by a model with other sentence modules",
            "give --model the one that made it, or leave out --vectors",
        )


@dataclass(frozen=True)
class SearchOptions:
    """How many texts per query, how alike, and where the vectors of the corpus are kept.

    A prompt of None is that of the model for queries, or for documents.
    """

    top_k: int = 10
    threshold: float | None = None  # the least cosine
    query_prompt: str | None = None
    corpus_prompt: str | None = None
    vectors: Path | None = None  # searched when the file is there, else written


class Hit(NamedTuple):
    """A row that was found, and its text where the corpus has texts."""

    match: Match
    id: Any
    text: Record | None

    def fields(self) -> dict[str, Any]:
        """Return what is written."""
        found = {"row": self.match.row, "id": self.id, "score": self.match.score}
        if self.text is None:
            return found
        found["text"] = self.text.text
        return found | carried(found, self.text, ("query", "rank"))


class Answer(NamedTuple):
    """A query and the nearest rows, the nearest first."""

    query: Record
    hits: list[Hit]

    def fields(self) -> dict[str, Any]:
        """Return what is written: one object."""
        key = {} if self.query.id is None else {"id": self.query.id}
        return key | {"query": self.query.text, "hits": [hit.fields() for hit in self.hits]}

    def rows(self) -> list[dict[str, Any]]:
        """Return what is written to a table: a row for each hit."""
        query = self.query.text
        return [
            {"query": query, "rank": rank, "score": hit.match.score} | hit.fields()
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
    asked: TokenCounts = field(default_factory=TokenCounts, init=False)

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        compute: EmbedOptions,
        options: SearchOptions,
        reader: Reader | None,
        tell: Tell = SILENCE,
    ) -> Search:
        """Load the model. Raises InputError when another one made the vectors that are there."""
        path, known = str(options.vectors), True
        if options.vectors is not None:
            end_killed(options.vectors)
        if options.vectors is not None and options.vectors.exists():
            known = is_known(path)
            compute = options_of(path, folder, compute) if known else compute
        elif reader is None:
            raise InputError(f"{path}: file not found", "--corpus FILE computes the vectors")
        embedder = Embedder.open(folder, compute, tell)
        if not known and not compute.several:
            refuse_other_width(path, embedder.nothing.shape[1:])
        if not known:
            tell.warn(f"{path}: no manifest says which model made it; searched as of {folder.name}")
        asker = None
        if compute.sparse and has_routes(folder.path):
            other = replace(compute, prompt_name=QUERY[0], max_length=None, special_tokens=True)
            asker = Embedder.open(folder, replace(other, pooling="auto"), tell)
        return cls(prompted(embedder, DOCUMENT, options.corpus_prompt), options, reader, asker)

    @property
    def stored(self) -> bool:
        """Whether the vectors of the corpus are there."""
        return self.options.vectors is not None and self.options.vectors.exists()

    @property
    def path(self) -> str:
        """The file of the vectors of the corpus. ValueError where there is no place for them."""
        if self.options.vectors is None:
            raise ValueError("no place for vectors")
        return str(self.options.vectors)

    @property
    def texts(self) -> Reader:
        """The texts of the corpus. ValueError where there are none."""
        if self.reader is None:
            raise ValueError("no texts")
        return self.reader

    def writing(self) -> EmbedRun:
        """Return the run that writes the vectors of the corpus, or resumes one."""
        path, source = Path(self.path), replace(self.texts.source, keep=None)
        several, terms = self.embedder.options.several, self.embedder.term_names
        target = Target(path, format_of(path), resume=True, ids=True, many=several, terms=terms)
        return EmbedRun(self.embedder, Reader(source, self.texts.warn), target)

    def answering(self, queries: Iterable[Sequence[Record]]) -> Iterator[list[Answer]]:
        """Yield answers from the vectors that are stored, as soon as queries come.

        Raises InputError when they were made from other texts than those of the corpus.
        """
        path = self.path
        texts = None if self.reader is None else CorpusTexts(path, self.reader)
        for some in windows(queries, AT_ONCE):
            asked, nearest = self.asking(some)
            add_stored(nearest, path, self.embedder.term_names)
            found = self._ids(path, nearest.found) if texts is None else {}
            rows = {} if texts is None else texts.at(nearest.found, nearest.rows)
            yield answers_of(asked, nearest, rows, found)

    def _ids(self, path: str, rows: set[int]) -> Ids:
        """Return the ids that were kept with the vectors of some texts."""
        if self.embedder.options.kind == "tokens" and form_of(path) in TENSORS:
            index = index_of(path)
            return {row: index[row]["id"] for row in rows}
        return ids_at(path, rows)

    def asking(self, queries: Sequence[Record]) -> tuple[list[Record], Collector]:
        """Return the queries that have a vector, and what collects the rows nearest to them."""
        asking = prompted(self.asker or self.embedder, QUERY, self.options.query_prompt)
        blocks = list(asking.embed(asking.run(Reader(Source()), blocks=[queries])))
        self.asked.add([item.encoded for block in blocks for item in block], None)
        records = [record for block in blocks for record in block.records]
        limits = self.options.top_k, self.options.threshold
        if asking.options.several:
            many = [vectors for block in blocks for vectors in block.vectors]
            return records, (TermProducts if asking.terms else MaxSim)(many, *limits)
        vectors = np.concatenate([asking.nothing, *map(stacked, blocks)])
        return records, Nearest(vectors, *limits)


def add_stored(nearest: Collector, path: str, names: TermNames | None = None) -> None:
    """Take in all rows of a file of vectors; ``names`` are those of terms."""
    if not isinstance(nearest, Nearest):
        for texts in stored_terms(path, names) if names else stored_tokens(path):
            nearest.add(texts)
        return
    if (precision := precision_of(path)) in ("binary", "ubinary"):
        add_packed(nearest, path, precision)
        return
    for vectors in floats(path, nearest.queries.shape[1]):
        nearest.add(vectors)


class PassingSearch:
    """Queries on their way through texts whose vectors are not kept: iterate it once."""

    def __init__(self, search: Search, queries: Sequence[Record]) -> None:
        self.reader = search.texts
        self.queries, self.nearest = search.asking(queries)
        self.texts: Texts = {}
        self.run = EmbedStream(search.embedder, self.reader, self._see)
        self.tally = self.run.tally

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the search is."""
        return iter(self.run)

    def answers(self) -> list[Answer]:
        """Return the answers, once all texts were seen."""
        return answers_of(self.queries, self.nearest, self.texts)

    def _see(self, block: EmbeddedBlock) -> None:
        """Keep the texts of the rows that are nearest so far."""
        first = self.nearest.rows
        vectors: Any = block.vectors
        self.nearest.add(vectors)
        near = self.nearest.found
        fresh = {row: block.records[row - first] for row in near if row >= first}
        self.texts = {row: text for row, text in (self.texts | fresh).items() if row in near}


def answers_of(
    queries: Sequence[Record], nearest: Collector, texts: Texts, ids: Ids | None = None
) -> list[Answer]:
    """Return what was found; a row has the id of its text or its vector, else its own number."""

    def hit(match: Match) -> Hit:
        text = texts.get(match.row)
        key = (ids or {}).get(match.row) if text is None else text.id
        return Hit(match, match.row if key is None else key, text)

    return [
        Answer(query, [*map(hit, best)])
        for query, best in zip(queries, nearest.matches(), strict=True)
    ]
