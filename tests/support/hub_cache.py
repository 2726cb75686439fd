"""Repositories in a cache of the hub, as huggingface_hub leaves them there."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write files below a folder, and return the folder."""
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


def put_dataset(
    cache: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    revision: str = "main",
    commit: str = COMMIT,
    others: Iterable[str] = (),
) -> Path:
    """Put files of a dataset into a cache, and return the folder of the dataset.

    ``others`` are files of the commit that are not in the cache.
    """
    repository = cache / f"datasets--{name.replace('/', '--')}"
    listing = {"format_version": 1, "files": {file: {} for file in (*files, *others)}}
    entries = {f"refs/{revision}": commit, f"trees/{commit}.json": json.dumps(listing)}
    put_files(repository, {name: text.encode() for name, text in entries.items()})
    for number, (file, body) in enumerate(files.items()):
        blob = put_files(repository / "blobs", {f"{commit}{number}": body}) / f"{commit}{number}"
        link = repository / "snapshots" / commit / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return repository
