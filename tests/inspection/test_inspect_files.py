"""`bertcli inspect FILE`: arrays and records, their norms, what is not finite, and manifests."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from front import (
    TINY,
    bad,
    good,
    inspected,
    jsonl,
    peak,
    put_json,
    report,
)
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

RANDOM = np.random.default_rng(7)
VECTORS = RANDOM.normal(0, 1, (1000, 24)).astype(np.float32)
SPOILED = VECTORS.copy()
SPOILED[3, 5] = np.nan
SPOILED[4, :2] = np.inf, -np.inf


def write(path, vectors):
    """The same vectors in any of the formats."""
    match "".join(path.suffixes):
        case ".npy":
            np.save(path, vectors)
        case ".npz":
            np.savez(path, embedding=vectors)
        case ".safetensors":
            save_file({"embedding": vectors}, path)
        case ".parquet":
            lists = pa.array(list(vectors), pa.list_(pa.float32()))
            pq.write_table(pa.table({"id": range(len(vectors)), "embedding": lists}), path)
        case ".jsonl" | ".jsonl.gz":
            lines = jsonl({"id": at, "embedding": row.tolist()} for at, row in enumerate(vectors))
            content = lines.encode()
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        case ".csv" | ".csv.gz":
            rows = "".join(f'{at},"{json.dumps(row.tolist())}"\n' for at, row in enumerate(vectors))
            content = f"id,embedding\n{rows}".encode()
            path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


FORMS = ["npy", "npz", "safetensors", "parquet", "jsonl", "jsonl.gz", "csv", "csv.gz"]


@pytest.mark.parametrize("form", FORMS)
def test_every_format_tells_the_same(form, tmp_path):
    found = report(write(tmp_path / f"out.{form}", VECTORS))
    assert list(found) == [
        "file",
        "format",
        "bytes",
        "records",
        "fields",
        "arrays",
        "manifest",
        "warnings",
    ]
    (array,) = found["arrays"]
    norms = np.linalg.norm(VECTORS.astype(float), axis=1)
    assert array["shape"] == [1000, 24]
    assert array["norm"] == pytest.approx(
        {"min": norms.min(), "mean": norms.mean(), "max": norms.max()}, rel=1e-9
    )
    assert array["nan"] == array["inf"] == 0
    assert found["warnings"] == [] and found["manifest"] is None


def test_numbers_too_large_for_a_norm(tmp_path):
    """And a NaN that signals: numpy would warn of both."""
    vectors = np.full((3, 4), np.finfo("f8").max)
    vectors.view(np.uint64)[0, 0] = 0x7FF4000000000000
    np.save(tmp_path / "out.npy", vectors)
    (array,) = report(tmp_path / "out.npy")["arrays"]
    assert (array["nan"], array["norm"]) == (1, None)
    assert "1 of 12 numbers are NaN" in good("inspect", tmp_path / "out.npy").out


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_is_counted_and_kept_out(form, tmp_path):
    path = write(tmp_path / f"out.{form}", SPOILED)
    found = report(path)
    (array,) = found["arrays"]
    whole = np.delete(SPOILED, [3, 4], axis=0).astype(float)
    assert (array["nan"], array["inf"]) == (1, 2)
    assert array["norm"]["max"] == pytest.approx(np.linalg.norm(whole, axis=1).max())
    assert len(found["warnings"]) == 2
    code, out, _ = inspected(path)
    assert code == 0 and "2 of 24,000 numbers are infinite" in out
    assert inspected(path, "--verify")[0] == 1


def test_null_in_json_is_no_number(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"v": [1, null]}\n\n{"v": [3, 4]}\n')
    (array,) = report(tmp_path / "x.jsonl")["arrays"]
    assert array["nan"] == 1 and array["norm"]["max"] == 5


def test_ragged_and_nested_vectors(tmp_path):
    rows = [{"tokens": ["a"], "vectors": [[3, 4], [0, 1]]}, {"vectors": [[6, 8, 0]], "text": None}]
    (tmp_path / "x.jsonl").write_text(jsonl(rows))
    found = report(tmp_path / "x.jsonl")
    (array,) = found["arrays"]
    assert array["shape"] == [3, "2..3"] and array["norm"]["max"] == 10
    assert found["fields"] == {"tokens": "list", "vectors": "numbers", "text": "null"}
    lists = pa.array([[3.0, 4.0], None, [], [1.0]])
    pq.write_table(pa.table({"v": lists}), tmp_path / "x.parquet")
    found = report(tmp_path / "x.parquet")
    (array,) = found["arrays"]
    assert found["records"] == 4 and array["shape"] == [3, "0..2"] and array["norm"]["max"] == 5


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int8).reshape(2, 3),
        np.arange(5, dtype=np.float64),
        np.float32(3.0),
        np.zeros((0, 4), np.float32),
        np.zeros((4, 0), np.float32),
        np.ones((2, 3, 4), ">f4"),
        np.array([[True, False]]),
        np.ones((2, 2), np.complex64),
        np.array(["a", "bc"]),
        np.ones((5, 3), np.float16),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_of_every_kind(array, tmp_path):
    np.save(tmp_path / "x.npy", array)
    (found,) = report(tmp_path / "x.npy")["arrays"]
    assert found["shape"] == list(array.shape) and found["dtype"] == str(array.dtype)
    if array.dtype.kind in "fi" and array.size:
        assert found["numbers"] == array.size
    if array.ndim < 2 or not array.size:
        assert found["norm"] is None
    assert inspected(tmp_path / "x.npy")[0] == 0


def test_safetensors_of_every_type(tmp_path):
    kinds = {
        str(kind): torch.tensor([[1, 2], [0, 1]]).to(kind)
        for kind in (
            torch.bfloat16,
            torch.float16,
            torch.float64,
            torch.int8,
            torch.int64,
            torch.bool,
            torch.float8_e4m3fn,
        )
    }
    save_torch(kinds, tmp_path / "x.safetensors")
    found = {one["name"]: one for one in report(tmp_path / "x.safetensors")["arrays"]}
    for name, tensor in kinds.items():
        norm = found[name]["norm"]
        largest = float(tensor.double().norm(dim=1).max())
        assert norm is None if "float8" in name else norm["max"] == pytest.approx(largest)


def test_weights_of_a_model_are_a_file_too():
    code, out, _ = inspected("samples/tiny-bert/model.safetensors")
    assert code == 0 and "and 19 more: --tensors shows all" in out
    out = inspected("samples/tiny-bert/model.safetensors", "--tensors")[1]
    assert "pooler.dense.weight" in out and "more" not in out


# --- manifests ---


def test_manifest_is_shown_and_compared(tmp_path):
    path = write(tmp_path / "out.npy", VECTORS)
    manifest = {"model": "m", "shape": [1000, 24], "dtype": "float32"}
    manifest["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    beside = tmp_path / "out.npy.manifest.json"
    put_json(beside, manifest)
    found = report(path)
    assert found["manifest"] == manifest and found["warnings"] == []
    assert "manifest" in inspected(path)[1]
    code, out, _ = inspected(path, "--verify")
    assert code == 0 and "ok    sha256" in out
    put_json(beside, manifest | {"shape": [999, 24], "sha256": "0" * 64})
    code, out, _ = inspected(path, "--verify")
    assert code == 1 and "WRONG" in out
    for broken in ("nope", "[]"):
        beside.write_text(broken)
        assert len(report(path)["warnings"]) == 1


PRECISIONS = ["float32", "float16", "int8", "uint8", "binary", "ubinary"]


@pytest.mark.parametrize(
    ("form", "precision"),
    [*(("npy", name) for name in PRECISIONS), *((name, "int8") for name in FORMS[1:])],
)
def test_what_embed_has_written_has_no_warnings(form, precision, tmp_path):
    path = tmp_path / f"out.{form}"
    given = ("-m", TINY, "--precision", precision, "-o", path)
    good("embed", "-q", *given, "Hello", "Is this a longer text?")
    assert report(path)["warnings"] == []


@pytest.mark.parametrize("form", ["npy", "parquet", "jsonl"])
@pytest.mark.parametrize("what", ["--token-vectors", "--word-vectors=max", "--layers=0,-1"])
def test_vectors_of_tokens_words_and_layers_are_measured(form, what, tmp_path):
    path = tmp_path / f"out.{form}"
    given = ("-m", TINY, what, "--layer-combine", "stack", "-o", path)
    good("embed", "-q", *given, "Hello", "", "hi you")
    found = report(path)
    (array,) = found["arrays"]
    assert found["warnings"] == []
    assert array["numbers"] == np.prod(found["manifest"]["shape"])
    assert array["norm"]["min"] > 0


def test_offsets_of_tokens_are_no_vectors(tmp_path):
    for form in ("jsonl", "parquet"):
        path = tmp_path / f"ids.{form}"
        good("tokenize", "-m", TINY, "--offsets", "-o", path, "a")
        found = report(path)
        assert "offset_mapping" not in [array["name"] for array in found["arrays"]]
        assert found["fields"]["offset_mapping"]


def test_a_manifest_says_how_the_vectors_were_made(tmp_path):
    path = tmp_path / "out.npy"
    given = ("-m", "samples/tiny-bert", "--pooling", "cls", "--normalize", "-o", path)
    good("embed", "-q", *given, "Hello")
    shown = " ".join(inspected(path, COLUMNS="200")[1].split())
    for fact in ("model samples/tiny-bert", "pooling cls", "normalize yes", "max length 128"):
        assert fact in shown


@pytest.mark.parametrize("made", [None, "x", 3, [], {}, {"options": 1, "weights": {"a": None}}])
def test_a_fingerprint_of_any_kind_is_shown(made, tmp_path):
    path = write(tmp_path / "out.npy", VECTORS)
    put_json(tmp_path / "out.npy.manifest.json", {"fingerprint": made})
    assert inspected(path)[0] == 0


def test_verify_without_a_manifest_gives_the_hash(tmp_path):
    path = write(tmp_path / "out.npy", VECTORS)
    code, out, _ = inspected(path, "--verify")
    assert code == 0 and hashlib.sha256(path.read_bytes()).hexdigest() in out


# --- broken files ---


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.99])
def test_files_cut_off(form, part, tmp_path):
    path = write(tmp_path / f"out.{form}", VECTORS)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    assert str(path) in bad("inspect", path).err


@pytest.mark.parametrize("form", FORMS)
def test_files_of_rubbish(form, tmp_path):
    path = tmp_path / f"out.{form}"
    path.write_bytes(b"\x93rubbish, and more rubbish" * 10)
    assert str(path) in bad("inspect", path).err


def test_names_that_lead_nowhere(tmp_path):
    assert "file not found" in bad("inspect", tmp_path / "nothing.npy").err
    (tmp_path / "x.tsv").write_text("a\n")
    assert "unknown format" in bad("inspect", tmp_path / "x.tsv").err
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    assert "loop.npy" in bad("inspect", tmp_path / "loop.npy").err


def test_files_have_no_config_and_no_attention(tmp_path):
    path = write(tmp_path / "out.npy", VECTORS)
    assert inspected(path, "--tree")[0] == 2
    assert inspected(path, "--attention", "x")[0] == 2


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")
def test_memory_is_that_of_a_block(tmp_path):
    """400 MB in less than 100 MB, of which Python and numpy take 40."""
    path = tmp_path / "large.npy"
    header = np.lib.format.header_data_from_array_1_0(np.zeros((1, 1000), np.float32))
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header | {"shape": (100_000, 1000)})
        file.truncate(file.tell() + 400_000_000)  # a hole, which takes no room on the disk
    assert report(path)["arrays"][0]["shape"] == [100_000, 1000]
    assert peak("inspect", path, "--json") < 100


def test_archives_that_were_damaged(tmp_path):
    """A changed byte of the data is found by its checksum, compressed or not."""
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / "x.npz"
        save(path, embedding=VECTORS)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
        assert "x.npz" in bad("inspect", path).err


def test_the_last_column_of_csv_is_like_the_others(tmp_path):
    (tmp_path / "x.csv").write_text('embedding,id\n"[1, 2]",7\n"[3, 4]",\n')
    (found,) = good("inspect", tmp_path / "x.csv", "--json").rows
    assert found["fields"] == {"embedding": "numbers", "id": "null"}
    assert (found["records"], found["arrays"][0]["shape"]) == (2, [2, 2])
