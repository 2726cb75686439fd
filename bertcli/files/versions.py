"""The version of bertcli, those of the libraries that decide the numbers, and its extras."""

from __future__ import annotations

import os
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
    """Return the command that adds an extra to this installation, as that was made."""
    import re
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    from bertcli.files.typed_json import parse

    places = [installed.read_text("direct_url.json") for installed in distributions(name="bertcli")]
    origin = parse(next(filter(None, places), "{}"))
    url, folder, command = origin.get("url", ""), origin.get("dir_info"), pip_command()
    receipt = Path(sys.prefix, "uv-receipt.toml")
    if receipt.exists():  # uv tool replaces the environment: extras it has are named again
        present = re.search(r'name = "bertcli", extras = \[(.*?)\]', receipt.read_text("utf-8"))
        names = {extra, *re.findall(r'"(.*?)"', present[1] if present else "")}
        extra, command = ",".join(sorted(names)), "uv tool install"
    if folder is None:
        return f'{command} "bertcli[{extra}]{f" @ {url}" * bool(url)}"'
    editable = "-e " * folder.get("editable", False)
    return f'{command} {editable}"{url2pathname(urlsplit(url).path)}[{extra}]"'


def pip_command() -> str:
    """Return the command that installs a package into the environment of this process."""
    import shutil
    from importlib.util import find_spec

    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        return "pipx runpip bertcli install"
    if (pip := shutil.which("pip")) and os.path.dirname(pip) == os.path.dirname(sys.executable):
        return "pip install"
    if find_spec("pip"):  # an environment that is not activated
        return f"{sys.executable} -m pip install"
    return f"uv pip install --python {sys.executable}"
