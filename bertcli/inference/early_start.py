"""A compiled model that is read while Python still imports what decides which one it is.

OpenVINO takes as long to read a model as Python takes to import a command and to understand its
options. So the cache remembers which model a command with these options ran last, and the process
of a command begins with that one. It is a guess: whoever opens a model asks for it by its key and
its settings, and where it was another, it is as if none had been begun.

    begin(sys.argv[1:])         # in the process of a command, before all else
    under_way(key, settings)    # the model that is being read, if it is this one
    expect(["embed", "-m", ...])    # where another process prepares such a command
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import BertcliError, ModelError
from bertcli.files.typed_json import read_value
from bertcli.inference.cache_folder import STARTS, cache_folder

if TYPE_CHECKING:
    from bertcli.inference.model_import import ModelImport

MOST = 64  # command lines that are remembered, the last ones
HELP = frozenset(("-h", "--help"))
SHORT = {"-m": "--model"}
SAID = ("model", "revision", "backend", "device", "dtype", "threads", "pooling")
VARIABLES = {f"--{name}": f"BERTCLI_{name.upper()}" for name in SAID}
FLAGS = frozenset(("--token-vectors", "--sparse"))
# Options that decide which compiled model is run; the environment may give the first ones.
DECIDING = (*VARIABLES, *FLAGS, "--word-vectors", "--layers", "--layer-combine")
Settings = Mapping[str, str | int]


class EarlyStart:
    """What the process of a command began, and what it tells the next one.

    ``said`` is what of the command line decides the model, ``known`` what such lines ran last.
    """

    def __init__(self, said: str, file: Path, known: dict[str, Any]) -> None:
        self.said, self.file, self.known = said, file, known
        self.reading: ModelImport | None = None

    def remember(self, ran: Mapping[str, Any]) -> None:
        """Remember what this command line ran; where nothing can be written, nothing is."""
        from bertcli.files.atomic import whole_file

        others = [pair for pair in self.known.items() if pair[0] != self.said]
        self.known = dict([*others[1 - MOST :], (self.said, ran)])
        with suppress(OSError), whole_file(self.file) as out:
            out.write(json.dumps(self.known).encode())


_start: EarlyStart | None = None  # of this process, where it is that of a command


def begin(argv: Sequence[str]) -> None:
    """Begin to read the model that this command line ran last, in a thread."""
    if not argv or not HELP.isdisjoint(argv):
        return
    # OSError: a working folder, or an entry, that was removed; RuntimeError: no thread is to be had
    with suppress(OSError, RuntimeError, ImportError, BertcliError):
        if start := expect(argv):
            match start.known.get(start.said):
                case {"key": str(key), "settings": dict(given)} if _are_settings(given):
                    start.reading = _reading(key, given)


def expect(argv: Sequence[str]) -> EarlyStart | None:
    """Remember the next model that this process opens as that of this command line.

    Return what is known, None where there is no cache.
    """
    global _start
    if (folder := cache_folder()) is None:
        return None
    file, known = folder / STARTS, None
    with suppress(BertcliError):
        known = read_value(file, ModelError, "")
    _start = EarlyStart(deciding(argv), file, known if isinstance(known, dict) else {})
    return _start


def _are_settings(given: Mapping[str, object]) -> bool:
    return all(isinstance(one, str | int) for one in given.values())


def _reading(key: str, given: Settings) -> ModelImport | None:
    from bertcli.inference.compiled_cache import kept
    from bertcli.inference.model_import import ModelImport

    found = kept(key)
    return ModelImport(found, given) if found else None


def under_way(key: str, given: Settings) -> ModelImport | None:
    """Return the model that is being read, if it is this one with these settings.

    Where it is another, the next process of such a command begins with this one: the first model
    that a process opens.
    """
    global _start
    start, _start = _start, None
    if start is None:
        return None
    ran = {"key": key, "settings": {**given}}
    if start.known.get(start.said) == ran:
        return start.reading
    start.remember(ran)
    return None


def deciding(argv: Sequence[str]) -> str:
    """Return what of a command line decides the model: the command, and some of its options.

    >>> deciding(["embed", "some text", "-m", "bert-base-uncased", "--dtype=int8", "-o", "x.npy"])
    'embed --dtype=int8 --model=bert-base-uncased'
    """
    found = {name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}
    for word, after in pairwise([*argv[1:], ""]):
        name, equals, value = word.partition("=")
        if word[:2] in SHORT and word[2:]:
            name, equals, value = word[:2], "=", word[2:]
        name, value = SHORT.get(name, name), value if equals else after
        if name in DECIDING:
            found[name] = "yes" if name in FLAGS else value
    if os.path.exists(found["--model"]):
        found["--model"] = os.path.abspath(found["--model"])
    return " ".join([argv[0], *sorted(f"{name}={value}" for name, value in found.items() if value)])
