"""Files of arrays that claim more than they hold, or more than anybody has room for."""

import gzip
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from front import TINY, bad, call, good

WORDS = "[CLS] [SEP]"


def head(shape, descr="'<f4'", order="False"):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode() + b"\n"


def packed(path, name, raw, *more, times=1):
    """Write an archive whose member inflates to many times its bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open(name, "w") as member:
            member.write(raw)
            for _ in range(times):
                member.write(b"\0" * (1 << 20))
        for other in more:
            archive.writestr(*other)
    return path


@pytest.fixture
def room():
    """Measure what Python and numpy take meanwhile: no more than for any file."""
    tracemalloc.start()
    yield
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 64 << 20, f"{most:,} bytes"


def test_a_row_that_nobody_has_room_for(tmp_path, room):
    wide = packed(tmp_path / "wide.npz", "embeddings.npy", head((1, 1 << 25)), times=128)
    ids = packed(tmp_path / "ids.npz", "input_ids.npy", head((1, 1 << 24), "'<i8'"), times=128)
    assert wide.stat().st_size < 1 << 20
    for argv in (["inspect", wide], ["compare", wide, wide], ["decode", "-i", ids]):
        assert "numbers, and 4,194,304 is the limit" in bad(*argv).error


def test_many_rows_take_the_memory_of_a_block(tmp_path, room):
    tall = packed(tmp_path / "tall.npz", "embeddings.npy", head((1 << 17, 256)), times=128)
    assert good("compare", tall, tall, "-f", "jsonl").rows[0]["identical"]
    assert call("inspect", tall).code == 0


HEADERS = {
    "no end": b"((1, 3",
    "deep": b"(" * 60000,
    "huge": str({"descr": "<i8", "fortran_order": False, "shape": (10**4000, 3)}).encode(),
    "product": str({"descr": "<i8", "fortran_order": False, "shape": (2**62,) * 60}).encode(),
    "negative": str({"descr": "<i8", "fortran_order": False, "shape": (-1, 3)}).encode(),
    "a number": str({"descr": "<i8", "fortran_order": False, "shape": 3}).encode(),
    "floats": str({"descr": "<i8", "fortran_order": False, "shape": (1.5, 2)}).encode(),
    "no type": str({"descr": "hello", "fortran_order": False, "shape": (1, 2)}).encode(),
    "odd type": str({"descr": [1, {}], "fortran_order": False, "shape": (1, 2)}).encode(),
    "objects": str({"descr": "|O", "fortran_order": False, "shape": (1, 2)}).encode(),
    "other keys": str({"descr": "<i8", "shape": (1, 2)}).encode(),
    "wide": str({"descr": "<i8", "fortran_order": False, "shape": (1, 4 * 10**11)}).encode(),
    "cut off": str({"descr": "<i8", "fortran_order": False, "shape": (9, 9)}).encode(),
    "an escape": b"'\\d'",
    "a set": b"{1, 2}",
    "a NUL": b"\0",
    "a call": b"__import__('os').system('true')",
}


@pytest.mark.parametrize("text", HEADERS.values(), ids=HEADERS)
def test_headers_that_are_none(tmp_path, text, room):
    raw = b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) + 1) + text + b"\n" + b"\0" * 64
    path, archive = tmp_path / "x.npy", tmp_path / "x.npz"
    path.write_bytes(raw)
    packed(archive, "input_ids.npy", raw, times=0)
    for file in (path, archive):
        for argv in (["decode", "-i", file], ["compare", file, file], ["inspect", file]):
            assert file.name in bad(*argv).error
    (tmp_path / "c.txt").write_text("a\n")
    search = ("similar", "a", "-q", "-m", TINY, "--corpus", tmp_path / "c.txt", "--vectors", path)
    assert path.name in bad(*search).error


def test_a_header_that_python_2_wrote(tmp_path):
    text = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1L, 2L)}\n"
    numbers = np.array([[101, 102]]).tobytes()
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    (tmp_path / "x.npy").write_bytes(header + numbers)
    assert good("decode", "-i", tmp_path / "x.npy").out == "[CLS] [SEP]\n"


def test_ids_of_any_type_and_of_one_record(tmp_path):
    ids = np.array([[101, 102], [102, 101], [101, 101]])
    for name, array in (
        ("c.npy", ids),
        ("u.npy", ids.astype("<u2")),
    ):
        np.save(tmp_path / name, array)
        done = good("decode", "-i", tmp_path / name)
        assert done.out.splitlines() == [WORDS, "[SEP] [CLS]", "[CLS] [CLS]"]
    np.save(tmp_path / "one.npy", ids[0])
    np.savez_compressed(tmp_path / "one.npz", input_ids=ids[0], other=ids)
    for name in ("one.npy", "one.npz"):
        assert good("decode", "-i", tmp_path / name).out.splitlines() == [WORDS]
    np.save(tmp_path / "cut.npy", ids)
    whole = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    assert "ends after row 2 of 3" in bad("decode", "-i", tmp_path / "cut.npy").error
    (tmp_path / "x.npy.gz").write_bytes(gzip.compress(whole))
    assert good("decode", "-i", tmp_path / "x.npy.gz").out.splitlines()[0] == WORDS


def test_an_archive_that_is_encrypted(tmp_path):
    path = tmp_path / "x.npz"
    array = head((1, 2), "'<i8'") + b"\0" * 16
    packed(path, "input_ids.npy", array, times=0)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(raw)
    for argv in (["decode", "-i", path], ["compare", path, path], ["inspect", path]):
        assert "is encrypted" in bad(*argv).error


@pytest.mark.parametrize("command", ["inspect", "compare"])
def test_rows_without_numbers(tmp_path, command):
    file = tmp_path / "a.npy"
    np.save(file, np.zeros((3, 0), np.float32))
    assert call(command, file, *([file] if command == "compare" else [])).code in (0, 1)
