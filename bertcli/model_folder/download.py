"""Downloads through `huggingface_hub`; a failed download raises an error of one line.

The library provides tokens, mirrors (HF_ENDPOINT), proxies, locks, progress bars on a terminal, and
atomic writes to the cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from bertcli.errors import BertcliError, ModelError, option
from bertcli.io.paths import public
from bertcli.model_folder.hub_cache import suggestion

TIMEOUT = 10  # seconds for the first response; the library's own requests have no timeout


def download(
    name: str, revision: str | None, cache: Path, choose: Callable[[Sequence[str]], Sequence[str]]
) -> Path:
    """Download the files that `choose` selects from a repository's file names to the cache.

    Returns the snapshot folder. The library's log is kept off stderr, and so are its progress bars
    unless stderr is a terminal.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")  # both are read at import
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        _ = urlsplit(_endpoint()).port  # the library prints an invalid URL on stdout
        from huggingface_hub import HfApi, snapshot_download

        about = HfApi(library_name="bertcli").model_info(name, revision=revision, timeout=TIMEOUT)
        if about.siblings is None:
            raise ValueError("the answer names no files")
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache,
            allow_patterns=[*choose([file.rfilename for file in about.siblings])],
            library_name="bertcli",
        )
    except BertcliError:
        raise
    except Exception as error:  # errors of the library and its dependencies, and invalid responses
        raise _explained(error, name, revision, cache) from error
    return Path(folder)


def _endpoint() -> str:
    """Return the URL of the hub, or of its mirror."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _explained(error: BaseException, name: str, revision: str | None, cache: Path) -> ModelError:
    """Return the error of a failed download, in one line with a hint."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    hub = public(_endpoint())
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403, 404):
        at = f" at revision {revision!r}" if revision else ""
        return ModelError(
            f"model {name!r}{at} is not on {hub}, or is private or gated "
            f"(status {error.response.status_code})",
            f"{suggestion(name)}check the name at {hub}/{name}; if it is private or gated, ask for "
            "access and log in with `hf auth login` or set HF_TOKEN",
        )
    reason = public(str(error).strip().partition("\n")[0] or type(error).__name__)
    return ModelError(
        f"model {name!r} cannot be fetched from {hub}: {reason}",
        "check the network, HF_TOKEN, HF_ENDPOINT, the proxy variables and the free space in "
        f"{cache}; "
        f"{option('offline')} uses a cached model",
    )
