"""Vectors read back from every format: the same numbers, in blocks of one size."""

import gzip
import zipfile

import numpy as np
import pyarrow as arrow
import pytest
from front import (
    bad as failing,
)
from front import (
    call,
)
from pyarrow import parquet
from vector_files import normal

from bertcli.errors import InputError
from bertcli.formats.vector_files import manifest_of, read_float_vectors, read_vectors


def test_shortest_decimals_are_the_float32_they_stand_for(tmp_path):
    (tmp_path / "v.jsonl").write_text("[0.1]\n")
    assert next(read_vectors(str(tmp_path / "v.jsonl")))[0, 0] == np.float32(0.1)


def test_bytes_without_a_manifest_mean_nothing(tmp_path):
    path = str(tmp_path / "v.npy")
    np.save(path, np.ones((2, 3), np.int8))
    assert next(read_vectors(path)).dtype == np.int8
    with pytest.raises(InputError, match=r"v\.npy: holds int8, which cannot be converted"):
        list(read_float_vectors(path))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_manifest(tmp_path, content):
    (tmp_path / "v.npy.manifest.json").write_text(content)
    with pytest.raises(InputError, match=r"v\.npy\.manifest\.json: (not|expected) "):
        manifest_of(str(tmp_path / "v.npy"))


def bad(name, content, message):
    return pytest.param(name, content, message, id=f"{name}: {message}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        bad("v.txt", b"", "unknown format of vectors"),
        bad("v.npy", None, "file not found"),
        bad("v.npz", None, "file not found"),
        bad("v.safetensors", None, "file not found|not a readable"),
        bad("v.parquet", None, "file not found"),
        bad("v.npy", b"nonsense", "not a readable npy file"),
        bad("v.npz", b"nonsense", "not a readable npz file"),
        bad("v.safetensors", b"nonsense", "not a readable safetensors file"),
        bad("v.parquet", b"nonsense", "not a readable Parquet file"),
        bad("v.jsonl", b"[1]\n{", ":2: not a vector"),
        bad("v.jsonl", b'{"id": 1, "vectors": []}', r":1: field 'embedding' not found"),
        bad("v.jsonl", b"[1, 2]\n[1]\n", r":2: a vector of shape \(1,\), and before it \(2,\)"),
        bad("v.jsonl", b"[1, 2]\n[1]", r"row 1 is of shape \(1,\), and those before it \(2,\)"),
        bad("v.jsonl", b"[[1], [1, 2]]", ":1: not a vector"),
        bad("v.jsonl", b'["a"]', ":1: not a vector of numbers"),
        bad("v.jsonl", b"[]", ":1: not a vector of numbers"),
        bad("v.jsonl", b"7", ":1: not a vector of numbers"),
        bad("v.csv", b"id,vector\n1,2\n", "field 'embedding' not found"),
        bad("v.csv", b"id,embedding\n1,x\n", ":2: not a vector"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_vectors(str(path)))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"holds float64 of shape \(\) a row, not vectors"),
        (np.array([["a", "b"]]), "holds <U1"),
        (np.array([[{}]]), "holds object"),
    ],
)
def test_arrays_that_are_no_vectors(tmp_path, array, message):
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(InputError, match=message):
        list(read_vectors(str(tmp_path / "v.npy")))


def test_an_array_that_is_cut_off(tmp_path):
    path = tmp_path / "v.npy"
    np.save(path, normal(10, 4))
    path.write_bytes(path.read_bytes()[:-20])
    path.with_suffix(".npy.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match="ends after row 8 of 10"):
        list(read_vectors(f"{path}.gz"))
    with pytest.raises(InputError, match="ends after row 8 of 10"):
        list(read_vectors(str(path)))


def test_several_arrays_and_none_of_the_name(tmp_path):
    np.savez(tmp_path / "v.npz", a=normal(2, 2), b=normal(2, 2))
    with pytest.raises(InputError, match="array 'embeddings' not found") as caught:
        list(read_vectors(str(tmp_path / "v.npz")))
    assert caught.value.hint == "available: a, b"
    np.savez(tmp_path / "v.npz", a=normal(2, 2))
    assert sum(map(len, read_vectors(str(tmp_path / "v.npz")))) == 2
    with zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
        archive.writestr("archive/data.pkl", b"N.")
    with pytest.raises(InputError, match="array 'embeddings' not found"):
        list(read_vectors(str(tmp_path / "v.npz")))


@pytest.mark.parametrize("lists", [[[1.0], [1.0, 2.0]], [[1.0], None]])
def test_parquet_lists_of_several_lengths(tmp_path, lists):
    parquet.write_table(arrow.table({"embedding": lists}), tmp_path / "v.parquet")
    with pytest.raises(InputError, match=r"v\.parquet: column 'embedding' has rows of several"):
        list(read_vectors(str(tmp_path / "v.parquet")))


@pytest.mark.parametrize("command", ["compare", "inspect"])
@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_row_of_more_numbers_than_are_read_is_refused(tmp_path, command, form):
    """A line of JSON is not held whole."""
    path, row = tmp_path / f"a.{form}", f"[{'0,' * (1 << 24)}0]"
    path.write_text(f'embedding\n"{row}"\n' if form == "csv" else f'{{"embedding":{row}}}\n')
    said = failing(command, *([path] * (1 + (command == "compare")))).error
    assert "larger than 33,554,432 bytes" in said


def test_two_columns_of_vectors_are_refused(tmp_path):
    path = tmp_path / "v.csv"
    path.write_text('embedding,embedding\n"[1, 2]","[3, 4]"\n')
    done = call("compare", path, path)
    assert (done.code, done.error) == (1, f"{path}: field 'embedding' is there 2 times")
