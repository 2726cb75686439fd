"""A compiled model that is read while Python still imports what decides which one it is.

OpenVINO takes as long to read a model as Python takes to import a command and to understand its
options. So the cache remembers which model a command with these options ran last, and the process
of a command begins with that one. It is a guess: whoever opens a model asks for it by its key and
its settings, and where it was another, it is as if none had been begun.

    begin(sys.argv[1:])         # in the process of a command, before all else
    under_way(key, settings)    # the model that is being read, if it is this one
    remember(key, settings)     # for the next process
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError, ModelError
from bertcli.files.typed_json import read_value
from bertcli.inference.cache_folder import cache_folder

if TYPE_CHECKING:
    from bertcli.inference.model_import import ModelImport

STARTS = "starts.json"
MOST = 64  # commands that are remembered, the last ones
SHORT = {"-m": "--model"}
DECIDING = (
    *("--model", "--revision", "--backend", "--device", "--dtype", "--threads", "--batch-tokens"),
    *("--pooling", "--token-vectors", "--word-vectors", "--sparse", "--layers", "--layer-combine"),
)
Settings = Mapping[str, str | int]


@dataclass
class EarlyStart:
    """What this process began, and what the next one is told."""

    said: str  # what of the command line decides the model
    file: Path
    known: dict[str, Any]  # of each command line, what it ran last
    begun: Any = None  # of these, what was begun
    reading: ModelImport | None = field(default=None, repr=False)


_starts: list[EarlyStart] = []  # of this process: one where it is that of a command


def begin(argv: Sequence[str]) -> None:
    """Begin to read the model that this command line ran last, in a thread."""
    folder = cache_folder()
    if folder is None or not argv or "--help" in argv:
        return
    file = folder / STARTS
    known: Any = None
    with suppress(BertcliError):
        known = read_value(file, ModelError, "") if file.exists() else {}
    start = EarlyStart(deciding(argv), file, known if isinstance(known, dict) else {})
    _starts[:] = [start]
    match start.known.get(start.said):
        case {"key": str(key), "settings": dict(given)}:
            start.begun = {"key": key, "settings": given}
            with suppress(ImportError, BertcliError):
                start.reading = _reading(key, given)


def _reading(key: str, given: Settings) -> ModelImport | None:
    from bertcli.inference.compiled_cache import kept
    from bertcli.inference.model_import import ModelImport

    found = kept(key)
    return ModelImport(found, given) if found else None


def under_way(key: str, given: Settings) -> ModelImport | None:
    """Return the model that is being read, if it is this one with these settings."""
    for start in _starts:
        if start.begun == {"key": key, "settings": given}:
            start.begun = None  # it is read once
            return start.reading
    return None


def remember(key: str, given: Settings) -> None:
    """Remember what this command line runs; where nothing can be written, nothing is."""
    for start in _starts:
        now = {"key": key, "settings": {**given}}
        if start.known.get(start.said) == now:
            continue
        others = [pair for pair in start.known.items() if pair[0] != start.said]
        start.known = dict([*others[1 - MOST :], (start.said, now)])
        from bertcli.files.atomic import whole_file

        with suppress(OSError), whole_file(start.file) as out:
            out.write(json.dumps(start.known).encode())


def deciding(argv: Sequence[str]) -> str:
    """Return what of a command line decides the model: the command, and some of its options.

    >>> deciding(["embed", "some text", "-m", "bert-base-uncased", "--dtype=int8", "-o", "x.npy"])
    'embed --model=bert-base-uncased --dtype=int8'
    """
    found = [argv[0]]
    for word, after in pairwise([*argv[1:], ""]):
        name, equals, value = word.partition("=")
        if word[:2] in SHORT and word[2:]:
            name, equals, value = word[:2], "=", word[2:]
        name, value = SHORT.get(name, name), value if equals else after
        if name in DECIDING:
            found.append(f"{name}={os.path.abspath(value) if os.path.exists(value) else value}")
    return " ".join(found + [f"{name}={os.environ[name]}" for name in MODELS if name in os.environ])


MODELS = ("BERTCLI_MODEL", "BERTCLI_REVISION")  # variables that decide it as well
