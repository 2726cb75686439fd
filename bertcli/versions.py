"""Versions of bertcli and of the libraries that affect results, and installation of extras."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from bertcli.errors import BertcliError

__version__ = "0.1.0"
CPU_WHEELS = "https://download.pytorch.org/whl/cpu"


def versions(*names: str) -> dict[str, str]:
    """Return the versions of installed libraries, from metadata, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    installed = {}
    for name in names:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def require_torch(purpose: str) -> None:
    """Raise BertcliError if torch (an extra) is not installed; ``purpose`` is what needs it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise BertcliError(f"{purpose} needs torch", install_command("torch"))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from its original source."""
    from importlib.metadata import distributions
    from platform import system
    from urllib.parse import unquote, urlsplit

    from bertcli.io.typed_json import parse

    records = [found.read_text("direct_url.json") for found in distributions(name="bertcli")]
    url = parse(next(filter(None, records), "{}")).get("url", "")
    install = pip_command()
    requirement = f"bertcli[{extra}] @ {url}" if url else f"bertcli[{extra}]"
    constraints = Path(unquote(urlsplit(url).path), "constraints.txt")
    option = f"-c {constraints} " if url.startswith("file:") and constraints.is_file() else ""
    command = f'{install} {option}"{requirement}"'
    if extra != "torch" or system() != "Linux":
        return command
    return (
        f"for a CPU (750 MB) {install} torch --index-url {CPU_WHEELS}, and then, "
        f"or alone for CUDA (several GB), {command}"
    )


def pip_command(action: str = "install") -> str:
    """Return the command that changes packages in the environment of this process."""
    python = sys.executable
    has_pip = versions("pip")  # find_spec could trigger a warning of setuptools about distutils
    return f"{python} -m pip {action}" if has_pip else f"uv pip {action} --python {python}"
