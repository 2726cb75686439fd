"""A search of vectors that are stored as bits: by the bits that differ, then by their cosines.

    add_packed(nearest, "corpus.npy")     # as nearest.add would, of its vectors restored

The rows that differ from a query in the fewest bits are candidates, `CANDIDATES` of them or more;
what they score is their cosine to the query in full precision, as of any other vectors. Source:
Yamada et al. 2021, "Efficient Passage Retrieval with Hashing", as in semantic_search_faiss.

Letters: `n` rows of a block, `W` bytes of a row, `w` words of one, `q` queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from bertcli.errors import InputError
from bertcli.files.npy import WIDEST
from bertcli.files.stored_arrays import open_array
from bertcli.files.writers import TENSORS
from bertcli.vectors.nearest import Nearest
from bertcli.vectors.precision import quantize, restore
from bertcli.vectors.reading import ARRAY, Array, form_of, stored

CANDIDATES = 1000  # of a query, or MORE times as many as are asked for
MORE = 20
ROWS = 1 << 16  # of a block


def add_packed(nearest: Nearest, path: str, precision: str) -> None:
    """Take in the rows of a file of bits, in the precision that its manifest names.

    Raises InputError when they have other dimensions than the queries.
    """
    width = ceil(nearest.queries.shape[1] / 8)
    asked = quantize(nearest.queries.astype(np.float32), precision).view(np.uint8)
    few = max(CANDIDATES, MORE * nearest.k)
    found = [_Candidates(_words(bits[None])[0], few) for bits in asked]
    rows, kind = 0, np.dtype(np.int8 if precision == "binary" else np.uint8)
    for block in _blocks(path):
        if block.dtype.kind not in "iu":
            raise InputError(f"{path}: holds {block.dtype}, not bits")
        if block.ndim != 2 or block.shape[1] != width:
            sizes = " x ".join(map(str, block.shape[1:]))
            raise InputError(
                f"{path}: its rows have {sizes} bytes, and those of the query have {width}",
                "both must come from one model, with the same --dim, --layers and --pooling",
            )
        packed = np.ascontiguousarray(block.astype(kind, copy=False)).view(np.uint8)
        words = _words(packed)
        for one in found:
            one.add(words, packed, rows)
        rows += len(block)
    nearest.rows = rows
    for number, one in enumerate(found):
        vectors = restore(one.bits.view(kind), precision, None, nearest.queries.shape[1])
        nearest.score(number, one.rows, vectors)


class _Candidates:
    """The rows that differ from a query in the fewest bits; of equals, those that came first."""

    def __init__(self, query: Array, most: int) -> None:
        self.query, self.most = query, most
        self.rows = np.zeros(0, np.int64)
        self.bits = np.zeros((0, query.nbytes), np.uint8)
        self._distances: Array = np.zeros(0, np.uint32)
        self._least = np.iinfo(np.uint32).max  # bits that one row too many differs in

    def add(self, words: Array, packed: Array, first: int) -> None:
        """Take in rows [n, w], as bytes [n, W]; the number of the first."""
        kind = np.uint32 if self.query.nbytes >= 1 << 13 else np.uint16
        distances: Array = np.zeros(len(words), kind)
        for column, word in zip(words.T, self.query, strict=True):
            distances += np.bitwise_count(column ^ word)
        fresh = np.flatnonzero(distances < self._least)
        self._distances = np.concatenate([self._distances, distances[fresh]])
        self.rows = np.concatenate([self.rows, fresh + first])
        self.bits = np.concatenate([self.bits, packed[fresh]])
        if len(self.rows) > self.most:
            kept = np.sort(np.argsort(self._distances, kind="stable")[: self.most])
            self._distances, self.rows = self._distances[kept], self.rows[kept]
            self.bits = self.bits[kept]
            self._least = int(self._distances.max())


def _words(packed: Array) -> Array:
    """Return rows [n, W] as the widest words that they are made of, [n, w]."""
    size = next(size for size in (8, 4, 2, 1) if packed.shape[1] % size == 0)
    return packed.view(f"u{size}")


def _blocks(path: str) -> Iterator[Array]:
    """Yield rows in large blocks, where the format allows that."""
    form = form_of(path)
    if form not in TENSORS:
        yield from stored(path)
        return
    with open_array(path, path, form, ARRAY) as found:
        if found.by_columns or len(found.shape) != 2:
            raise InputError(f"{path}: holds {found.dtype} of shape {found.shape}, not bits")
        yield from found.blocks(ROWS if found.width <= WIDEST // ROWS else 1)
