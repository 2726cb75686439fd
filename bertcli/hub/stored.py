"""Which models need no network: installed with a package, or in the cache of the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from bertcli.hub.cache import any_snapshot, cached_models, repository
from bertcli.hub.finding import carried
from bertcli.hub.names import CARRIERS


class StoredModel(NamedTuple):
    """A model on this machine."""

    name: str  # its id on the hub
    state: str  # installed or cached
    path: Path
    size: int  # bytes
    folder: Path | None  # with its files; None where the cache has none of them


def stored_models() -> list[StoredModel]:
    """Return the models on this machine, the installed ones first."""
    found = []
    for name in CARRIERS:
        if folder := carried(name, ()):
            size = _size(folder.path)
            found.append(StoredModel(name, "installed", folder.path, size, folder.path))
    for name in cached_models():
        path = repository(name)
        found.append(StoredModel(name, "cached", path, _size(path), any_snapshot(name)))
    return found


def _size(folder: Path) -> int:
    """Return the bytes of the files below a folder; what links name counts where it lies."""
    paths = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return sum(path.lstat().st_size for path in paths if not path.is_symlink())
