"""How far apart the vectors of two files are, in one pass and the memory of a block.

    compare("a.npy", "b.parquet").max_abs
    compare("minilm.npy", "mpnet.npy").similarity.neighbour_overlap   # of other widths

Rows are numbered from 0. A row with NaN or infinity in either file is counted, and left out of the
other numbers. Vectors of different widths have no difference: what they agree on is measured, in
two numbers of cosines between texts: the correlation (Pearson) of the two similarity matrices, and
the share of the nearest neighbours of a text that both have. Of many rows a sample is taken, the
same in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertcli.errors import BertcliError, InputError, counted
from bertcli.vectors.reading import Array, floats, precision_of, stored

WORST = 5


class Row(NamedTuple):
    """How far apart two rows are."""

    row: int
    max_abs: float
    cosine: float


@dataclass
class Agreement:
    """What two files have in common, and what not. None where there is no row to measure."""

    a: str
    b: str
    shape: list[int] = field(default_factory=lambda: [0])
    dtype: list[str] = field(default_factory=list)
    identical: bool = True
    max_abs: float | None = None
    mean_abs: float | None = None
    cosine_min: float | None = None
    cosine_mean: float | None = None
    not_finite: int = 0  # rows
    worst: list[Row] = field(default_factory=list)
    widths: list[int] | None = None  # of vectors of different widths, and what they agree on
    similarity: SimilarityAgreement | None = None

    def fields(self) -> dict[str, Any]:
        """Return what is written."""
        written = {**asdict(self), "worst": [row._asdict() for row in self.worst]}
        widths, similarity = written.pop("widths"), self.similarity
        del written["similarity"]
        return (
            written if similarity is None else {**written, "widths": widths, **similarity._asdict()}
        )

    def check(self, tolerance: float) -> None:
        """Raise BertcliError when a difference is greater than this, or cannot be measured."""
        if self.widths:
            widths = " and ".join(map(str, self.widths))
            raise BertcliError(
                f"--tolerance needs vectors of one width, and these have {widths} dimensions",
                "neighbour_overlap and similarity_correlation say how far they agree",
            )
        if self.not_finite and not self.identical:
            rows = counted(self.not_finite, "row contains", "rows contain")
            raise BertcliError(
                f"{rows} NaN or infinity, and the files differ",
                "bertcli inspect FILE counts them",
            )
        if self.max_abs is not None and self.max_abs > tolerance:
            row = self.worst[0].row
            raise BertcliError(
                f"row {row} differs by {self.max_abs:.6g}, more than --tolerance {tolerance:g}",
                "were both made by the same model, with the same options?",
            )


def compare(a: str, b: str, worst: int = WORST) -> Agreement:
    """Compare two files of vectors row by row, and keep the ``worst`` rows.

    Vectors of a lower precision are restored first when their manifest says how. Raises InputError
    when a file cannot be read, or their rows are not as many.
    """
    with np.errstate(all="ignore"):  # of numbers from files, NaN and infinity are counted
        sides = [_peeked(_readable(path)) for path in (a, b)]
        widths = [() if first is None or not len(first) else first.shape[1:] for first, _ in sides]
        blocks = [whole for _, whole in sides]
        if all(len(width) == 1 for width in widths) and widths[0] != widths[1]:
            return _compare_widths(Agreement(a, b), *blocks)
        return _compare(Agreement(a, b), blocks, worst)


def _peeked(blocks: Iterator[Array]) -> tuple[Array | None, Iterator[Array]]:
    """Return the first block, None without one, and all of them."""
    first = next(blocks, None)
    return first, blocks if first is None else chain([first], blocks)


def _compare_widths(agreement: Agreement, x: Iterator[Array], y: Iterator[Array]) -> Agreement:
    a, b = RowSample(x), RowSample(y)
    if a.count != b.count:
        raise _differing(agreement, [a.count, b.count], [(), ()])
    agreement.shape, agreement.widths, agreement.identical = [a.count], [a.width, b.width], False
    agreement.dtype = [precision_of(agreement.a) or a.dtype, precision_of(agreement.b) or b.dtype]
    agreement.similarity, agreement.not_finite = agreement_of(a, b)
    return agreement


def _compare(agreement: Agreement, blocks: Sequence[Iterator[Array]], worst: int) -> Agreement:
    total = np.zeros(2)  # of absolute differences, of cosines
    measured = 0
    for start, x, y in _pairs(agreement, blocks):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        agreement.identical = agreement.identical and bool(same.all())
        finite = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
        agreement.not_finite += int((~finite).sum())
        rows, x, y = start + np.flatnonzero(finite), x[finite], y[finite]
        if not x.size:
            continue
        apart, cosines = np.abs(x - y), _cosines(x, y)
        total += apart.mean(axis=1).sum(), cosines.sum()
        measured += len(rows)
        _keep_worst(agreement, rows, apart.max(axis=1), cosines, worst)
    if measured:
        agreement.mean_abs, agreement.cosine_mean = (total / measured).tolist()
    return agreement


def _pairs(
    agreement: Agreement, blocks: Sequence[Iterator[Array]]
) -> Iterator[tuple[int, Array, Array]]:
    """Yield the number of the first row, and the same rows of both files, [n, D] in float64."""
    counts = [0, 0]
    shapes: list[tuple[int, ...]] = [(), ()]
    for pair in zip_longest(*blocks, fillvalue=None):
        for side, block in enumerate(pair):
            if block is not None:
                counts[side] += len(block)
                shapes[side] = block.shape[1:]
        x, y = pair
        if x is not None and y is not None and x.shape == y.shape:
            agreement.dtype = agreement.dtype or [_kind(agreement.a, x), _kind(agreement.b, y)]
            wide = [
                block.reshape(len(block), prod(block.shape[1:])).astype(np.float64)
                for block in (x, y)
            ]
            yield counts[0] - len(x), wide[0], wide[1]
        elif all(shapes) and shapes[0] != shapes[1]:
            break
    if counts[0] != counts[1] or (all(shapes) and shapes[0] != shapes[1]):
        raise _differing(agreement, counts, shapes)
    agreement.shape = [counts[0], *max(shapes, key=len)]  # of a file without lines it is not known


def _readable(path: str) -> Iterator[Array]:
    """Yield float vectors where that is possible, else the numbers as they are."""
    precision = precision_of(path) or "float32"
    return stored(path) if precision.startswith("float") else floats(path)


def _kind(path: str, block: Array) -> str:
    return precision_of(path) or block.dtype.name


def _differing(
    agreement: Agreement, counts: list[int], shapes: list[tuple[int, ...]]
) -> InputError:
    if all(shapes) and shapes[0] != shapes[1]:
        sizes = [" x ".join(map(str, shape)) for shape in shapes]
        what = f"{agreement.a} has {sizes[0]} dimensions, {agreement.b} has {sizes[1]}"
    else:
        what = f"{agreement.a} has {counted(counts[0], 'row')}, {agreement.b} has {counts[1]:,}"
    return InputError(f"nothing to compare: {what}", "both must hold the same texts, same model")


def _cosines(x: Array, y: Array) -> Array:
    """Return the cosine of each pair of rows; two vectors of zeros are alike, one is not."""
    dots, xx, yy = ((p * q).sum(axis=1) for p, q in ((x, y), (x, x), (y, y)))
    scale = np.sqrt(xx) * np.sqrt(yy)
    alike = ((xx == 0) & (yy == 0)).astype(np.float64)
    cosines: Array = np.divide(dots, scale, out=alike, where=scale > 0)
    return np.clip(cosines, -1, 1)


def _keep_worst(agreement: Agreement, rows: Array, apart: Array, cosines: Array, most: int) -> None:
    top = np.lexsort((rows, -apart))[:most]
    new = map(Row, rows[top].tolist(), apart[top].tolist(), cosines[top].tolist())
    ranked = sorted([*agreement.worst, *new], key=lambda row: (-row.max_abs, row.row))
    agreement.worst = ranked[:most]
    agreement.max_abs = agreement.worst[0].max_abs
    least = float(cosines.min())
    agreement.cosine_min = (
        least if agreement.cosine_min is None else min(agreement.cosine_min, least)
    )


Rows = NDArray[np.int64]

SAMPLE = 4096  # rows, at most
NEIGHBOURS = 10  # of each row, at most
AT_ONCE = 512  # rows whose similarities are held
SEED = 0  # of the sample
FEWEST = 3  # rows that have more than one similarity


class SimilarityAgreement(NamedTuple):
    """What two files agree on; None where there are too few rows to tell."""

    similarity_correlation: float | None
    neighbour_overlap: float | None
    neighbours: int
    rows_compared: int
    seed: int | None  # None: all rows were compared


class RowSample:
    """Some rows of a file, chosen by their numbers alone; those with NaN or infinity are known."""

    def __init__(self, blocks: Iterable[Array], most: int = SAMPLE) -> None:
        draw = np.random.default_rng(SEED)
        numbers: Rows = np.zeros(0, np.int64)
        keys, vectors, broken = np.zeros(0), None, []
        self.count, self.dtype = 0, ""
        for block in blocks:
            self.dtype = self.dtype or block.dtype.name
            rows = np.arange(self.count, self.count + len(block))
            broken.append(rows[~np.isfinite(block).all(axis=1)])
            self.count += len(block)
            keys = np.concatenate((keys, draw.random(len(block))))
            numbers = np.concatenate((numbers, rows))
            narrow = block.astype(np.float32)
            vectors = narrow if vectors is None else np.concatenate((vectors, narrow))
            chosen = np.sort(np.argsort(keys, kind="stable")[:most])
            keys, numbers, vectors = keys[chosen], numbers[chosen], vectors[chosen]
        self.numbers = numbers
        self.vectors: Array = np.zeros((0, 0), np.float32) if vectors is None else vectors
        self.broken: Rows = np.concatenate(broken) if broken else numbers

    @property
    def width(self) -> int:
        """The number of dimensions."""
        return int(self.vectors.shape[1])


def agreement_of(a: RowSample, b: RowSample) -> tuple[SimilarityAgreement, int]:
    """Return what the samples of two files agree on, and how many rows are broken in either."""
    broken = np.union1d(a.broken, b.broken)
    whole = ~np.isin(a.numbers, broken)
    x, y = (_unit(sample.vectors[whole]) for sample in (a, b))
    rows = len(x)
    nearest = max(0, min(NEIGHBOURS, rows - 1))
    seed = SEED if a.count > len(a.numbers) else None
    if rows < FEWEST:
        return SimilarityAgreement(None, None, nearest, rows, seed), len(broken)
    shared, sums = 0, np.zeros(5)
    for start in range(0, rows, AT_ONCE):
        here = np.arange(start, min(start + AT_ONCE, rows))
        both = [vectors[here] @ vectors.T for vectors in (x, y)]
        for cosines in both:  # a row is no neighbour of its own
            cosines[np.arange(len(here)), here] = -np.inf
        best = [np.argpartition(-cosines, nearest - 1, axis=1)[:, :nearest] for cosines in both]
        shared += sum(
            len({*p} & {*q}) for p, q in zip(*(numbers.tolist() for numbers in best), strict=True)
        )
        p, q = (cosines[np.isfinite(cosines)].astype(np.float64) for cosines in both)
        sums += p.sum(), q.sum(), p @ p, q @ q, p @ q
    return (
        SimilarityAgreement(_pearson(sums, rows), shared / (rows * nearest), nearest, rows, seed),
        len(broken),
    )


def _unit(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def _pearson(sums: NDArray[np.float64], rows: int) -> float | None:
    """Return the correlation from sums over all pairs of different rows; None for a constant."""
    x, y, xx, yy, xy = (sums / (rows * (rows - 1))).tolist()
    spread = (xx - x * x) * (yy - y * y)
    if xx - x * x < 1e-12 or yy - y * y < 1e-12:
        return None
    return float(max(-1.0, min(1.0, (xy - x * y) / spread**0.5)))
