"""Vectors of bits: scores as of the same vectors restored."""

import numpy as np
import pytest
from front import (
    bad,
    call,
    good,
    put_json,
)
from test_search import TINY, nearest
from vector_files import normal

from bertcli.errors import InputError
from bertcli.formats.precision import quantize, restore
from bertcli.retrieval.corpus import VectorFile
from bertcli.retrieval.nearest import Nearest
from bertcli.retrieval.search import add_stored


def stored(path, vectors, precision):
    bits = quantize(vectors, precision)
    np.save(path, bits)
    put_json(path.with_name(f"{path.name}.manifest.json"), {"precision": precision})
    return bits


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
@pytest.mark.parametrize("width", [5, 16, 40, 64, 96])
def test_the_answers_are_those_of_restored_vectors(tmp_path, precision, width):
    queries, path = normal(4, width, seed=5), tmp_path / "v.npy"
    bits = stored(path, normal(300, width), precision)
    found = Nearest(queries, 9)
    add_stored(found, VectorFile(str(path)))
    assert found.rows == 300
    assert found.matches() == nearest(queries, [restore(bits, precision, None, width)], 9)


def test_rows_of_another_width(tmp_path):
    stored(tmp_path / "v.npy", normal(3, 24), "binary")
    with pytest.raises(InputError, match=r"v\.npy: has 24 dimensions, and the model 32"):
        add_stored(Nearest(normal(1, 32), 2), VectorFile(str(tmp_path / "v.npy")))


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "jsonl", "csv", "parquet"])
@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_the_command_in_every_format(tmp_path, form, precision):
    texts = ["one", "two", "The cat sat.", "three " * 9]
    (tmp_path / "c.txt").write_text("".join(text + "\n" for text in texts))
    argv = ("embed", "-q", "-m", TINY, "-i", tmp_path / "c.txt", "--precision", precision, "-o")
    good(*argv, tmp_path / f"v.{form}")
    asked = ("similar", "-q", "-m", TINY, "two", "--vectors")
    answer = good(*asked, tmp_path / f"v.{form}").rows[0]
    assert [hit["row"] for hit in answer["hits"]][:1] == [1]
    assert len(answer["hits"]) == 4


def test_a_file_that_is_not_bits(tmp_path):
    (tmp_path / "c.txt").write_text("one\n")
    out = tmp_path / "v.npy"
    argv = ("embed", "-q", "-m", TINY, "-i", tmp_path / "c.txt", "--precision", "binary", "-o", out)
    good(*argv)
    np.save(out, normal(2, 32))
    done = bad("similar", "-m", TINY, "-q", "one", "--vectors", out)
    assert "v.npy: was changed after it was made" in done.error
    assert call("similar", "-m", TINY, "-q", "one", "--vectors", tmp_path / "c.txt").code == 1


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_no_rows_are_no_hits(tmp_path, precision):
    (tmp_path / "none.txt").touch()
    vectors = tmp_path / "v.jsonl"  # which does not tell how wide a row would be
    call("embed", "-m", TINY, "-i", tmp_path / "none.txt", "--precision", precision, "-o", vectors)
    done = call("similar", "one", "-m", TINY, "--vectors", vectors)
    assert done.code == 0 and done.rows[0]["hits"] == [], done
