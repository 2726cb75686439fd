"""Compiled models on the disk: which there are, checked when they are read, the oldest removed.

An entry is a file ``<key>.model``: a line of JSON that says what it is, and the compiled model. The
key is a digest of everything that the model depends on, so an entry is never changed, only made and
removed. Where nothing can be written, nothing is kept, and that is no error.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from bertcli.files.atomic import whole_file
from bertcli.files.lock import waiting
from bertcli.files.typed_json import BadJsonError, parse
from bertcli.hub import sha256

LARGEST = 10 * 10**9  # bytes of all entries together
END = ".model"
DIGESTS = "digests.json"


@dataclass(frozen=True)
class CacheEntry:
    """A compiled model in the cache."""

    path: Path
    size: int
    about: Mapping[str, Any]  # what it was made of; empty when the file is damaged


def cache_folder() -> Path | None:
    """Return the cache: $BERTCLI_CACHE, or the system's place for caches; None without a home."""
    if given := os.environ.get("BERTCLI_CACHE"):
        return Path(given)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    if base := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA"):
        return Path(base, "bertcli")
    mac = Path(home, "Library", "Caches")
    return (mac if mac.is_dir() else Path(home, ".cache")) / "bertcli"


class Compiled(NamedTuple):
    """A compiled model, and a note when it had to be made."""

    blob: bytes
    note: str = ""


def entries() -> list[CacheEntry]:
    """Return what is in the cache, the most recently used first."""
    folder = cache_folder()
    found = []
    for path in folder.glob(f"*{END}") if folder else ():
        with suppress(OSError):
            stat = path.stat()
            found.append((stat.st_mtime, CacheEntry(path, stat.st_size, _about(path))))
    return [entry for _, entry in sorted(found, key=lambda pair: -pair[0])]


def cached(key: str, about: Mapping[str, Any], make: Callable[[], bytes]) -> Compiled:
    """Return the compiled model of this key: as it is kept, or made, by one process at a time."""
    folder = cache_folder()
    if folder is None:
        return _kept(make, None, about)
    path = folder / f"{key}{END}"
    if (blob := _read(path)) is not None:
        return Compiled(blob)
    with _only_one(folder):
        if (blob := _read(path)) is not None:  # another process has made it meanwhile
            return Compiled(blob)
        return _kept(make, path, about)


def _kept(make: Callable[[], bytes], path: Path | None, about: Mapping[str, Any]) -> Compiled:
    start, where = monotonic(), "not kept: the cache cannot be written"
    blob = make()
    if path is not None:
        with suppress(OSError):
            for rest in path.parent.glob(f".*{END}.*.tmp"):  # of a process that was killed
                rest.unlink(missing_ok=True)
            _write(path, about, blob)
            where = f"kept in {path.parent}"
            _make_room(path)
    return Compiled(blob, f"compiled the model in {monotonic() - start:.0f} s, {where}")


def clean() -> list[CacheEntry]:
    """Remove everything, and return what was removed."""
    removed = entries()
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    if folder := cache_folder():
        (folder / DIGESTS).unlink(missing_ok=True)
    return removed


def _about(path: Path) -> dict[str, Any]:
    with suppress(OSError, BadJsonError), path.open("rb") as file:
        found = parse(file.readline(1 << 16))
        if isinstance(found, dict):
            return found
    return {}


def _read(path: Path) -> bytes | None:
    """Return a compiled model that is there and whole, else None."""
    try:
        with path.open("rb") as file:
            header = parse(file.readline(1 << 16))
            blob = file.read()
    except (OSError, BadJsonError):
        return None
    if not isinstance(header, dict) or header.get("crc32") != zlib.crc32(blob):
        return None
    with suppress(OSError):
        os.utime(path)  # the oldest are those that were not used for longest
    return blob


def _write(path: Path, about: Mapping[str, Any], blob: bytes) -> None:
    header = json.dumps({**about, "crc32": zlib.crc32(blob)})
    with whole_file(path) as file:
        file.write(header.encode() + b"\n")
        file.write(blob)


def _make_room(newest: Path) -> None:
    """Remove the entries that were not used for longest, until the others are small enough."""
    total = 0
    for entry in entries():
        total += entry.size
        if total > LARGEST and entry.path != newest:
            entry.path.unlink(missing_ok=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Wait until no other process makes an entry; where no lock can be had, go on without."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        yield
        return
    with waiting(folder / "making.lock"):
        yield


# --- digests of weights, which a start has no time to compute ---


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; remembered by its path, size, time of change and inode."""
    stat = path.stat()
    name = os.path.realpath(path)
    mark = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    folder = cache_folder()
    known = _digests(folder / DIGESTS) if folder else {}
    match known.get(name):
        case [size, changed, inode, str(digest)] if [size, changed, inode] == mark:
            return digest
    digest = sha256(path)
    if folder:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with whole_file(folder / DIGESTS) as file:
                file.write(json.dumps({**known, name: [*mark, digest]}).encode())
    return digest


def _digests(path: Path) -> dict[str, Any]:
    with suppress(OSError, BadJsonError):
        found = parse(path.read_bytes())
        if isinstance(found, dict):
            return found
    return {}
