"""Downloads through `huggingface_hub`, with one line of explanation when one fails.

The library gives tokens, mirrors (HF_ENDPOINT), proxies, locks, progress on a terminal, and files
that appear in the cache whole or not at all.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import CRITICAL
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from bertcli.errors import ModelError
from bertcli.files.paths import HIDDEN, public
from bertcli.hub.local import near

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

TIMEOUT = 10  # seconds for the first answer; the library's own requests would wait forever

DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
STORAGE = (*DENIED, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

LOGIN = "log in with `hf auth login` or set HF_TOKEN"


class Unreachable(ModelError):
    """The hub did not answer, or not usefully; a cached copy can be used instead."""


def download(
    name: str,
    revision: str | None,
    cache: Path,
    choose: Callable[[Sequence[str]], Sequence[str]],
    *,
    force: bool = False,
) -> Path:
    """Fetch the files that `choose` picks from a repository's names into the cache.

    Returns the snapshot's folder. `force` downloads again what the library takes for present.
    """
    _check_endpoint()
    from huggingface_hub import HfApi, snapshot_download

    # RuntimeError is hf_xet's; ValueError and LookupError come of answers that are not a hub's.
    failures = (_transport_error(), OSError, RuntimeError, ValueError, LookupError)
    try:
        with _quiet(progress=sys.stderr.isatty()):
            about = HfApi(library_name="bertcli").model_info(
                name, revision=revision, timeout=TIMEOUT
            )
            if about.siblings is None:
                raise ValueError("the answer names no files")
            folder = snapshot_download(
                name,
                revision=revision,
                cache_dir=cache,
                allow_patterns=[*choose([file.rfilename for file in about.siblings])],
                force_download=force,
                library_name="bertcli",
            )
    except failures as error:
        raise _explained(error, name, revision, cache) from error
    return Path(folder)


@contextmanager
def _quiet(*, progress: bool) -> Iterator[None]:
    """Keep the library's log off stderr, where our one line belongs, and its bars unless wanted.

    HF_HUB_VERBOSITY and HF_HUB_DISABLE_PROGRESS_BARS, where set, decide instead.
    """
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    level, fixed = logging.get_verbosity(), "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ
    hide = not (fixed or progress or are_progress_bars_disabled())
    if "HF_HUB_VERBOSITY" not in os.environ:
        logging.set_verbosity(CRITICAL)
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if hide:
            enable_progress_bars()


def _transport_error() -> type[Exception]:
    """Return HTTPError of httpx or httpx2, whichever the installed huggingface_hub is built on."""
    from huggingface_hub.errors import HfHubHTTPError

    bases = cast("list[type[Exception]]", HfHubHTTPError.mro())
    return next(base for base in bases if base.__name__ == "HTTPError")


def endpoint() -> str:
    """Return the URL of the hub, or of its mirror."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def shown_endpoint() -> str:
    """Return that URL without user name and password, for messages."""
    _, at, host = endpoint().rpartition("@")
    return f"{HIDDEN}@{public(host)}" if at else public(host)


def _check_endpoint() -> None:
    try:
        address = urlsplit(endpoint())
        usable = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ModelError(
            f"HF_ENDPOINT is {shown_endpoint()!r}, which is not a valid URL",
            "set it to the address of a mirror, or unset it",
        )


def _explained(error: Exception, name: str, revision: str | None, cache: Path) -> ModelError:
    """Turn an error of the library into one line that says what to do."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _explained(error.__cause__, name, revision, cache)
    if isinstance(error, HfHubHTTPError):
        return _refused(error, name, revision)
    if (isinstance(error, OSError) and error.errno in STORAGE) or "os error 28" in str(error):
        return _not_stored(error, name, cache)
    if isinstance(error, (ValueError, LookupError)):
        message = f"model {name!r} cannot be fetched from {shown_endpoint()}: {_first_line(error)}"
        return ModelError(message, "check HF_TOKEN, HF_ENDPOINT and the proxy variables")
    return Unreachable(
        f"model {name!r}: the connection to {shown_endpoint()} failed: {_first_line(error)}",
        f"no folder {name!r} was found; check the name and the network, or use a cached model "
        "(--offline)",
    )


def _refused(error: HfHubHTTPError, name: str, revision: str | None) -> ModelError:
    """Explain an answer that was not 200; the order follows the classes' inheritance."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    status, page = error.response.status_code, f"{shown_endpoint()}/{name}"
    if isinstance(error, GatedRepoError):
        return ModelError(
            f"model {name!r} is gated: its owner decides who may download it",
            f"ask for access at {page}, then {LOGIN}",
        )
    if isinstance(error, RevisionNotFoundError):
        message = f"model {name!r} has no revision {revision or 'main'!r} on {shown_endpoint()}"
        return ModelError(message, f"see {page}/commits")
    token = "authorization" in error.response.request.headers
    unknown = status == 404 or (status == 401 and not token)  # 401: so says the hub, and mirrors
    if isinstance(error, RepositoryNotFoundError) or unknown:
        advice = near(name) or f"check the name at {shown_endpoint()}/models"
        message = f"model {name!r} is not on {shown_endpoint()}, or is private"
        return ModelError(message, f"{advice}; if it is private, {LOGIN}".replace("?;", "?"))
    if status in (401, 403):
        message = f"{shown_endpoint()} refuses access to model {name!r} (status {status})"
        return ModelError(message, f"check your access at {page} and your token: {LOGIN}")
    return Unreachable(
        f"model {name!r}: {shown_endpoint()} answered with status {status}",
        "try again later, or use a folder or a cached model (with --offline)",
    )


def _not_stored(error: Exception, name: str, cache: Path) -> ModelError:
    code = error.errno if isinstance(error, OSError) else errno.ENOSPC
    advice = "make it writable" if code in DENIED else "free some space"
    return ModelError(
        f"model {name!r} cannot be stored in the cache {cache}: {os.strerror(code or 0)}",
        f"{advice}, or set HF_HOME to another folder",
    )


def _first_line(error: Exception) -> str:
    return public(next(iter(str(error).strip().splitlines()), type(error).__name__))
