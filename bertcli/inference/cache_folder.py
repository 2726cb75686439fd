"""Where compiled models are kept, and beside them what command lines ran last."""

from __future__ import annotations

import os
from pathlib import Path

STARTS = "starts.json"  # what is in it: `early_start`


def cache_folder() -> Path | None:
    """Return the cache: $BERTCLI_CACHE, or the system's place for caches; None without a home."""
    if given := os.environ.get("BERTCLI_CACHE"):
        return Path(given)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    if base := os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA"):
        return Path(base, "bertcli")
    mac = Path(home, "Library", "Caches")
    return (mac if mac.is_dir() else Path(home, ".cache")) / "bertcli"
