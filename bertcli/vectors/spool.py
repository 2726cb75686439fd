"""Rows on their way to a file: raw vectors and the other fields: appended, truncated, read again.

`N` rows, `D...` the shape of one: `[D]`, or `[k, D]` for layers that are kept apart. A record has
one row, or several (``many``): then its fields say which, from START to before STOP.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from bertcli.errors import OutputError
from bertcli.files.jsonl import to_lines
from bertcli.files.system_calls import opener, sync, write_all
from bertcli.files.typed_json import parse_lines, parse_own
from bertcli.vectors.journal import BEGIN_AGAIN, Files, Journal

if TYPE_CHECKING:
    from bertcli.embedding.term_weights import TermNames

Convert = Callable[[np.ndarray], np.ndarray]
Vectors = Sequence[np.ndarray] | np.ndarray  # of records: a vector each, or several

Row = dict[str, Any]
START, STOP = "start", "stop"
ROW, ID, DIGEST = "row", "id", "digest"  # of the index of an output whose records have one row each
HEAD = 128  # bytes of an NPY header: a float32 NPY needs no copy
CHUNK = 8 << 20  # bytes of vectors read at a time
MOST = 8192  # rows read at a time


class SummedFile(io.FileIO):
    """A file that is appended to, and the sha256 of what it holds from ``start`` on."""

    def __init__(self, path: Path, start: int, end: int, expected: str, mode: int | None) -> None:
        """Open it at ``end``: what is beyond was not committed, and is removed.

        Raises OutputError when there are fewer bytes, or their sha256 is not the expected one.
        """
        super().__init__(path, "a", opener=opener(mode))
        self.sha256 = hashlib.sha256()
        try:
            size = os.fstat(self.fileno()).st_size
            if end == start:
                self.truncate(0)
            elif size < end:
                raise OutputError(
                    f"{path}: has {size:,} bytes, but its journal says {end:,}",
                    f"it was changed or cut; {BEGIN_AGAIN}",
                )
            self.truncate(end)
            with open(path, "rb") as file:
                file.seek(start)
                for at in range(start, end, CHUNK):
                    self.sha256.update(file.read(min(CHUNK, end - at)))
            if end > start and self.sha256.hexdigest() != expected:
                raise OutputError(
                    f"{path}: the committed rows are not those that were written: their sha256 "
                    "differs from the journal's",
                    f"the file was changed or the disk fails; {BEGIN_AGAIN}",
                )
        except BaseException:
            self.close()
            raise

    def append(self, data: bytes) -> None:
        """Write bytes at the end."""
        write_all(self, data)
        self.sha256.update(data)


class VectorSpool:
    """The partial files of a run, behind the last committed row of the journal."""

    def __init__(
        self,
        files: Files,
        journal: Journal,
        *,
        metas: bool,
        ids: bool = False,
        mode: int | None = None,
    ) -> None:
        """Open the files behind the committed rows.

        With ``ids`` the only other field is the id, written from the first record on that has one.
        Raises OutputError when the committed rows are not those that were written.
        """
        self.rows, self.shape = journal.rows, journal.shape
        self.meta_bytes, self.ids = journal.meta_bytes, ids
        end = HEAD + 4 * math.prod(self.shape) * self.rows
        with ExitStack() as stack:
            vectors = SummedFile(files.vectors, HEAD, end, journal.vectors_sha256, mode)
            self.vectors, self.metas = stack.enter_context(vectors), None
            if metas:
                lines = SummedFile(files.metas, 0, self.meta_bytes, journal.metas_sha256, mode)
                self.metas = stack.enter_context(lines)
            self.open = stack.pop_all()

    def append(
        self, metas: Sequence[Row], vectors: np.ndarray, counts: Sequence[int] | None = None
    ) -> None:
        """Add rows, ``counts`` for each record; they count once both files have them."""
        if self.rows == 0:
            self.shape = vectors.shape[1:]
        rows = len(metas) if counts is None else sum(counts)
        if rows != len(vectors) or vectors.shape[1:] != self.shape:
            raise ValueError(
                f"{len(metas)} records, vectors {vectors.shape}, rows before {self.shape}"
            )
        if counts is not None:
            metas = [*_placed(metas, counts, self.rows)]
        if self.metas:
            for part in self._parts(metas):
                self.metas.append(part)
                self.meta_bytes += len(part)
        self.vectors.append(vectors.astype("<f4", copy=False).tobytes())
        self.rows += len(vectors)

    def _parts(self, metas: Sequence[Row]) -> list[bytes] | Iterator[bytes]:
        """Return the other fields of these rows as lines, for an index with those before if due."""
        if not self.ids:
            return [self._lines(metas)]
        if not self.meta_bytes and not any(metas):
            return []  # no record has an id so far
        lines = self._lines(
            [{ROW: row, ID: None, **meta} for row, meta in enumerate(metas, self.rows)]
        )
        return chain(() if self.meta_bytes else _without_ids(self.rows), [lines])

    @property
    def sums(self) -> dict[str, str]:
        """The sha256 of what was written, as a journal has them."""
        metas = self.metas.sha256.hexdigest() if self.metas else ""
        return {"vectors_sha256": self.vectors.sha256.hexdigest(), "metas_sha256": metas}

    def _lines(self, metas: Sequence[Row]) -> bytes:
        """Return the fields as JSON lines: what cannot be written is found here, not at the end."""
        try:
            return to_lines(metas).encode()
        except (TypeError, ValueError) as bad:  # a date, say, or half a surrogate pair
            raise OutputError(
                f"one of the records {self.rows + 1} to {self.rows + len(metas)} has a field "
                f"that cannot be written: {bad}",
                "leave it out of --keep-fields",
            ) from None

    def sync(self) -> None:
        """Put all rows on the disk."""
        for file in filter(None, (self.vectors, self.metas)):
            sync(file)

    def close(self) -> None:
        """Close the files, which stay as they are."""
        self.open.close()


def _placed(metas: Sequence[Row], counts: Sequence[int], first: int) -> Iterator[Row]:
    """Yield the fields of records with the rows that each has, behind its id."""
    for meta, count in zip(metas, counts, strict=True):
        place = {START: first, STOP: first + count}
        own = {"id": meta["id"]} if "id" in meta else {}
        yield {**own, **place, **{key: meta[key] for key in meta if key not in place}}
        first += count


def _without_ids(count: int) -> Iterator[bytes]:
    """Yield the lines of an index for rows whose records have no id."""
    for start in range(0, count, MOST):
        rows = range(start, min(start + MOST, count))
        yield to_lines([{ROW: row, ID: None} for row in rows]).encode()


@dataclass(frozen=True)
class Rows:
    """All rows of a spool, to be read as often as a format needs.

    They come in chunks of a number of rows that depends on their shape alone, so that nothing in
    the output shows how they were written.
    """

    files: Files
    count: int
    shape: tuple[int, ...]
    many: bool = False
    ids: bool = False  # whether the other fields are the rows' ids alone
    convert: Convert = lambda vectors: vectors
    terms: TermNames | None = None  # whether the rows are terms of texts

    @property
    def step(self) -> int:
        """The number of rows in a chunk."""
        return min(MOST, max(1, CHUNK // max(1, 4 * math.prod(self.shape))))

    def raw(self) -> Iterator[np.ndarray]:
        """Yield the vectors as they were computed: float32 [<= step, D...]."""
        with open(self.files.vectors, "rb") as file:
            file.seek(HEAD)
            for start in range(0, self.count, self.step):
                yield self._read(file, min(self.step, self.count - start))

    def vectors(self) -> Iterator[np.ndarray]:
        """Yield the vectors as they are to be written: [<= step, D...]."""
        for vectors in self.raw():
            yield self.convert(vectors)

    def metas(self) -> Iterator[list[Row]]:
        """Yield the other fields of the records."""
        with open(self.files.metas, "rb") as file:
            lines = map(bytes.decode, file)
            if self.many:
                yield from _within(map(parse_own, lines), self.step)
                return
            for _ in range(0, self.count, self.step):
                texts = list(islice(lines, self.step))
                yield parse_lines(texts) or list(map(parse_own, texts))

    def records(self) -> Iterator[tuple[list[Row], Vectors]]:
        """Yield the other fields of records, and the vectors of each: [D...], or [k, D...]."""
        with open(self.files.vectors, "rb") as file:
            file.seek(HEAD)
            for metas in self.metas():
                ends = list(accumulate(meta[STOP] - meta[START] for meta in metas if self.many))
                rows = ends[-1] if self.many else len(metas)
                vectors = self.convert(self._read(file, rows))
                yield metas, np.split(vectors, ends[:-1]) if self.many else vectors

    def _read(self, file: IO[bytes], rows: int) -> np.ndarray:
        flat = np.fromfile(file, "<f4", rows * math.prod(self.shape))
        return flat.reshape(rows, *self.shape)

    @property
    def texts(self) -> int:
        """The number of records, where each may have several rows."""
        with open(self.files.metas, "rb") as file:
            return sum(1 for _ in file)

    def kind(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape of all the vectors together as they are written, and their dtype."""
        if self.terms:
            return (self.texts, self.terms.width), np.dtype(np.float32)
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
