"""Reading the Hugging Face cache, without `huggingface_hub`, whose import takes 0.3 s.

Its layout, below `models--<owner>--<name>`:

    refs/<revision>           a file that holds the commit
    snapshots/<commit>/...    the files of that commit that were fetched, mostly links into blobs/
    trees/<commit>.json       names and sizes of all its files (huggingface_hub >= 1.22)
    .no_exist/<commit>/...    empty files: names that were asked for and are not in that commit
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from os.path import isdir, isfile
from pathlib import Path

from bertcli.checkpoints.scan import MODULES
from bertcli.errors import ModelError
from bertcli.files.typed_json import read_bytes, read_object, whole_number
from bertcli.hub.files import lacking, pick

PREFIX = "models--"


def cache_root() -> Path:
    """Return the folder that huggingface_hub would use, from the same variables."""
    get = os.environ.get
    base = get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = get("HF_HOME") or os.path.join(base, "huggingface")
    root = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(root)))


def cached_models() -> list[str]:
    """Return the ids of the models in the cache, sorted."""
    names = [name for name in _listdir(cache_root()) if name.startswith(PREFIX)]
    return [name.removeprefix(PREFIX).replace("--", "/") for name in names]


def cached_revisions(name: str) -> list[str]:
    """Return the revisions of a model in the cache: branches and tags, else commits."""
    folder = repository(name)
    return _listdir(folder / "refs") or _listdir(folder / "snapshots")


def find_snapshot(name: str, revision: str) -> Path | None:
    """Return the folder of a revision (branch, tag or commit), complete or not."""
    if ".." in revision:
        return None  # git does not allow it; here it would lead out of the cache
    try:
        noted = read_bytes(repository(name) / "refs" / revision)
        commit = revision if noted is None else noted.decode("ascii").strip()
    except (ModelError, ValueError):
        commit = revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = repository(name) / "snapshots" / commit
    return folder if isdir(folder) else None


def any_snapshot(name: str) -> Path | None:
    """Return the folder of a model's main revision, or of another one that there is."""
    snapshots = repository(name) / "snapshots"
    others = [snapshots / commit for commit in _listdir(snapshots)]
    return find_snapshot(name, "main") or next(filter(isdir, others), None)


def unfinished(snapshot: Path, files: Sequence[str]) -> str | None:
    """Name the first file that a download did not finish, as far as the cache can tell."""
    sizes = _listing(snapshot)
    for name in pick(files, sizes):
        path = snapshot / name
        if not isfile(path) or path.stat().st_size != sizes[name]:
            return name
    return lacking(snapshot, files)


def pooling_unknown(snapshot: Path, files: Sequence[str]) -> bool:
    """Whether the cache does not tell if this model has a modules.json.

    transformers never asks the hub for it. Without it, a sentence model would be taken for a plain
    BERT and pooled wrongly.
    """
    absent = snapshot.parents[1] / ".no_exist" / snapshot.name / MODULES
    return MODULES in files and not (
        isfile(snapshot / MODULES) or isfile(absent) or _listing(snapshot)
    )


def _listing(snapshot: Path) -> dict[str, int]:
    """Return name -> bytes of the commit's files; empty when the library left no list."""
    tree = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    size = whole_number(most=1 << 63)
    try:
        entries = read_object(tree).objects("files")
        return {name: entry.needed("size", *size) for name, entry in entries.items()}
    except ModelError:
        return {}


def repository(name: str) -> Path:
    """Return the folder of a model in the cache."""
    return cache_root() / f"{PREFIX}{name.replace('/', '--')}"


def _listdir(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
