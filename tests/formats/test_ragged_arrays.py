"""--ragged: flat ids and offsets, written, mapped, decoded and inspected."""

import json
import mmap
import zipfile

import hostile
import numpy as np
import pytest
import safetensors.numpy
from front import call

from bertcli.formats import arrays
from bertcli.tokenizing import encode_block

TEXTS = [text.replace("\n", "").replace("\r", "") for text in hostile.composed(4, 300)]
FORMS = ["npz", "safetensors"]


def read(path):
    if path.suffix == ".safetensors":
        return safetensors.numpy.load_file(path)
    with np.load(path) as archive:
        return dict(archive)


@pytest.mark.parametrize("few", [0, 10**6])
@pytest.mark.parametrize("form", FORMS)
def test_ids_and_offsets(tmp_path, monkeypatch, form, few):
    monkeypatch.setattr(encode_block, "FEW_RECORDS", few)
    out, rows = tmp_path / f"x.{form}", "\n".join(TEXTS)
    assert call("tokenize", "-q", "--ragged", "-o", out, stdin=rows).code == 0
    found, right = read(out), call("tokenize", "-q", stdin=rows).ids
    assert {name: array.dtype.name for name, array in found.items()} == {
        "input_ids": "uint32",
        "offsets": "int64",
    }
    assert found["offsets"][0] == 0
    ends = zip(found["offsets"], found["offsets"][1:], strict=False)
    assert [found["input_ids"][start:stop].tolist() for start, stop in ends] == right


@pytest.mark.parametrize("form", FORMS)
def test_types_of_pairs_that_come_late(tmp_path, monkeypatch, form):
    monkeypatch.setattr(encode_block, "FEW_RECORDS", 2)
    out, source = tmp_path / f"x.{form}", tmp_path / "x.jsonl"
    lines = [{"text": text, "pair": "b c" if at > 1 else None} for at, text in enumerate("abcd")]
    source.write_text("\n".join(map(json.dumps, lines)))
    options = ["-q", "-i", source, "-i", source, "--special-tokens-mask"]
    assert call("tokenize", *options, "--ragged", "-o", out).code == 0
    found, rows = read(out), call("tokenize", *options).rows
    for name in ("input_ids", "token_type_ids", "special_tokens_mask"):
        assert found[name].tolist() == [number for row in rows for number in row[name]]


def test_members_can_be_mapped(tmp_path):
    out = tmp_path / "x.npz"
    call("tokenize", "a b c", "--ragged", "-o", out)
    with zipfile.ZipFile(out) as archive, out.open("rb") as file:
        (ids, _) = archive.infolist()
        assert ids.compress_type == zipfile.ZIP_STORED
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            assert whole.find(np.array([101, 1037, 1038, 1039, 102], "<u4").tobytes()) > 0


@pytest.mark.parametrize("form", FORMS)
def test_decode_and_inspect(tmp_path, monkeypatch, form):
    monkeypatch.setattr(arrays, "ROWS_PER_BLOCK", 7)
    monkeypatch.setattr(arrays, "NUMBERS_PER_BLOCK", 50)
    out = tmp_path / f"x.{form}"
    call("tokenize", "-q", "--ragged", "-o", out, stdin="\n".join(TEXTS))
    found = call("decode", "-q", "-i", out, "-f", "jsonl").rows
    assert (
        found
        == call(
            "decode", "-q", "-f", "jsonl", stdin=call("tokenize", "-q", stdin="\n".join(TEXTS)).out
        ).rows
    )
    seen = call("inspect", out, "--json")
    assert seen.code == 0
    assert '"offsets"' in seen.out


def test_no_texts(tmp_path):
    out = tmp_path / "x.npz"
    assert call("tokenize", "-q", "--ragged", "-o", out, stdin="").code == 0
    assert (read(out)["input_ids"].tolist(), read(out)["offsets"].tolist()) == ([], [0])
    assert call("decode", "-q", "-i", out).out == ""


NOT_WHOLE = "input_ids and offsets are not lists of whole numbers"


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([1, 2], [1, 2], "offsets do not divide the 2 ids"),
        ([1, 2], [0, 2, 1, 2], "offsets do not divide the 2 ids"),
        ([1, 2], [0, 3], "offsets do not divide the 2 ids"),
        ([1, 2], [0, 1], "offsets do not divide the 2 ids"),
        ([1.5], [0, 1], NOT_WHOLE),
    ],
)
def test_what_does_not_fit(tmp_path, ids, offsets, message):
    np.savez(tmp_path / "x.npz", input_ids=np.array(ids), offsets=np.array(offsets))
    done = call("decode", "-i", tmp_path / "x.npz")
    assert done.err.startswith(f"error: {tmp_path / 'x.npz'}: {message}\n")
    assert done.code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "x.parquet"], "--ragged requires npz or safetensors, not parquet"),
        (["-o", "x.npz", "--padding", "true"], "--ragged cannot be combined with --padding"),
        (["-o", "x.npz", "--count"], "--ragged cannot be combined with --count or --stats"),
    ],
)
def test_contradictions(options, message):
    done = call("tokenize", "a", "--ragged", *options)
    assert (done.code, done.error) == (2, message)
