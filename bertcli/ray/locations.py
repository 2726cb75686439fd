"""List and open files on this machine or on a remote file system.

A URL here may also be a plain path. fsspec and Arrow support file://, s3://, gs://, hdfs:// and
others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertcli.errors import InputError
from bertcli.io.paths import public
from bertcli.records.input import QUOTE

LOCAL_SCHEME = "file://"
HIDDEN = re.compile("/[._]")  # matched against the path within a folder
ARROW_SCHEMES = (
    "s3://",
    "gs://",
    "hdfs://",
    "abfss://",
)  # Arrow reads these without extra packages


def is_local(url: str) -> bool:
    """Return True if a URL or path leads to a file on this machine."""
    return "://" not in url or url.startswith(LOCAL_SCHEME)


def local_path(url: str) -> Path:
    """Return the path of a local URL."""
    return Path(url.removeprefix(LOCAL_SCHEME))


def output_url(path: Path) -> str:
    """Return the URL of an output folder, or its path.

    pathlib has turned s3://bucket into s3:/bucket.
    """
    scheme, colon, rest = str(path).partition(":/")
    if colon and scheme == "file":
        path = Path("/", rest)
    elif colon and len(scheme) > 1 and scheme.isalnum() and not rest.startswith("/"):
        return f"{scheme}://{rest}"
    return str(path)


def list_files(pattern: str) -> list[str]:
    """Return the files that match a pattern, sorted: a file, all files of a folder, or a glob.

    Hidden files and files whose name starts with "_" (such as Spark's markers) are left out.
    Raises InputError if there are no files.
    """
    with filesystem(pattern) as (fs, path):
        if any(letter in path for letter in "*?[") and not fs.exists(path):
            files = [name for name in fs.glob(path) if fs.isfile(name)]
        elif fs.isdir(path):
            base = path.rstrip("/")
            files = [name for name in fs.find(base) if not HIDDEN.search(name[len(base) :])]
        else:
            files = [path] if fs.exists(path) else []
    if not files:
        raise InputError(f"{public(pattern)}: no matching files", QUOTE)
    return sorted(files)


def public_name(pattern: str, path: str) -> str:
    """Return the public name of the file ``path`` in the file system of a pattern.

    Outputs and manifests use this name. It contains no credentials or query, as in
    s3://key:secret@bucket or ?region=...
    """
    scheme = pattern.partition("://")[0]
    if is_local(pattern) or "://" in path:
        return public(path)
    return f"{scheme}://{path.lstrip('/')}"


@contextmanager
def filesystem(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL, with fsspec's methods, and the path within it.

    Raises InputError for file system errors: unknown scheme, missing package, no access.
    """
    try:
        import fsspec

        if url.startswith(ARROW_SCHEMES):
            from bertcli.formats.parquet import file_system

            yield file_system(url)
        else:
            yield fsspec.core.url_to_fs(url)
    except (OSError, ImportError, ValueError) as failed:
        reason = str(failed).strip().split("\n")[0] or type(failed).__name__
        raise InputError(
            public(f"{url}: cannot be reached: {reason}"), "check the address"
        ) from None
