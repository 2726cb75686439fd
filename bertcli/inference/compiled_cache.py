"""Compiled models on the disk: which there are, checked when they are read, the oldest removed.

An entry is a file ``<key>.model``: a line of JSON that says what it is, and the compiled model. Its
checksum is compared when the file is new to us, or has changed since. The key is a digest of
everything that the model depends on, so an entry is never changed, only made and removed. Where
nothing can be written, nothing is kept, and that is no error.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

import numpy as np

from bertcli.errors import OutputError
from bertcli.files.atomic import whole_file
from bertcli.files.digests import sha256
from bertcli.files.lock import waiting
from bertcli.files.typed_json import BadJsonError, parse
from bertcli.inference.cache_folder import STARTS, cache_folder
from bertcli.inference.tell import Tell

LARGEST = 10 * 10**9  # bytes of all entries together
END = ".model"
DIGESTS = "digests.json"
ALIGNED = 64  # bytes that a compiled model begins at a multiple of


class CacheEntry(NamedTuple):
    """A compiled model in the cache."""

    path: Path
    size: int
    about: Mapping[str, Any]  # what it was made of; empty when the file is damaged


UNKEPT = "the compiled model cannot be kept"  # how the warning begins


class CompiledModel(NamedTuple):
    """A compiled model, an array of bytes, and what was found out about it when it was made."""

    blob: np.ndarray
    same_bits: bool  # whether what it makes of a text depends on this text alone
    accuracy: Mapping[str, Any] = {}  # how near it is to float32, when that is not it


def entries() -> list[CacheEntry]:
    """Return what is in the cache, the most recently used first."""
    folder = cache_folder()
    found = []
    for path in folder.glob(f"*{END}") if folder else ():
        with suppress(OSError):
            stat = path.stat()
            found.append((stat.st_atime, CacheEntry(path, stat.st_size, _about(path))))
    return [entry for _, entry in sorted(found, key=lambda pair: -pair[0])]


def cached(
    key: str,
    about: Mapping[str, Any],
    make: Callable[[], CompiledModel],
    tell: Tell,
    *,
    again: bool = False,
) -> CompiledModel:
    """Return the compiled model of this key: as it is kept, or made, by one process at a time.

    Its bytes are those of a file that is mapped, of which processes share what they read. It is
    made ``again`` where the one that is kept is of no use.
    """
    folder = cache_folder()
    path = folder and folder / f"{key}{END}"
    if not again and (found := kept(key)) is not None:
        return found
    with _only_one(folder):
        # another process may have made it meanwhile
        if not again and (found := kept(key)) is not None:
            return found
        made = make()
        try:
            found_out = {"same_bits": made.same_bits, "accuracy": made.accuracy}
            _keep(path, {**about, **found_out}, made.blob)
        except OSError as failed:
            tell.warn(
                f"{UNKEPT}{f' in {folder}' if folder else ''}: "
                f"{failed.strerror or failed}; every run will compile it (BERTCLI_CACHE names "
                "another folder)"
            )
    return made


def _keep(path: Path | None, about: Mapping[str, Any], blob: np.ndarray) -> None:
    if path is None:
        raise OSError("there is no home folder")
    for rest in path.parent.glob(".*.tmp"):  # of a process that was killed
        rest.unlink(missing_ok=True)
    header = json.dumps({**about, "size": blob.nbytes, "crc32": zlib.crc32(blob.data)}).encode()
    with whole_file(path) as file:
        file.write(header + b" " * (-(len(header) + 1) % ALIGNED) + b"\n")
        file.write(blob.data)
    _make_room(path)


def clean() -> list[CacheEntry]:
    """Remove everything, and return what was removed. OutputError for what cannot be."""
    removed, folder = entries(), cache_folder()
    others = [folder / name for name in (DIGESTS, STARTS)] if folder else []
    for path in [*(entry.path for entry in removed), *others]:
        try:
            path.unlink(missing_ok=True)
        except OSError as failed:
            raise OutputError(
                f"{path}: cannot be removed: {failed.strerror}", "it may be in use, or not yours"
            ) from None
    return removed


def _about(path: Path) -> dict[str, Any]:
    with suppress(OSError, BadJsonError), path.open("rb") as file:
        found = parse(file.readline(1 << 16))
        if isinstance(found, dict):
            return found
    return {}


def kept(key: str) -> CompiledModel | None:
    """Return the compiled model of this key if it is there and whole, else None."""
    if (folder := cache_folder()) is None:
        return None
    path = folder / f"{key}{END}"
    try:
        with path.open("rb") as file:
            header, start = parse(file.readline(1 << 16)), file.tell()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            stat = os.stat(file.fileno())
    except (OSError, ValueError, BadJsonError):  # ValueError: an empty file cannot be mapped
        return None
    blob = np.frombuffer(mapped, np.uint8, offset=start)
    if not isinstance(header, dict) or header.get("size") != blob.nbytes:
        return None
    if not isinstance(same_bits := header.get("same_bits"), bool):
        return None  # of an older bertcli
    known = str(header.get("crc32"))
    if _remembered(path) != known:
        if zlib.crc32(blob.data) != header.get("crc32"):
            return None
        _remember(path, known)
    with suppress(OSError):  # the oldest are those that were not used for longest
        os.utime(path, ns=(time_ns(), stat.st_mtime_ns))
    return CompiledModel(blob, same_bits, header.get("accuracy") or {})


def _make_room(newest: Path) -> None:
    """Remove the entries that were not used for longest, until the others are small enough."""
    total = 0
    for entry in entries():
        total += entry.size
        if total > LARGEST and entry.path != newest:
            entry.path.unlink(missing_ok=True)


@contextmanager
def _only_one(folder: Path | None) -> Iterator[None]:
    """Wait until no other process makes an entry; where no lock can be had, go on without."""
    if folder:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    there = folder and os.path.isdir(folder)  # False for what no system takes as a name
    with waiting(folder / "making.lock") if folder and there else nullcontext():
        yield


# --- digests of large files, which a start has no time to compute ---


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; remembered by its path, size, time of change and inode."""
    if (known := _remembered(path)) is not None:
        return known
    digest = sha256(path)
    _remember(path, digest)
    return digest


def _digest_file() -> Path | None:
    folder = cache_folder()
    return folder and folder / DIGESTS


def _mark(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _remembered(path: Path) -> str | None:
    with suppress(OSError):  # another process may remove it
        match _digests().get(os.path.realpath(path)):
            case [*mark, str(digest)] if mark == _mark(path):
                return digest
    return None


def _remember(path: Path, digest: str) -> None:
    if (file := _digest_file()) is None:
        return
    known = {name: entry for name, entry in _digests().items() if os.path.exists(name)}
    with suppress(OSError):
        known[os.path.realpath(path)] = [*_mark(path), digest]
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as out:
            out.write(json.dumps(known).encode())


def _digests() -> dict[str, Any]:
    with suppress(OSError, BadJsonError):
        found = parse(file.read_bytes()) if (file := _digest_file()) else {}
        if isinstance(found, dict):
            return found
    return {}
