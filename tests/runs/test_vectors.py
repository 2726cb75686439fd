"""The file of vectors: its formats, what is refused, and that only the rows show in its bytes."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from front import json_in
from numpy.testing import assert_array_equal
from vector_files import vectors_in
from vector_sink import fields_of, open_vectors

from bertcli.errors import OutputError
from bertcli.formats import registry, vector_writer
from bertcli.formats.precision import PRECISIONS, RANGED, quantize, ranges_of
from bertcli.io.paths import sha256
from bertcli.runs.vector_run import VectorTarget

# Answers need the fields of requests: test_openai_batch.py has them.
FORMS = [
    name
    for name in registry.VECTORS
    if not registry.FORMATS[name].can_hold(registry.Holds.REQUESTS)
]
MODEL = {"model": {"id": "tiny", "weights": "ab12"}, "options": {"pooling": "mean", "layers": [-1]}}
ROWS = 40
VECTORS = np.random.default_rng(0).standard_normal((ROWS, 12)).astype(np.float32)
VECTORS[3, :4] = 0.1, 1e-20, 3e38, -0.0
METAS = [
    {
        "id": f"a{i}" if i % 7 else i,
        "n_tokens": i + 2,
        **({"truncated": i} if i % 5 == 4 else {}),
        **({"tag": ["é", None, ["x"], {"y": 1}, 2**70][i % 5]} if i > 20 else {}),
        "score": i if i % 2 else i / 4,
    }
    for i in range(ROWS)
]


def made(path, form, cuts=(), **options):
    """The bytes of the output, written in pieces and committed between them."""
    with open_vectors(VectorTarget(path, form, **options), MODEL) as sink:
        for start, end in zip([0, *cuts], [*cuts, ROWS], strict=True):
            sink.write(fields_of(METAS[start:end]), VECTORS[start:end])
            sink.commit({"read": end})
        sink.finish({"counts": {"records": ROWS}})
    return path.read_bytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_format_holds_every_precision(tmp_path, form, precision, monkeypatch):
    monkeypatch.setattr(vector_writer, "MAX_CHUNK_ROWS", 16)  # several chunks
    vectors = VECTORS.clip(-5, 5)
    path = tmp_path / f"out.{form}"
    with open_vectors(VectorTarget(path, form, precision), MODEL) as sink:
        sink.write(fields_of(METAS), vectors)
        sink.finish({})
    manifest = json_in(tmp_path / f"out.{form}.manifest.json")
    wanted = quantize(vectors, precision, ranges_of([vectors]))
    found = vectors_in(path)
    assert_array_equal(found.astype(wanted.dtype), wanted, strict=True)
    assert manifest["shape"] == list(wanted.shape)
    assert manifest["dtype"] == wanted.dtype.name
    if precision in RANGED:
        assert_array_equal(np.float32(manifest["ranges"]["min"]), vectors.min(0))
        assert_array_equal(np.float32(manifest["ranges"]["max"]), vectors.max(0))
    if form in ("npy", "npz", "safetensors"):
        assert found.dtype == wanted.dtype
    if form == "parquet":
        kind = pq.read_schema(path).field("embedding").type
        assert kind.list_size == wanted.shape[1]
        assert kind.value_type.to_pandas_dtype() == wanted.dtype


def test_jsonl_rows(tmp_path):
    lines = made(tmp_path / "out.jsonl", "jsonl").decode().splitlines()
    assert lines[3].startswith('{"id":"a3","embedding":[0.1,1e-20,3e+38,-0.0,')
    for line, meta, vector in zip(lines, METAS, VECTORS, strict=True):
        row = json.loads(line)
        assert list(row) == ["id", "embedding", *list(meta)[1:]]
        assert_array_equal(np.float32(row.pop("embedding")), vector)
        assert row == meta


def test_columns_of_csv_and_parquet(tmp_path):
    made(tmp_path / "out.csv", "csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "n_tokens", "truncated", "score", "tag", "embedding"]
    assert [int(row["truncated"]) for row in rows] == [meta.get("truncated", 0) for meta in METAS]
    made(tmp_path / "out.parquet", "parquet")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.column_names == list(rows[0])
    kinds = [str(kind) for kind in table.schema.types[:5]]
    assert kinds == ["string", "int64", "int64", "double", "string"]
    assert table["id"].to_pylist() == [str(meta["id"]) for meta in METAS]
    assert table["tag"].to_pylist()[21:26] == [None, '["x"]', '{"y":1}', str(2**70), "é"]


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.npy.zst", "out.csv.gz"])
def test_compressed(tmp_path, name):
    form = name.split(".")[1]
    plain = made(tmp_path / "plain", form)
    packed = made(tmp_path / name, form)
    if name.endswith("gz"):
        import gzip

        assert gzip.decompress(packed) == plain
    else:
        import zstandard

        assert zstandard.ZstdDecompressor().decompressobj().decompress(packed) == plain


def test_manifest(tmp_path):
    made(tmp_path / "out.npy", "npy")
    text = (tmp_path / "out.npy.manifest.json").read_text()
    manifest = json.loads(text)
    assert text == json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    assert manifest["fingerprint"] == {**MODEL, "format": "npy", "precision": "float32"}
    assert manifest["counts"] == {"records": ROWS}
    assert manifest["rows"] == ROWS
    assert manifest["sha256"] == sha256(tmp_path / "out.npy")
    made(tmp_path / "bare.npy", "npy", has_manifest=False)
    assert sorted(path.name for path in tmp_path.glob("bare*")) == [
        "bare.npy",
        "bare.npy.index.jsonl",
    ]
    made(tmp_path / "out.npy", "npy", overwrite=True, has_manifest=False)
    assert not (tmp_path / "out.npy.manifest.json").exists()  # that of the output before


def resumed(path, form="npy", fingerprint=MODEL, **options):
    with open_vectors(VectorTarget(path, form, resume=True, **options), fingerprint) as sink:
        read = (sink.state or {"read": 0})["read"]
        assert sink.rows == read
        sink.write(fields_of(METAS[read:]), VECTORS[read:])
        sink.finish({"counts": {"records": ROWS}})
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "form", "words"),
    [
        ("", "npy", "is a folder"),
        ("x" * 256, "npy", "File name too long"),
        ("pipe", "npy", "is a folder, device or pipe"),
    ],
)
def test_places_where_nothing_can_be_written(tmp_path, name, form, words):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError, match=words):
        made(tmp_path / name, form)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "out.npy").symlink_to(tmp_path / "far" / "real.npy")
    made(tmp_path / "out.npy", "npy")
    assert (tmp_path / "out.npy").is_symlink()
    assert {path.name for path in (tmp_path / "far").iterdir()} == {
        "real.npy",
        "real.npy.index.jsonl",
        "real.npy.manifest.json",
    }


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "out.npy"
    holder = (
        "import sys, pathlib\nfrom bertcli.io.output_files import OutputFiles\n"
        "with OutputFiles(pathlib.Path(sys.argv[1])).locked():\n"
        "    print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        with pytest.raises(OutputError, match="another bertcli"):
            made(path, "npy")
        process.kill()
    assert (tmp_path / "out.npy.run/bertcli.lock").exists()  # of the dead: no obstacle
    assert resumed(path) == made(tmp_path / "whole", "npy")
    assert not (tmp_path / "out.npy.run").exists()
