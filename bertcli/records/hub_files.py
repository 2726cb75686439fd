"""Files of datasets on the Hugging Face hub.

    hub_files("hf://datasets/stanfordnlp/imdb/plain_text/test-*.parquet", is_data)
    # ["/home/me/.cache/huggingface/hub/datasets--stanfordnlp--imdb/snapshots/<commit>/..."]

URLs are those of huggingface_hub's file system. The files are not read through it, but downloaded
to the hub's cache: later runs can be offline, and the files can be hashed, read twice and sought
in, as a run with --resume and the reader of Parquet need. In outputs they are called by a URL with
the commit (`io.paths.input_name`), which stays the same when the branch moves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from glob import has_magic
from pathlib import Path
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from bertcli.errors import LOG, InputError
from bertcli.io.paths import HUB_SCHEME, input_name
from bertcli.io.printable import listed
from bertcli.model_folder.find import how_to_go_online, offline_variables
from bertcli.model_folder.hub_cache import cache_root, commit_files, find_snapshot

DATASET = f"{HUB_SCHEME}datasets/OWNER/NAME"
# A revision with a slash is quoted (a%2Fb), except for those that the hub makes.
URL = re.compile(
    rf"{HUB_SCHEME}datasets/(?P<id>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
DATASET_CARD = "README.md"  # of a whole dataset; it is not data
MAX_LISTED_FILES = 5  # of a dataset, in a hint

IsData = Callable[..., bool]  # of a file name; glob=True if a pattern matches it


class HubPath(NamedTuple):
    """A file, folder or glob in a dataset."""

    url: str
    id: str  # owner/name
    revision: str | None
    path: str  # "" is the whole dataset

    @classmethod
    def of(cls, url: str) -> HubPath:
        """Return the parts of a URL. Raises InputError if it is not one of a dataset."""
        match = URL.fullmatch(url)
        if match is None:
            raise InputError(
                f"{url}: not a file of a dataset on the hub",
                f"give {DATASET}/FILE, or {DATASET}@REVISION/FILE",
            )
        revision = match["revision"] and unquote(match["revision"])
        return cls(url, match["id"], revision, (match["path"] or "").strip("/"))

    def select(self, names: Sequence[str], is_data: IsData) -> list[str]:
        """Return the names of the files that this path selects, sorted; empty if there are none.

        ``names`` are relative to the dataset. A file is selected whatever its name; a folder and a
        glob select files for which ``is_data`` is true, and hidden ones only if the glob has a
        hidden part. A name with magic characters is a glob only if no file or folder has it.

        Raises InputError for an invalid glob.
        """
        if self.path in names:
            return [self.path]
        folder = f"{self.path}/" if self.path else ""
        below = [name for name in names if name.startswith(folder)]
        if below or not has_magic(self.path):
            visible = [name for name in below if not _is_hidden(name.removeprefix(folder))]
            return sorted(name for name in visible if is_data(name) and name != DATASET_CARD)
        from fsspec.utils import glob_translate  # as huggingface_hub's file system matches

        try:
            matches = re.compile(glob_translate(self.path)).match
        except ValueError as error:  # "**" within a name
            raise InputError(f"{self.url}: {error}") from None
        takes_hidden = _is_hidden(self.path)
        matching = [name for name in names if matches(name) and is_data(name, glob=True)]
        return sorted(name for name in matching if takes_hidden or not _is_hidden(name))


def hub_files(url: str, is_data: IsData, *, offline: bool = False) -> list[str]:
    """Return the paths in the hub's cache of the files of a URL, sorted; download missing ones.

    Online, the hub lists the files, unless the revision is a commit whose files are known and
    cached. ``offline`` (or HF_HUB_OFFLINE) reads the cached state of the revision, which the
    hub may have changed since: a folder or glob needs all its files in the cache, or takes the
    cached ones if the cache has no list of the commit's files.

    Raises InputError for a dataset, revision or file that is not on the hub, for a failed download,
    and offline for a file that is not cached.
    """
    path = HubPath.of(url)
    snapshot = find_snapshot(path.id, path.revision or "main", "dataset")
    is_offline = bool(offline or offline_variables())
    is_commit = snapshot is not None and snapshot.name == path.revision  # it never changes
    cached_files = None
    if snapshot is not None:
        is_final = is_offline or is_commit
        cached_files = _files_in(snapshot, path, is_data, is_final=is_final)
    if is_offline:
        if cached_files is None:
            raise InputError(
                f"{url}: not in the cache {cache_root()}, and the network is off",
                f"{how_to_go_online()} to fetch it",
            )
        return cached_files
    if cached_files and is_commit and snapshot is not None:
        is_one_file = cached_files == [str(snapshot / path.path)]
        if is_one_file or commit_files(snapshot):  # else a folder or glob may have more files
            return cached_files
    from bertcli.model_folder.download import download

    def choose(names: Sequence[str]) -> list[str]:
        selected = path.select(names, is_data)
        if not selected:
            _refuse_no_files(path, names)
        return selected

    downloaded = download(path.id, path.revision, cache_root(), choose, "dataset")
    files = _files_in(downloaded, path, is_data)
    if files is None:
        raise InputError(f"{url}: was not downloaded completely", "run the command again")
    LOG.detail(f"{url}: {', '.join(map(input_name, files))}")
    return files


def _files_in(
    snapshot: Path, path: HubPath, is_data: IsData, *, is_final: bool = True
) -> list[str] | None:
    """Return the paths in a snapshot of the files that a path selects; None if one is missing.

    They are selected among the files of the commit, or among those in the snapshot if the cache
    has no list of the commit's files; then None means that the snapshot has none.

    Raises InputError for an invalid glob, and if the commit has no such file, unless a later commit
    may have it (``is_final=False``).
    """
    names = commit_files(snapshot)
    is_listed = bool(names)
    if not is_listed:
        files = (file for file in snapshot.rglob("*") if file.is_file())
        names = [file.relative_to(snapshot).as_posix() for file in files]
    selected = path.select(names, is_data)
    if not selected and is_listed and is_final:
        _refuse_no_files(path, names)
    paths = [str(snapshot / name) for name in selected]
    return paths if paths and all(map(os.path.isfile, paths)) else None


def _refuse_no_files(path: HubPath, names: Sequence[str]) -> NoReturn:
    """Raise InputError for a path that selects no file of a dataset with these files."""
    visible = sorted(name for name in names if not _is_hidden(name))
    if similar := get_close_matches(path.path, visible, 1):
        hint = f"did you mean {similar[0]}?"
    else:
        hint = f"its files: {listed(visible[:MAX_LISTED_FILES])}"
        if len(visible) > MAX_LISTED_FILES:
            hint += f" and {len(visible) - MAX_LISTED_FILES:,} others"
    raise InputError(f"{path.url}: no such file in the dataset", hint)


def _is_hidden(name: str) -> bool:
    """Return True if a part of a path begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))
