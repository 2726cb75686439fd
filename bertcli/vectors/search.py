"""A search of a corpus with a model: queries and texts to vectors, and the nearest of them.

    search = Search.open(folder, EmbedOptions(), SearchOptions(("quick animals",)), reader)
    for step in search:                        # computes the vectors of the texts on the way
        ...
    search.rows()[0]["text"]

The vectors of the corpus can be written on the way, and reused: then the queries are encoded as the
manifest says the texts were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertcli.checkpoints.scan import bert_folder, read_config
from bertcli.embedding.embedder import Embedded, Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.files.writers import format_of
from bertcli.hub import ModelFolder
from bertcli.inference.progress import Step
from bertcli.inference.runtime import Warn
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.tokenizing.run import TokenCounts
from bertcli.vectors.fingerprint import InputDigest, numbers_of, tokenizer_of, weights_of
from bertcli.vectors.nearest import Nearest, Texts, check_maker, check_texts, texts_at
from bertcli.vectors.reading import floats
from bertcli.vectors.run import EmbedRun, EmbedStream, stacked
from bertcli.vectors.sink import Target

QUERY = ("query",)
# Options that have one name in a manifest and here.
SAME_TEXTS = ("pooling", "on_truncate")
SAME_NUMBERS = ("dim", "max_length", "stride")
SAME_SWITCHES = ("special_tokens", "parse_special")
COMBINED = ("mean", "sum", "concat", "stack")
LAYERS = 10_000  # more than any model has
DOCUMENT = ("document", "passage", "corpus")  # names of prompts, as in sentence-transformers


def prompted(embedder: Embedder, names: Sequence[str], text: str | None = None) -> Embedder:
    """Return the embedder with this prompt, or the first of these that its model has.

    Without either, it keeps the prompt that it has. Source: the documentation of encode_query and
    encode_document; sentence-transformers 6.2 always finds a "document", if only an empty one.
    """
    there = embedder.sentence.prompts
    found = [there[name] for name in names if name in there] if text is None else [text]
    if not found:
        return embedder
    return replace(embedder, options=replace(embedder.options, prompt=found[0]))


def options_of(path: str, folder: ModelFolder, options: EmbedOptions) -> EmbedOptions:
    """Return the options with those in place that the vectors in a file were made with.

    Raises InputError when another model made them, or nothing says which one did.
    """
    inner = bert_folder(folder.path)
    digests = {"weights": weights_of(inner), "tokenizer": tokenizer_of(inner)}
    made = check_maker(path, digests, numbers_of(read_config(inner)))
    layers, combine = made.wholes("layers", least=-LAYERS), made.text("layer_combine")
    if combine not in (None, *COMBINED):
        raise made.bad("layer_combine", f"one of {', '.join(COMBINED)}")
    named: dict[str, Any] = {name: made.text(name) for name in SAME_TEXTS}
    named |= {name: made.whole(name) for name in SAME_NUMBERS}
    named |= {name: made.switch(name) for name in SAME_SWITCHES}
    named |= {"combine": combine, "layers": None if layers is None else tuple(layers)}
    known = {name: value for name, value in named.items() if value is not None}
    return replace(options, **known)


@dataclass(frozen=True)
class SearchOptions:
    """What is looked for, how many texts per query, and where the vectors of the corpus are kept.

    A prompt of None is that of the model for queries, or for documents.
    """

    queries: Sequence[str]
    top_k: int = 10
    query_prompt: str | None = None
    corpus_prompt: str | None = None
    vectors: Path | None = None  # reused when the file is there, else written


@dataclass
class Search:
    """Queries on their way through a corpus: iterate it once, then ask for its rows.

    ``tally`` counts the texts whose vectors were computed.
    """

    embedder: Embedder  # of the corpus
    options: SearchOptions
    reader: Reader
    reused: bool  # whether the vectors of the corpus were there
    tally: TokenCounts = field(default_factory=TokenCounts, init=False)
    nearest: Nearest = field(init=False)
    texts: Texts = field(default_factory=dict, init=False)

    @classmethod
    def open(
        cls,
        folder: ModelFolder,
        compute: EmbedOptions,
        options: SearchOptions,
        reader: Reader,
        warn: Warn = lambda message: None,
    ) -> Search:
        """Load the model. Raises InputError when another one made the vectors that are there."""
        reused = options.vectors is not None and options.vectors.exists()
        if reused:
            compute = options_of(str(options.vectors), folder, compute)
        embedder = Embedder.open(folder, compute, warn)
        prompt = options.corpus_prompt
        return cls(prompted(embedder, DOCUMENT, prompt), options, reader, reused)

    def __iter__(self) -> Iterator[Step]:
        """Yield how far the search is.

        Raises InputError when the vectors that are there were made from other texts.
        """
        if self.options.vectors is not None and not self.reused:
            yield from self._written(self.options.vectors)
        self.nearest = Nearest(stacked(self._queries()), self.options.top_k)
        if self.options.vectors is None:
            run = EmbedStream(self.embedder, self.reader, self._see, self.tally)
            yield from run
        else:
            self._compare(str(self.options.vectors))

    def _written(self, path: Path) -> Iterator[Step]:
        """Write the vectors of the corpus, or go on with a run that was killed."""
        target = Target(path, format_of(path), resume=True, ids=True)
        run = EmbedRun(self.embedder, Reader(self.reader.source, self.reader.warn), target)
        for step in run:
            self.tally = run.tally
            yield step
        self.tally = run.tally

    def _queries(self) -> list[Embedded]:
        asking = prompted(self.embedder, QUERY, self.options.query_prompt)
        run = asking.run(Reader(Source(texts=tuple(self.options.queries))))
        return [item for window in asking.embed(run) for item in window]

    def _see(self, window: list[Embedded]) -> None:
        """Keep the texts of the rows that are nearest so far."""
        first = self.nearest.rows
        self.nearest.add(stacked(window))
        near = {match.row for best in self.nearest.matches() for match in best}
        fresh = {first + at: item.encoded.record for at, item in enumerate(window)}
        self.texts = {row: text for row, text in (self.texts | fresh).items() if row in near}

    def _compare(self, path: str) -> None:
        """Search the vectors in a file, those of the reader's texts."""
        for vectors in floats(path, self.nearest.queries.shape[1]):
            self.nearest.add(vectors)
        near = [match.row for best in self.nearest.matches() for match in best]
        digest = InputDigest()
        self.texts = texts_at(path, digest.watch(self.reader), near, self.nearest.rows)
        check_texts(path, digest.texts.hexdigest())

    def header(self) -> dict[str, Any]:
        """Return a row as an example, for a table without one."""
        return {"query": "", "rank": 1, "score": 0.0, "row": 0, "id": 0, "text": ""}

    def rows(self) -> list[dict[str, Any]]:
        """Return what is written: for each query the nearest texts, the nearest first."""
        return [
            {
                "query": query,
                "rank": rank,
                "score": score,
                "row": row,
                "id": row if self.texts[row].id is None else self.texts[row].id,
                "text": self.texts[row].text,
            }
            for query, best in zip(self.options.queries, self.nearest.matches(), strict=True)
            for rank, (row, score) in enumerate(best, 1)
        ]
