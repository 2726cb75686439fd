"""How far apart the vectors of two files are, in the memory of a block.

    compare("a.npy", "b.parquet").max_abs
    compare("minilm.npy", "mpnet.npy").similarity.neighbour_overlap   # of other widths

Rows are numbered from 0. A row with NaN or infinity in either file is counted, and left out of the
other numbers. Vectors of different widths have no difference: what they agree on is measured, in
two numbers of cosines between texts: the correlation (Pearson) of the two similarity matrices, and
the share of the nearest neighbours of a text that both have. Of many rows a sample is taken, the
same in both.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from bertcli.embedding.sentence_modules import unit
from bertcli.errors import BertcliError, InputError, counted, option
from bertcli.formats.precision import PRECISIONS
from bertcli.formats.tables import rounded
from bertcli.formats.vector_files import ROWS, Array, floats, manifest_of, put_aside, stored


@dataclass(frozen=True)
class Row:
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
        written = asdict(self)
        widths, similarity = written.pop("widths"), written.pop("similarity")
        return rounded(written | ({"widths": widths, **similarity} if similarity else {}))

    def check(self, tolerance: float) -> None:
        """Raise BertcliError when a difference is greater than this, or cannot be measured."""
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
    """Compare two files of vectors row by row, and keep the ``worst`` rows.

    Vectors of a lower precision are restored first when their manifest says how. Raises InputError
    when a file cannot be read, or their rows are not as many.
    """
    agreement = Agreement(a, b)
    sides = []
    with np.errstate(all="ignore"):  # NaN and infinity are counted
        for path in (a, b):
            precision = manifest_of(path).choice("precision", PRECISIONS)
            is_float = precision is None or precision.startswith("float")
            blocks = stored(path) if is_float else floats(path)
            first = next(blocks, np.zeros(0))
            sides.append(put_aside(chain([first], blocks), np.float64))
            agreement.dtype.append(precision or first.dtype.name)
        x, y = sides
        sizes = [side.shape[1:] for side in sides]  # of a file without lines it is not known
        unlike = all(sizes) and sizes[0] != sizes[1]
        of_widths = unlike and all(side.ndim == 2 and len(side) for side in sides)
        what = ""
        if unlike and not of_widths:
            shown = [" x ".join(map(str, size)) for size in sizes]
            what = f"{a} has {shown[0]} dimensions, {b} has {shown[1]}"
        elif len(x) != len(y):
            what = f"{a} has {counted(len(x), 'row')}, {b} has {len(y):,}"
        if what:
            hint = "both must hold the same texts, same model"
            raise InputError(f"nothing to compare: {what}", hint)
        if not all(sizes):
            agreement.dtype = []
        agreement.shape = [len(x), *([] if of_widths else max(sizes, key=len))]
        whole = finite_rows(x) & finite_rows(y)
        agreement.not_finite = int((~whole).sum())
        if of_widths:
            agreement.widths, agreement.identical = [x.shape[1], y.shape[1]], False
            agreement.similarity = similarity_agreement(x, y, whole)
        else:
            _compare(agreement, x, y, whole, worst)
    return agreement


def finite_rows(vectors: Array) -> Array:
    """Return which rows, [n], have neither NaN nor infinity."""
    blocks = (vectors[at : at + ROWS] for at in range(0, len(vectors), ROWS))
    finite = (np.isfinite(block).reshape(len(block), -1).all(axis=1) for block in blocks)
    return np.concatenate([np.zeros(0, bool), *finite])


def _compare(agreement: Agreement, x: Array, y: Array, whole: Array, worst: int) -> None:
    """Compare rows of one width, those that are ``whole`` [n] by their distance too."""
    measured: list[tuple[Array, ...]] = []  # rows, largest and mean differences, cosines
    if not x.size:
        return
    x, y = (side.reshape(len(side), -1) for side in (x, y))
    for start in range(0, len(x), ROWS):
        p, q = x[start : start + ROWS], y[start : start + ROWS]
        same = (p == q) | (np.isnan(p) & np.isnan(q))
        agreement.identical = agreement.identical and bool(same.all())
        finite = whole[start : start + ROWS]
        p, q = p[finite], q[finite]
        dots, pp, qq = ((left * right).sum(axis=1) for left, right in ((p, q), (p, p), (q, q)))
        scale, alike = np.sqrt(pp) * np.sqrt(qq), ((pp == 0) & (qq == 0)).astype(np.float64)
        # Two vectors of zeros are alike, one is not.
        cosines = np.clip(np.divide(dots, scale, out=alike, where=scale > 0), -1, 1)
        apart = np.abs(p - q)
        rows = start + np.flatnonzero(finite)
        measured.append((rows, apart.max(axis=1), apart.mean(axis=1), cosines))
    if not whole.any():
        return
    rows, largest, means, cosines = map(np.concatenate, zip(*measured, strict=True))
    agreement.mean_abs, agreement.cosine_mean = float(means.mean()), float(cosines.mean())
    agreement.max_abs, agreement.cosine_min = float(largest.max()), float(cosines.min())
    top = np.lexsort((rows, -largest))[:worst]
    columns = rows[top].tolist(), largest[top].tolist(), cosines[top].tolist()
    agreement.worst = [*map(Row, *columns)]


SAMPLE = 2048  # rows, at most: all their similarities are held
NEIGHBOURS = 10  # of each row, at most
SEED = 0  # of the sample
FEWEST = 3  # rows that have more than one similarity


@dataclass(frozen=True)
class SimilarityAgreement:
    """What two files agree on; None where there are too few rows to tell."""

    similarity_correlation: float | None
    neighbour_overlap: float | None
    neighbours: int
    rows_compared: int
    seed: int | None  # None: all rows were compared


def similarity_agreement(a: Array, b: Array, whole: Array) -> SimilarityAgreement:
    """Compare the similarities of rows that are ``whole`` [n], of a sample of many."""
    keys = np.random.default_rng(SEED).random(len(a))
    chosen = np.sort(np.argsort(keys, kind="stable")[:SAMPLE])
    x, y = (unit(vectors[chosen[whole[chosen]]]).astype(np.float32) for vectors in (a, b))
    rows = len(x)
    nearest = max(0, min(NEIGHBOURS, rows - 1))
    seed = SEED if len(a) > SAMPLE else None
    if rows < FEWEST:
        return SimilarityAgreement(None, None, nearest, rows, seed)
    similarities = [vectors @ vectors.T for vectors in (x, y)]
    pairs = [cosines[~np.eye(rows, dtype=bool)].astype(np.float64) for cosines in similarities]
    correlation = None  # of a constant there is none
    if min(map(np.var, pairs)) >= 1e-12:
        correlation = float(np.asarray(np.corrcoef(pairs))[0, 1])
    for cosines in similarities:  # a row is no neighbour of its own
        np.fill_diagonal(cosines, -np.inf)
    p, q = (np.argpartition(-cosines, nearest - 1)[:, :nearest] for cosines in similarities)
    shared = sum(len({*a} & {*b}) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    return SimilarityAgreement(correlation, shared / (rows * nearest), nearest, rows, seed)
