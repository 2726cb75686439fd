"""Compare the vectors of two files, a block at a time.

    compare("a.npy", "b.parquet").max_abs
    compare("minilm.npy", "mpnet.npy").similarity.neighbour_overlap   # of other widths

Rows are numbered from 0. Rows with NaN or infinity in either file are counted, and left out of the
other numbers. Vectors of different widths are compared by the cosines between texts: the Pearson
correlation of the two similarity matrices, and the share of the nearest neighbours of a text that
both have. For many rows, these are computed for the same sample of both files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.errors import BertcliError, InputError, counted, option
from bertcli.formats.precision import PRECISIONS
from bertcli.formats.tables import rounded
from bertcli.formats.vector_files import (
    ROWS_PER_BLOCK,
    Array,
    manifest_of,
    memory_mapped,
    read_float_vectors,
    read_vectors,
)


@dataclass(frozen=True)
class Row:
    """The difference of a row between the two files."""

    row: int
    max_abs: float
    cosine: float


@dataclass
class Agreement:
    """The differences of two files; None if there are no rows to compare."""

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
    widths: list[int] | None = None  # of vectors of different widths, with `similarity`
    similarity: SimilarityAgreement | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields to write, with those of `similarity` among them."""
        fields = asdict(self)
        widths = fields.pop("widths")
        similarity = fields.pop("similarity")
        if similarity:
            fields["widths"] = widths
            fields |= similarity
        return rounded(fields)

    def check(self, tolerance: float) -> None:
        """Raise BertcliError if a difference exceeds the tolerance, or cannot be computed."""
        if self.widths:
            widths = " and ".join(map(str, self.widths))
            raise BertcliError(
                f"{option('tolerance')} needs vectors of one width, and these have {widths} "
                "dimensions",
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
                f"row {row} differs by {self.max_abs:.6g}, more than {option('tolerance')} "
                f"{tolerance:g}",
                "were both made by the same model, with the same options?",
            )


def compare(a: str, b: str, worst: int = 5) -> Agreement:
    """Compare two files of vectors row by row; list the ``worst`` rows.

    Quantized vectors are restored first if their manifest has the ranges. Raises InputError if a
    file cannot be read, or if the numbers of rows differ.
    """
    agreement = Agreement(a, b)
    sides = []
    with np.errstate(all="ignore"):  # NaN and infinity are counted
        for path in (a, b):
            precision = manifest_of(path).choice("precision", PRECISIONS)
            is_float = precision is None or precision.startswith("float")
            blocks = read_vectors(path) if is_float else read_float_vectors(path)
            first_block = next(blocks, np.zeros(0))
            sides.append(memory_mapped(chain([first_block], blocks), np.float64))
            agreement.dtype.append(precision or first_block.dtype.name)
        x, y = sides
        sizes = [side.shape[1:] for side in sides]  # empty for a file without lines
        sizes_differ = all(sizes) and sizes[0] != sizes[1]
        by_similarity = sizes_differ and all(side.ndim == 2 and len(side) for side in sides)
        difference = ""
        if sizes_differ and not by_similarity:
            shown = [" x ".join(map(str, size)) for size in sizes]
            difference = f"{a} has {shown[0]} dimensions, {b} has {shown[1]}"
        elif len(x) != len(y):
            difference = f"{a} has {counted(len(x), 'row')}, {b} has {len(y):,}"
        if difference:
            hint = "both must hold the same texts, same model"
            raise InputError(f"nothing to compare: {difference}", hint)
        if not all(sizes):
            agreement.dtype = []
        agreement.shape = [len(x)]
        finite = finite_rows(x) & finite_rows(y)
        agreement.not_finite = int((~finite).sum())
        if by_similarity:
            agreement.identical = False
            agreement.widths = [x.shape[1], y.shape[1]]
            agreement.similarity = similarity_agreement(x, y, finite)
        else:
            agreement.shape += sizes[0] or sizes[1]  # one of them may be empty
            _compare_rows(agreement, x, y, finite, worst)
    return agreement


def finite_rows(vectors: Array) -> Array:
    """Return True for each row without NaN and infinity, bool [n]."""
    is_finite = np.ones(len(vectors), bool)
    for start in range(0, len(vectors), ROWS_PER_BLOCK):
        block = vectors[start : start + ROWS_PER_BLOCK]
        is_finite[start : start + ROWS_PER_BLOCK] = (
            np.isfinite(block).reshape(len(block), -1).all(axis=1)
        )
    return is_finite


def _compare_rows(agreement: Agreement, x: Array, y: Array, is_finite: Array, worst: int) -> None:
    """Compare rows of one width; rows that are not finite only count for `identical`."""
    if not x.size:
        return
    blocks: list[tuple[Array, ...]] = []  # rows, largest and mean differences, cosines
    x = x.reshape(len(x), -1)
    y = y.reshape(len(y), -1)
    for start in range(0, len(x), ROWS_PER_BLOCK):
        block = slice(start, start + ROWS_PER_BLOCK)
        equal = (x[block] == y[block]) | (np.isnan(x[block]) & np.isnan(y[block]))
        agreement.identical = agreement.identical and bool(equal.all())
        finite = is_finite[block]
        p = x[block][finite]
        q = y[block][finite]
        differences = np.abs(p - q)
        rows = start + np.flatnonzero(finite)
        largest = differences.max(axis=1)
        blocks.append((rows, largest, differences.mean(axis=1), _row_cosines(p, q)))
    if not is_finite.any():
        return
    rows, largest, means, cosines = map(np.concatenate, zip(*blocks, strict=True))
    agreement.mean_abs = float(means.mean())
    agreement.cosine_mean = float(cosines.mean())
    agreement.max_abs = float(largest.max())
    agreement.cosine_min = float(cosines.min())
    top = np.lexsort((rows, -largest))[:worst]
    columns = (rows[top].tolist(), largest[top].tolist(), cosines[top].tolist())
    agreement.worst = list(map(Row, *columns))


def _row_cosines(p: Array, q: Array) -> Array:
    """Return the cosine of each row of p and q; 1 for two rows of zeros, 0 for one."""
    products = (p * q).sum(axis=1)
    p_squares = (p * p).sum(axis=1)
    q_squares = (q * q).sum(axis=1)
    lengths = np.sqrt(p_squares) * np.sqrt(q_squares)
    both_zero = ((p_squares == 0) & (q_squares == 0)).astype(np.float64)
    return np.clip(np.divide(products, lengths, out=both_zero, where=lengths > 0), -1, 1)


MAX_SAMPLE_ROWS = 2048  # all similarities of the sample are in memory
MAX_NEIGHBOURS = 10  # of each row
SAMPLE_SEED = 0
MIN_ROWS = 3  # fewer rows have at most one similarity


@dataclass(frozen=True)
class SimilarityAgreement:
    """How far the similarities of two files agree; None if there are too few rows."""

    similarity_correlation: float | None
    neighbour_overlap: float | None
    neighbours: int
    rows_compared: int
    seed: int | None  # None: all rows were compared


def similarity_agreement(a: Array, b: Array, is_finite: Array) -> SimilarityAgreement:
    """Compare the similarities between finite rows, or between those of a sample."""
    keys = np.random.default_rng(SAMPLE_SEED).random(len(a))
    sample = np.sort(np.argsort(keys, kind="stable")[:MAX_SAMPLE_ROWS])
    sample = sample[is_finite[sample]]
    count = len(sample)
    neighbours = max(0, min(MAX_NEIGHBOURS, count - 1))
    seed = SAMPLE_SEED if len(a) > MAX_SAMPLE_ROWS else None
    if count < MIN_ROWS:
        return SimilarityAgreement(None, None, neighbours, count, seed)
    similarities = []
    for vectors in (a, b):
        normalized = unit_vectors(vectors[sample]).astype(np.float32)
        similarities.append(normalized @ normalized.T)
    off_diagonal = ~np.eye(count, dtype=bool)
    pairs = [cosines[off_diagonal].astype(np.float64) for cosines in similarities]
    correlation = None  # undefined for constant similarities
    if min(map(np.var, pairs)) >= 1e-12:
        correlation = float(np.asarray(np.corrcoef(pairs))[0, 1])
    nearest = []
    for cosines in similarities:
        np.fill_diagonal(cosines, -np.inf)  # a row is not its own neighbour
        nearest.append(np.argpartition(-cosines, neighbours - 1)[:, :neighbours].tolist())
    shared = sum(len(set(p) & set(q)) for p, q in zip(*nearest, strict=True))
    overlap = shared / (count * neighbours)
    return SimilarityAgreement(correlation, overlap, neighbours, count, seed)
