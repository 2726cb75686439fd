"""The version of bertcli, those of the libraries that decide the numbers, and its extras."""

from __future__ import annotations

import sys
from contextlib import suppress

from bertcli.errors import BertcliError

__version__ = "0.1.0"


def versions(*names: str) -> dict[str, str]:
    """Return the version of each installed library, from its metadata: nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    numbers = {}
    for name in names:
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


def require_torch(purpose: str) -> None:
    """Raise BertcliError when torch, which is an extra, is not installed: ``purpose`` needs it."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise BertcliError(f"{purpose} needs torch", install_command("torch"))


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation, from where it came."""
    from importlib.metadata import distributions

    from bertcli.files.typed_json import parse

    places = [installed.read_text("direct_url.json") for installed in distributions(name="bertcli")]
    url = parse(next(filter(None, places), "{}")).get("url", "")
    return f'{pip_command()} "bertcli[{extra}]{f" @ {url}" * bool(url)}"'


def pip_command() -> str:
    """Return the command that installs a package into the environment of this process."""
    python = sys.executable
    has_pip = versions("pip")  # not find_spec, at which setuptools may warn of distutils
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
