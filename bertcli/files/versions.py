"""The version of bertcli, and those of the libraries that decide the numbers."""

from __future__ import annotations

__version__ = "0.1.0"


def versions(*names: str) -> dict[str, str]:
    """Return the version of each library, read from its metadata: nothing is imported."""
    from importlib.metadata import version

    return {name: version(name) for name in names}
