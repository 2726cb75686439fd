"""Two files of vectors: how far apart, and where."""

import json

import numpy as np
import pytest
from front import put_json
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from vector_files import normal
from vector_sink import fields_of, open_vectors

from bertcli.cli import app
from bertcli.errors import BertcliError, InputError
from bertcli.formats import vector_files as stored
from bertcli.retrieval.compare import compare
from bertcli.runs.vector_run import VectorTarget

PAIRS = st.tuples(st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(*2 * [arrays(np.float32, shape, elements=st.floats(-9, 9, width=32))])
)


@pytest.fixture
def write(tmp_path):
    def write(name, vectors, **manifest):
        path = tmp_path / name
        if path.suffix == ".npy":
            np.save(path, vectors)
        else:
            lines = [json.dumps({"embedding": row}) for row in np.asarray(vectors).tolist()]
            path.write_text("".join(line + "\n" for line in lines))
        if manifest:
            put_json(tmp_path / f"{name}.manifest.json", manifest)
        return str(path)

    return write


@pytest.fixture
def run(capsys):

    def run(*argv):
        code = app.main(["compare", *argv])
        return code, *capsys.readouterr()

    return run


@settings(deadline=None, max_examples=40)
@given(pair=PAIRS)
def test_the_numbers_are_those_of_the_whole_arrays(tmp_path_factory, pair):
    """Whatever the blocks, the worst rows come first, and the earlier of two equal ones."""
    folder = tmp_path_factory.mktemp("pair")
    for name, vectors in zip("ab", pair, strict=True):
        np.save(folder / f"{name}.npy", vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "ROWS_PER_BLOCK", 4)
        found = compare(str(folder / "a.npy"), str(folder / "b.npy"), worst=3)
    apart = np.abs(pair[0].astype(np.float64) - pair[1])
    assert found.max_abs == apart.max()
    assert found.mean_abs == pytest.approx(apart.mean())
    order = np.argsort(-apart.max(axis=1), kind="stable")[:3]
    assert [row.row for row in found.worst] == order.tolist()
    assert found.identical == (pair[0] == pair[1]).all()
    assert found.cosine_min <= found.cosine_mean + 1e-12


def test_cosines_by_hand(write):
    a = write("a.npy", [[1.0, 0], [1, 0], [1, 1], [0, 0], [0, 0]])
    b = write("b.npy", [[2.0, 0], [0, 5], [-1, -1], [0, 0], [1, 0]])
    found = compare(a, b)
    assert {row.row: round(row.cosine, 12) for row in found.worst} == {
        0: 1,
        1: 0,
        2: -1,
        3: 1,
        4: 0,
    }
    assert found.cosine_min == pytest.approx(-1)
    assert found.cosine_mean == pytest.approx(0.2)


def test_formats_and_precisions_may_differ(write):
    vectors = normal(50, 8)
    low, high = np.full(8, -4.0).tolist(), np.full(8, 4.0).tolist()
    small = np.clip(np.floor((vectors + 4) / (8 / 255)), 0, 255) - 128
    a = write("a.jsonl", vectors)
    b = write("b.npy", small.astype(np.int8), precision="int8", ranges={"min": low, "max": high})
    found = compare(a, b)
    assert found.dtype == ["float32", "int8"]
    assert 0 < found.max_abs <= 0.51 * 8 / 255
    assert compare(a, write("c.npy", vectors.astype(np.float16))).max_abs < 2e-3


def test_rows_that_are_not_finite_are_counted_and_left_out(write):
    vectors = normal(4, 3)
    vectors[2, 1] = np.nan
    a = write("a.npy", vectors)
    found = compare(a, a)
    assert (found.not_finite, found.identical, found.max_abs) == (1, True, 0)
    found.check(0)
    vectors[1, 1] = np.inf
    found = compare(a, write("b.npy", vectors))
    assert (found.not_finite, found.identical) == (2, False)
    with pytest.raises(BertcliError, match="2 rows contain NaN or infinity"):
        found.check(1)
    vectors.view(np.uint32)[0, 0] = 0x7FA00000  # a NaN that signals, of which numpy would warn
    path = write("c.npy", vectors)
    assert compare(path, path).not_finite == 3


EMPTY = ("npy", "npz", "safetensors", "parquet")


def empty(path, width):
    """Make a file as embed makes it of no text."""
    target = VectorTarget(path, path.suffix[1:])
    with open_vectors(target, {}) as sink:
        sink.write(fields_of([]), np.zeros((0, width), np.float32))
        sink.commit({})
        sink.finish({})


@pytest.mark.parametrize("one", EMPTY)
@pytest.mark.parametrize("other", [*EMPTY, "jsonl", "csv"])
def test_no_rows_have_a_width(tmp_path, run, one, other):
    """In formats that say it; a file of lines has none."""
    for name, width in ((f"a.{one}", 8), (f"b.{other}", 8), (f"c.{other}", 5)):
        empty(tmp_path / name, width)
    code, out, err = run(*(str(tmp_path / name) for name in (f"a.{one}", f"b.{other}")))
    assert (code, err, json.loads(out)["shape"]) == (0, "", [0, 8])
    code, out, err = run(*(str(tmp_path / name) for name in (f"a.{one}", f"c.{other}")))
    assert code == (other in EMPTY)
    assert ("8 dimensions" in err and "has 5" in err) == (other in EMPTY)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 4), (2, 5)], r"a\.npy has 3 rows, .*b\.npy has 2$"),
        ([(3, 4), (5, 4)], r"a\.npy has 3 rows, .*b\.npy has 5$"),
        ([(3, 4), (3, 2, 4)], r"a\.npy has 4 dimensions, .*b\.npy has 2 x 4$"),
        ([(3, 4), (0, 4)], r"a\.npy has 3 rows, .*b\.npy has 0$"),
        (
            [(stored.ROWS_PER_BLOCK + 1, 2), (stored.ROWS_PER_BLOCK, 2)],
            r"has 2,049 rows, .* has 2,048$",
        ),
    ],
)
def test_other_shapes_cannot_be_compared(write, shapes, message):
    paths = [write(f"{name}.npy", normal(*s)) for name, s in zip("ab", shapes, strict=True)]
    with pytest.raises(InputError, match=f"nothing to compare: .*{message}"):
        compare(*paths)


def by_hand(x, y, nearest):
    """Return the correlation of the similarities of all pairs, and the overlap of neighbours."""
    cosines = []
    for vectors in (x, y):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines.append(unit.astype(np.float64) @ unit.T)
    upper = np.triu_indices(len(x), 1)
    correlation = np.corrcoef(*(one[upper] for one in cosines))[0, 1]
    for one in cosines:
        np.fill_diagonal(one, -2)
    sets = [[{*np.argsort(-row)[:nearest].tolist()} for row in one] for one in cosines]
    overlap = np.mean([len(p & q) / nearest for p, q in zip(*sets, strict=True)])
    return correlation, overlap


@pytest.mark.parametrize(("rows", "nearest"), [(3, 2), (8, 7), (700, 10)])
def test_vectors_of_different_widths_agree_on_similarities(write, rows, nearest):
    x = normal(rows, 6)
    y = np.hstack([x, normal(rows, 3, seed=1)])
    found = compare(write("a.npy", x), write("b.jsonl", y))
    correlation, overlap = by_hand(x, y, nearest)
    assert found.similarity.similarity_correlation == pytest.approx(correlation, abs=1e-5)
    assert found.similarity.neighbour_overlap == pytest.approx(overlap, abs=1e-3)
    agreed = found.similarity
    assert (agreed.neighbours, agreed.rows_compared, agreed.seed) == (nearest, rows, None)
    assert (found.shape, found.widths, found.identical) == ([rows], [6, 9], False)


def test_command_with_different_widths(write, run):
    a, b = write("a.npy", normal(9, 4)), write("b.npy", normal(9, 5))
    code, out, err = run(a, b)
    row = json.loads(out)
    assert (code, err, row["widths"], row["max_abs"], row["worst"]) == (0, "", [4, 5], None, [])
    assert {"similarity_correlation", "neighbour_overlap", "neighbours", "seed"} < {*row}
    assert "widths" not in json.loads(run(a, a)[1])
    code, out, _ = run(a, b, "-f", "table")
    assert (code, "neighbour overlap" in out, "4, 5" in out) == (0, True, True)
    code, _, err = run(a, b, "--tolerance", "1")
    assert code == 1
    assert "--tolerance needs vectors of one width" in err


def test_command_with_a_tolerance(write, run):
    a, b = write("a.npy", normal(2, 4)), write("b.npy", normal(2, 4) + 0.25)
    assert run(a, b, "--tolerance", "0.3")[0] == 0
    code, out, err = run(a, b, "--tolerance", "1e-5")
    assert code == 1
    assert json.loads(out)["max_abs"] == pytest.approx(0.25)
    assert err.startswith("error: row ")
    assert "differs by 0.25, more than --tolerance 1e-05" in err
