"""Files that torch.save wrote: where each of their tensors lies, without torch.

    file = read_torch(path)
    file.content                     # what was saved, with a Tensor for each tensor
    file.place(name, tensor)         # the first byte of its storage in the file

Since torch 1.6 such a file is a zip: `data.pkl` describes the tensors, `data/<key>` holds the bytes
of a storage. Before, it was four pickles (a magic number, a version, facts of the machine, the
content) and a list of keys, and then for each key the number of numbers and the numbers themselves.
Source: torch/serialization.py.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from bertcli.errors import ModelError
from bertcli.files.pickles import AsksToRun, BadPickle, Storage, Tensor, kind_of, read_pickle
from bertcli.files.typed_json import AGAIN
from bertcli.files.zips import ZIP_STORED, BadZipFile, ZipFile, open_zip

ZIP = b"PK\x03\x04"  # how torch.save has begun its files since torch 1.6
LARGEST = 1 << 25  # bytes of what describes the tensors
DEPTH = 4  # dicts in dicts; a dict may hold itself
BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1,
    "BOOL": 1,
}  # fmt: skip
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001
_BROKEN = (BadZipFile, BadPickle, zlib.error, EOFError, RuntimeError, NotImplementedError,
           struct.error, ValueError)  # fmt: skip


class Region(NamedTuple):
    """Bytes of a file."""

    start: int
    length: int


class TorchFile(NamedTuple):
    """What was saved, and where the storages lie."""

    path: Path
    content: Any
    regions: Mapping[str, Region]

    def tensors(self, nested: tuple[str, ...]) -> dict[str, Any]:
        """Return names and what they stand for, perhaps ``nested`` in the state of a training."""
        content = self.content
        for _ in range(DEPTH):
            if isinstance(content, dict):
                inner = (content[key] for key in nested if isinstance(content.get(key), dict))
                content = next(inner, content)
        if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
            raise ModelError(f"{self.path}: expected tensors by name")
        return content

    def place(self, name: str, tensor: Any) -> int:
        """Return where the storage of a tensor begins. ModelError when it is not all there."""
        if not isinstance(tensor, Tensor) or tensor.storage.dtype not in BYTES:
            kind = tensor.storage.dtype if isinstance(tensor, Tensor) else kind_of(tensor)
            raise ModelError(f"{self.path}: {name} is a {kind}, not a plain tensor")
        storage, offset, shape, strides = tensor
        region = self.regions.get(storage.key)
        numbers: int = prod(shape)
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=False))
        sound = min((offset, storage.numbers, *shape, *strides)) >= 0 and len(shape) == len(strides)
        sound = sound and numbers <= storage.numbers and (numbers == 0 or last < storage.numbers)
        if region is None or not sound or region.length != storage.numbers * BYTES[storage.dtype]:
            raise ModelError(f"{self.path}: {name} has fewer bytes than its shape needs", AGAIN)
        return region.start


def read_torch(path: Path) -> TorchFile:
    """Read what describes the tensors of a file. ModelError when it is broken, or runs code."""
    try:
        with path.open("rb") as file:
            head = file.read(len(ZIP))
            if head == ZIP:
                return _zipped(path, file)
            if head[:1] == b"\x80":  # how every pickle of protocol 2 and later begins
                return _plain(path, file)
            file.seek(257)
            if file.read(5) == b"ustar":
                _runs_code(path, "legacy .tar")
    except AsksToRun as asked:
        raise ModelError(
            f"{path}: asks to run {asked}: refused, and nothing was run",
            f"""if you trust where it comes from: load it in Python with
            torch.load({path.name!r}, weights_only=False) and save its tensors as
            model.safetensors""",
        ) from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror or failed}", AGAIN) from None
    except _BROKEN as broken:
        raise _unreadable(path, str(broken)) from None
    raise _unreadable(path, "it is neither a zip nor a pickle")


def _unreadable(path: Path, why: str) -> ModelError:
    return ModelError(f"{path}: not a whole file of tensors that torch.save wrote: {why}", AGAIN)


def _runs_code(path: Path, what: str) -> NoReturn:
    raise ModelError(
        f"{path}: {what} files can run code: refused, nothing was run",
        "load it in Python and save its tensors as model.safetensors",
    )


# --- since torch 1.6 ---


def _zipped(path: Path, file: IO[bytes]) -> TorchFile:
    with open_zip(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        found = next((name for name in entries if name.endswith("/data.pkl")), None)
        if found is None:
            raise BadZipFile("there is no data.pkl in the zip")
        folder = found.removesuffix("data.pkl")
        if f"{folder}constants.pkl" in entries:
            _runs_code(path, "TorchScript")
        if f"{folder}byteorder" in entries and _member(archive, f"{folder}byteorder") == b"big":
            raise BadZipFile("its numbers are big-endian")
        content = read_pickle(io.BytesIO(_member(archive, found)))
    regions = {}
    size = os.fstat(file.fileno()).st_size
    for name, entry in entries.items():
        if name.startswith(f"{folder}data/"):
            if entry.compress_type != ZIP_STORED or entry.compress_size != entry.file_size:
                raise BadZipFile(f"{name} is compressed, which torch never does")
            region = Region(_data_of(file, entry.header_offset), entry.file_size)
            if region.start + region.length > size:
                raise BadZipFile(f"{name} is truncated")
            regions[name.removeprefix(f"{folder}data/")] = region
    return TorchFile(path, content, regions)


def _member(archive: ZipFile, name: str) -> bytes:
    entry = archive.getinfo(name)
    if entry.compress_type != ZIP_STORED:
        raise BadZipFile(f"{name} is compressed, which torch never does")
    if entry.file_size > LARGEST:
        raise BadZipFile(f"{name} has {entry.file_size:,} bytes, and {LARGEST:,} is the limit")
    return archive.read(name)


def _data_of(file: IO[bytes], header: int) -> int:
    """Return where the bytes of a member begin: behind its own header, a name and extra fields."""
    file.seek(header)
    head = file.read(30)
    if head[:4] != ZIP or len(head) < 30:
        raise BadZipFile("a member is not where the directory says")
    name, extra = struct.unpack("<HH", head[26:30])
    return int(header + 30 + name + extra)


# --- before ---


def _plain(path: Path, file: IO[bytes]) -> TorchFile:
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    head = io.BytesIO(file.read(LARGEST))
    magic, version, machine, content = (read_pickle(head) for _ in range(4))
    if magic != _MAGIC or version != _VERSION or not isinstance(machine, dict):
        raise BadPickle("it does not begin as torch's files do")
    if machine.get("little_endian") is False:
        raise BadPickle("its numbers are big-endian")
    keys = read_pickle(head)
    if not isinstance(keys, list):
        raise BadPickle("there is no list of storages")
    known = {storage.key: storage for storage in _storages(content)}
    regions, at = {}, head.tell()
    for key in map(str, keys):
        file.seek(at)
        count = file.read(8)
        numbers = struct.unpack("<q", count)[0] if len(count) == 8 else -1
        if key not in known or known[key].dtype not in BYTES or numbers < 0:
            raise BadPickle("its storages are truncated, or nobody speaks of them")
        regions[key] = Region(at + 8, numbers * BYTES[known[key].dtype])
        at += 8 + regions[key].length
        if at > size:
            raise BadPickle("its storages are truncated")
    return TorchFile(path, content, regions)


def _storages(content: Any) -> list[Storage]:
    """Return all storages of a content, whatever holds them; each part is looked at once."""
    found, seen, waiting = [], set(), [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Tensor):
            found.append(one.storage)
        elif isinstance(one, Storage):
            found.append(one)
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one
    return found
