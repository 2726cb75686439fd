"""Crafted files: pickles, zips, headers that lie."""

import functools
import io
import json
import pickle
import random
import re
import struct
import zipfile
from typing import Any

import numpy as np

from .values import mutated_bytes, mutated_json, odd

MEMO = b"\x80\x02}r" + struct.pack("<I", 1 << 28) + b"."
PICKLES = [
    MEMO,
    b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
    b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
    b"\x80\x02" + b"(" * 50_000 + b"t" * 50_000 + b".",
    b"\x80\x02" + b"]" * 1 + b"]a" * 3_000 + b".",
    b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    b"\x80\x02)" + b"\x85" * 100_000 + b".",
    b"\x80\x02}\x8c\x01aK\x01s.",
    b"\x80\x02K\x01.",
    b"\x80\x02N.",
    b"\x80\x02]q\x00h\x00a.",
    b"\x80\x02}q\x00h\x00h\x00s.",
    b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.",
    b"\x80\x02ccollections\nOrderedDict\n)R}K\x01K\x02sb.",
    b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.",
    b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.",
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nK\x01K\x02K\x03\x87R.",
    b"\x80\x02ctorch._utils\n_rebuild_parameter\n)R.",
    b"\x80\x02ctorch._utils\n_rebuild_parameter\nK\x01\x85R.",
    b"\x80\x02ctorch\nFloatStorage\n)R.",
    b"\x80\x02ctorch\nFloatStorage\n.",
    b"\x80\x02K\x01Q.",
    b"\x80\x02)Q.",
    b"\x80\x02(U\x07storageK\x01K\x02K\x03K\x04tQ.",
    b"\x80\x02NN\x86Q.",
    b"\x80\x02}(NK\x01u.",
    b"\x80\x02}N}b.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02P1\n.",
    b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    b"\x80\x02\x8b\xff\xff\xff\x7f.",
    b"\x80\x02X\xff\xff\xff\xff.",
    b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"\x80\x02h\x05.",
    b"\x80\x02j\xff\xff\xff\xff.",
    b"\x80\x020.",
    b"\x80\x02.",
    b"\x80",
    b".",
    b"\x80\xff.",
    b"(lp0\nI1\na.",
    b"\x80\x02V\\ud800\n.",
    b"\x80\x02}V\\ud800\nK\x01s.",
    b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.",
    b"\x80\x02I" + b"1" * 10_000 + b"\n.",
    b"\x80\x02c\x1b]0;x\x07\nsystem\n.",
]


def evil_pickle(sound: bytes, dice: random.Random) -> bytes:
    """Return a pickle that a reader of tensors must refuse, or survive."""
    match dice.randrange(4):
        case 0 | 1:
            return dice.choice(PICKLES)
        case 2:  # an opcode of the sound one becomes another
            body = bytearray(sound)
            codes = b"()]}tlduoabeshjqrpgGKMJUXcRQN0123\x81\x85\x86\x87\x88\x89\x8a\x93\x94"
            for _ in range(dice.choice([1, 1, 2, 4])):
                if body:
                    body[dice.randrange(len(body))] = dice.choice(codes)
            return bytes(body)
    return pickle.dumps(dice.choice(_OBJECTS), protocol=dice.choice([0, 2, 4]))


_OBJECTS: list[Any] = [
    {},
    [],
    {"state_dict": {}},
    {"state_dict": 1},
    {"model": {"state_dict": {"a": 1}}},
    {1: 2},
    {"a": {"b": {"c": 1}}},
    {None: None},
    {"bert.embeddings.word_embeddings.weight": [1, 2]},
    {"\ud800": 1},
    "text",
    b"bytes",
    {1, 2},
    1e400,
    {("a", "b"): 1},
    {"a" * 100_000: 1},
]


@functools.cache
def bomb() -> bytes:
    """Return a zip of a megabyte whose data.pkl has a gigabyte."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as file,
    ):
        file.write(b"\x80\x02")
        for _ in range(1000):
            file.write(b"N0" * 500_000)
    return out.getvalue()


def mutated_zip(data: bytes, dice: random.Random) -> bytes:
    """Return a zip with its entries mutated, doubled, compressed, renamed or blown up."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = [(one.filename, archive.read(one)) for one in archive.infolist()]
    except (zipfile.BadZipFile, ValueError, OSError):
        entries = []
    if not entries:
        return data[: len(data) // 2]
    which = dice.randrange(len(entries))
    name, body = entries[which]
    main = next((at for at, one in enumerate(entries) if one[0].endswith("data.pkl")), which)
    compressed = dice.random() < 0.3
    match dice.randrange(9):
        case 0 | 1 | 2:
            entries[main] = (entries[main][0], evil_pickle(entries[main][1], dice))
        case 3:
            entries.append((name, body[::-1]))
        case 4:
            del entries[which]
        case 5:
            names = ["", "/", "../x", "a/b/c.npy", "\x1b]0;x\x07", "x" * 300, "data.pkl", "a\\b"]
            entries[which] = (dice.choice(names), body)
        case 6:
            return bomb()
        case 7:
            entries[which] = (name, body[: dice.randrange(len(body) + 1)])
        case 8:
            entries = []
    out = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, body in entries:
            archive.writestr(zipfile.ZipInfo(name), body, compress_type=how)
    return out.getvalue()


def mutated_safetensors(data: bytes, dice: random.Random) -> bytes:
    """Return a file whose header says something else than its bytes."""
    size = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + size], data[8 + size :]
    match dice.randrange(6):
        case 0:
            lies = [0, 1, 7, size - 1, size + 1, len(data), 1 << 31, 1 << 40, (1 << 64) - 1]
            return struct.pack("<Q", dice.choice(lies) % (1 << 64)) + header + body
        case 1:
            body = body[: dice.randrange(len(body) + 1)]
        case 2:
            body += dice.randbytes(dice.choice([1, 8, 1000]))
        case 3 if body:  # numbers that are none
            whole = bytearray(body)
            for _ in range(20):
                at = 4 * dice.randrange(max(1, len(whole) // 4))
                whole[at : at + 4] = dice.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff" * 4])
            body = bytes(whole[: len(body)])
        case _:
            try:
                value = mutated_json(json.loads(header), dice)
            except (ValueError, RecursionError):  # it is broken already
                return mutated_bytes(data, dice, head=size)
            header = value.encode(errors="surrogatepass")
    return struct.pack("<Q", len(header)) + header + body


SHAPES = """
(3,); (); (1, 3; ((1, 3); (0, 4); (-1, 4); (2, 2, 2); (1 << 60, 4); (10000000000000, 384); (1.5, 2)
(99999999999, 1); ('a',); [3, 4]; None; (True, 4); (3, 4,); (0, 0)
"""
KINDS = r"""
'<f4' '<f8' '<f2' '>f4' '<i8' '|i1' '|b1' '|O' '<U3' '|S4' '<c8' '<M8[s]' [('a','<f4')] [] 'x' 1
None '|V0' '<U0' '<f4,<f4' (('<f4',(2,2))) '\x1b]0;x' '<f16' '<u8' '<U99999999'
"""


def mutated_npy(data: bytes, dice: random.Random) -> bytes:
    """Return an .npy with another header."""
    if data[:6] != b"\x93NUMPY":
        return data
    size = int.from_bytes(data[8:10], "little")
    body = data[10 + size :]
    shapes = [*re.split(r"[;\n] *", SHAPES.strip()), f"({'1' * 400}, 4)", "(" * 300 + ")" * 300]
    shape = dice.choice(shapes) if dice.random() < 0.6 else "(3, 4)"
    kind = dice.choice(KINDS.split()) if dice.random() < 0.6 else "'<f4'"
    order = dice.choice(["False", "True", "False", "0", "'a'"])
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if dice.random() < 0.2:
        text = dice.choice(
            ["", "{", "{}", "[]", "1", "{'descr': 1}", "__import__('os')", "(" * 9999]
        )
        text += dice.choice(["", "\0", "\n", "é"])
    header = text.encode("latin-1", "replace") + b"\n"
    version = dice.choice([b"\1\0", b"\1\0", b"\1\0", b"\2\0", b"\3\0", b"\x09\0", b"\0\0"])
    length = len(header) if dice.random() < 0.9 else dice.choice([0, 1, 65535])
    width = 2 if version == b"\1\0" else 4
    return b"\x93NUMPY" + version + length.to_bytes(width, "little") + header + body


def npy(array: np.ndarray) -> bytes:
    """Return the bytes of an .npy; objects are pickled, as NumPy does."""
    out = io.BytesIO()
    np.save(out, array, allow_pickle=True)
    return out.getvalue()


def odd_array(dice: random.Random) -> np.ndarray:
    """Return an array that is no matrix of float32."""
    draw = np.random.default_rng(dice.randrange(1 << 30))
    match dice.randrange(12):
        case 0:
            return draw.normal(size=(3, 4)).astype(dice.choice(["f2", "f8", ">f4", "f4"]))
        case 1:
            return np.asfortranarray(draw.normal(size=(5, 4)).astype("f4"))
        case 2:
            return draw.integers(-300, 300, (3, 6)).astype(dice.choice(["i1", "u1", "i8", "u8"]))
        case 3:
            return np.array([None, {"a": 1}], dtype=object)
        case 4:
            return np.array(["text", "\x1b]0;x\x07"])
        case 5:
            return draw.normal(size=dice.choice([(), (4,), (2, 3, 4), (0, 4), (3, 0), (1,) * 20]))
        case 6:
            array = draw.normal(size=(4, 4)).astype("f4")
            array.flat[dice.randrange(16)] = dice.choice([np.nan, np.inf, -np.inf, 3e38])
            return array
        case 7:
            return np.zeros((3, 4), dice.choice(["f4", "i8", "?", "c8", "M8[s]", "S3", "U2"]))
        case 8:
            return np.zeros(3, [("a", "f4"), ("b", "i8")])
        case 9:
            return np.full((2, 3), dice.choice([-1, 1 << 40, 347, 30522, 10**9]), "i8")
        case 10:
            return draw.normal(size=(3, 4)).astype("f4") * dice.choice([1e-45, 1e38])
    return draw.integers(0, 347, (3, 6))


def odd_line(dice: random.Random) -> str:
    """Return a line that may be anything."""
    return dice.choice([str(odd(dice)), "\x00", "\x1b[2J", "a\rb", "\u2028", "x" * 50_000, ","])
