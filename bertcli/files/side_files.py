"""The names of files that lie beside another: its manifest, its index, what a run works on.

A side file of ``out.npy`` is called ``out.npy.manifest.json``. Where that is longer than a file
system takes, the name in it is cut and a digest of the whole name takes its place, so that the side
files of two outputs never meet: ``loooo~5f0c9a1b2c3d.manifest.json``.
"""

from __future__ import annotations

import os
from pathlib import Path

LONGEST = 255  # bytes of a name, on the file systems in use


def side_name(name: str, end: str) -> str:
    """Return the name of the side file with this end."""
    if _size(name + end) <= LONGEST:
        return name + end
    import hashlib

    mark = f"~{hashlib.sha256(os.fsencode(name)).hexdigest()[:12]}"
    room = LONGEST - _size(mark + end)
    return os.fsencode(name)[:room].decode("utf-8", "ignore") + mark + end


def beside(path: Path, end: str) -> Path:
    """Return the place of the side file with this end."""
    return path.with_name(side_name(path.name, end))


def manifest_beside(path: Path) -> Path:
    """Return where the manifest of a file is: for a link, beside what it points to."""
    return beside(Path(os.path.realpath(path)), ".manifest.json")


def making(path: Path) -> Path:
    """Return the hidden name of what is to become this file or folder."""
    return path.with_name(side_name(f".{path.name}", ".bertcli.tmp"))


def making_alone(path: Path) -> Path:
    """Return such a name that no other process has."""
    return path.with_name(side_name(f".{path.name}", f".{os.urandom(4).hex()}.tmp"))


def _size(name: str) -> int:
    return len(os.fsencode(name))
