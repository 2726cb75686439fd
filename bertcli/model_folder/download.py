"""Downloads through `huggingface_hub`; a failed download raises an error of one line.

The library provides tokens, mirrors (HF_ENDPOINT), proxies, locks, progress bars on a terminal, and
atomic writes to the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, InputError, ModelError, option
from bertcli.io.paths import public
from bertcli.model_folder.hub_cache import did_you_mean

TIMEOUT = 10  # seconds for the first response; the library's own requests have no timeout


def download(
    name: str,
    revision: str | None,
    cache: Path,
    choose: Callable[[Sequence[str]], Sequence[str]],
    repo_type: str = "model",
) -> Path:
    """Download files of a repository to the cache; return the snapshot folder.

    `choose` takes the names of all files and returns those to download. The library's log is kept
    off stderr, and so are its progress bars unless stderr is a terminal. Raises ModelError for a
    model, InputError for a dataset.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")  # both are read at import
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        _ = urlsplit(_endpoint()).port  # raises for an invalid URL, which the library would print
        from huggingface_hub import HfApi, snapshot_download

        api = HfApi(library_name="bertcli")
        repository: Any = api.repo_info(
            name, repo_type=repo_type, revision=revision, timeout=TIMEOUT
        )
        if repository.siblings is None:
            raise ValueError("the answer names no files")
        names = [file.rfilename for file in repository.siblings]
        folder = snapshot_download(
            name,
            repo_type=repo_type,
            revision=revision,
            cache_dir=cache,
            allow_patterns=[escape(file) for file in choose(names)],
            library_name="bertcli",
        )
    except BertcliError:
        raise
    except Exception as error:  # errors of the library and its dependencies, and invalid responses
        raise _download_error(error, name, revision, cache, repo_type) from error
    return Path(folder)


def _endpoint() -> str:
    """Return the URL of the hub, or of its mirror."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _download_error(
    error: BaseException, name: str, revision: str | None, cache: Path, repo_type: str
) -> BertcliError:
    """Return the error of a failed download, in one line with a hint."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    is_model = repo_type == "model"
    error_class = ModelError if is_model else InputError
    hub = public(_endpoint())
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403, 404):
        at_revision = f" at revision {revision!r}" if revision else ""
        similar_name = did_you_mean(name) if is_model else ""
        page = f"{hub}/{name}" if is_model else f"{hub}/{repo_type}s/{name}"
        return error_class(
            f"{repo_type} {name!r}{at_revision} is not on {hub}, or is private or gated "
            f"(status {error.response.status_code})",
            f"{similar_name}check the name at {page}; if it is private or gated, ask "
            "for access and log in with `hf auth login` or set HF_TOKEN",
        )
    reason = public(str(error).strip().partition("\n")[0] or type(error).__name__)
    return error_class(
        f"{repo_type} {name!r} cannot be fetched from {hub}: {reason}",
        "check the network, HF_TOKEN, HF_ENDPOINT, the proxy variables and the free space in "
        f"{cache}; "
        f"{option('offline')} uses a cached {'model' if is_model else 'copy'}",
    )
