"""Rows on their way to a file: raw vectors and the other fields: appended, truncated, read again.

`N` rows, `D...` the shape of one: `[D]`, or `[k, D]` for layers that are kept apart. A record has
one row, or several (``many``): then its fields say which, from START to before STOP.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import OutputError
from bertcli.files.jsonl import to_lines
from bertcli.files.system_calls import opener, sync, write_all
from bertcli.files.typed_json import parse_lines, parse_own
from bertcli.vectors.journal import BEGIN_AGAIN, FIELDS, INDEX, VECTORS, Journal

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames

Convert = Callable[[np.ndarray], np.ndarray]
Vectors = Sequence[np.ndarray] | np.ndarray  # of records: a vector each, or several

Row = dict[str, Any]
START, STOP = "start", "stop"
ROW, ID, DIGEST = "row", "id", "digest"  # of the index of an output whose records have one row each
CHUNK = 8 << 20  # bytes of vectors read at a time
MOST = 8192  # rows read at a time


class SummedFile(io.FileIO):
    """A file that is appended to, its size, and the sha256 of what it holds."""

    def __init__(self, path: Path, end: int = 0, expected: str = "") -> None:
        """Open it at ``end``: what is beyond was not committed, and is removed.

        Raises OutputError when there are fewer bytes, or their sha256 is not the expected one.
        """
        super().__init__(path, "a", opener=opener(None))
        self.sha256, self.size = hashlib.sha256(), end
        try:
            with open(path, "rb") as file:
                for at in range(0, end, CHUNK):
                    self.sha256.update(file.read(min(CHUNK, end - at)))
            if end and self.sha256.hexdigest() != expected:
                raise OutputError(
                    f"{path}: the committed rows are not those that were written: their sha256 "
                    "differs from the journal's",
                    f"the file was changed or cut, or the disk fails; {BEGIN_AGAIN}",
                )
            self.truncate(end)
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Write bytes at the end."""
        write_all(self, data)
        self.sha256.update(data)
        self.size += len(data)


class Spool:
    """The files of a run, behind the last committed row of the journal."""

    def __init__(self, folder: Path, journal: Journal, names: Sequence[str]) -> None:
        """Open the files of these names behind the committed rows.

        Raises OutputError when the committed rows are not those that were written.
        """
        self.rows, self.shape = journal.rows, tuple(journal.shape)
        with ExitStack() as stack:
            self.files = {
                name: stack.enter_context(SummedFile(folder / name, *journal.parts.get(name, ())))
                for name in names
            }
            self.open = stack.pop_all()

    def append(self, vectors: np.ndarray, lines: Mapping[str, Sequence[Row]]) -> None:
        """Add rows, and what goes into the other files of it."""
        if self.rows == 0:
            self.shape = vectors.shape[1:]
        for name in lines.keys() & self.files.keys():
            self.files[name].append(self._text(lines[name]))
        self.files[VECTORS].append(vectors.astype("<f4", copy=False).tobytes())
        self.rows += len(vectors)

    def _text(self, lines: Sequence[Row]) -> bytes:
        """Return the fields as JSON lines: what cannot be written is found here, not at the end."""
        try:
            return to_lines(lines).encode()
        except (TypeError, ValueError) as bad:  # a date, say, or half a surrogate pair
            raise OutputError(
                f"one of the records {self.rows + 1} to {self.rows + len(lines)} has a field "
                f"that cannot be written: {bad}",
                "leave it out of --keep-fields",
            ) from None

    def committed(self) -> dict[str, Any]:
        """Put all rows on the disk; return what a journal says of them."""
        for file in self.files.values():
            sync(file)
        parts = {name: (file.size, file.sha256.hexdigest()) for name, file in self.files.items()}
        return {"rows": self.rows, "shape": self.shape, "parts": parts}

    def close(self) -> None:
        """Close the files, which stay as they are."""
        self.open.close()


def placed(metas: Sequence[Row], counts: Sequence[int], first: int) -> Iterator[Row]:
    """Yield the fields of records with the rows that each has, behind its id."""
    for meta, count in zip(metas, counts, strict=True):
        place = {START: first, STOP: first + count}
        own = {"id": meta["id"]} if "id" in meta else {}
        yield {**own, **place, **{key: meta[key] for key in meta if key not in place}}
        first += count


@dataclass(frozen=True)
class Rows:
    """All rows of a spool, to be read as often as a format needs.

    They come in chunks of a number of rows that depends on their shape alone, so that nothing in
    the output shows how they were written.
    """

    folder: Path
    count: int
    shape: tuple[int, ...]
    many: bool = False
    ids: bool = False  # whether an archive has the ids of the records
    convert: Convert = lambda vectors: vectors
    terms: TermNames | None = None  # whether the rows are terms of texts

    @property
    def step(self) -> int:
        """The number of rows in a chunk."""
        return min(MOST, max(1, CHUNK // max(1, 4 * math.prod(self.shape))))

    def raw(self) -> Iterator[np.ndarray]:
        """Yield the vectors as they were computed: float32 [<= step, D...]."""
        with open(self.folder / VECTORS, "rb") as file:
            for start in range(0, self.count, self.step):
                yield self._read(file, min(self.step, self.count - start))

    def vectors(self) -> Iterator[np.ndarray]:
        """Yield the vectors as they are to be written: [<= step, D...]."""
        for vectors in self.raw():
            yield self.convert(vectors)

    def _lines(self) -> IO[bytes]:
        """Open the other fields of the records."""
        fields = self.folder / FIELDS
        return open(fields if fields.exists() else self.folder / INDEX, "rb")

    def metas(self) -> Iterator[list[Row]]:
        """Yield the other fields of the records."""
        with self._lines() as file:
            lines = map(bytes.decode, file)
            if self.many:
                yield from _within(map(parse_own, lines), self.step)
                return
            for _ in range(0, self.count, self.step):
                texts = list(islice(lines, self.step))
                yield parse_lines(texts) or list(map(parse_own, texts))

    def records(self) -> Iterator[tuple[list[Row], Vectors]]:
        """Yield the other fields of records, and the vectors of each: [D...], or [k, D...]."""
        with open(self.folder / VECTORS, "rb") as file:
            for metas in self.metas():
                ends = list(accumulate(meta[STOP] - meta[START] for meta in metas if self.many))
                rows = ends[-1] if self.many else len(metas)
                vectors = self.convert(self._read(file, rows))
                yield metas, np.split(vectors, ends[:-1]) if self.many else vectors

    def _read(self, file: IO[bytes], rows: int) -> np.ndarray:
        flat = np.fromfile(file, "<f4", rows * math.prod(self.shape))
        return flat.reshape(rows, *self.shape)

    def kind(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape of all the vectors together as they are written, and their dtype."""
        if self.terms:
            with self._lines() as file:
                texts = sum(1 for _ in file)
            return (texts, self.terms.width), np.dtype(np.float32)
        sample = self.convert(np.zeros((1, *self.shape), np.float32))
        return (self.count, *sample.shape[1:]), sample.dtype


def _within(metas: Iterator[Row], most: int) -> Iterator[list[Row]]:
    """Gather records that have at most so many rows, or one that has more."""
    held: list[Row] = []
    for meta in metas:
        if held and meta[STOP] - held[0][START] > most:
            yield held
            held = []
        held.append(meta)
    if held:
        yield held
