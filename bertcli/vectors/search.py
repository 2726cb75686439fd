"""A search of a corpus with a model: queries and texts to vectors, and the nearest of them.

    search = Search(embedder, ("quick animals",), 10)
    for window in search.corpus(reader):       # computes the vectors of the texts on the way
        ...
    search.rows()[0]["text"]

The vectors of the corpus can be written on the way, and reused: then the queries are encoded as the
manifest says the texts were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.load import read_config
from bertcli.checkpoints.scan import bert_folder
from bertcli.embedding.embedder import Embedded, Embedder
from bertcli.embedding.options import EmbedOptions
from bertcli.files.writers import format_of
from bertcli.hub import ModelFolder
from bertcli.records.reader import Reader
from bertcli.records.source import Source
from bertcli.vectors.nearest import Nearest, Texts, check_maker, check_texts, texts_at
from bertcli.vectors.reading import floats
from bertcli.vectors.run import (
    EmbedRun,
    InputDigest,
    numbers_of,
    stacked,
    tokenizer_of,
    versions,
    weights_of,
)
from bertcli.vectors.target import Target

if TYPE_CHECKING:
    from bertcli.vectors.reading import Array

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


def writing(embedder: Embedder, reader: Reader, path: Path) -> EmbedRun:
    """Return the run that writes the vectors of a corpus, or goes on with one that was killed."""
    about = {"versions": versions()}
    target = Target(path, format_of(path), resume=True, ids=True)
    return EmbedRun(embedder, reader, target, about)


@dataclass
class Search:
    """Queries on their way through a corpus: feed it with ``corpus`` or ``stored``, once."""

    embedder: Embedder
    queries: Sequence[str]
    k: int
    query_prompt: str | None = None
    nearest: Nearest = field(init=False)
    texts: Texts = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        asking = prompted(self.embedder, QUERY, self.query_prompt)
        run = asking.run(Reader(Source(texts=tuple(self.queries))))
        items = [item for window in asking.embed(run) for item in window]
        self.nearest = Nearest(stacked(items), self.k)

    def corpus(self, windows: Iterable[list[Embedded]]) -> Iterator[list[Embedded]]:
        """Yield the same windows, the texts of the rows that are nearest so far kept."""
        for window in windows:
            first = self.nearest.rows
            self.nearest.add(stacked(window))
            near = {match.row for best in self.nearest.matches() for match in best}
            fresh = {first + at: item.encoded.record for at, item in enumerate(window)}
            self.texts = {row: text for row, text in (self.texts | fresh).items() if row in near}
            yield window

    def stored(self, path: str, reader: Reader) -> None:
        """Search the vectors in a file, those of the reader's texts.

        Raises InputError when it was made from other texts, or has not as many rows.
        """
        for vectors in self._blocks(path):
            self.nearest.add(vectors)
        near = [match.row for best in self.nearest.matches() for match in best]
        digest = InputDigest()
        self.texts = texts_at(path, digest.watch(reader), near, self.nearest.rows)
        check_texts(path, digest.texts.hexdigest())

    def _blocks(self, path: str) -> Iterator[Array]:
        return floats(path, self.nearest.queries.shape[1])

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
            for query, best in zip(self.queries, self.nearest.matches(), strict=True)
            for rank, (row, score) in enumerate(best, 1)
        ]
