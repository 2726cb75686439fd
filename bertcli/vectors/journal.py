"""What survives a kill: the folder of a run beside its output, and the journal of what is there.

    out.npy                 the output, under its name only when it is whole
    out.npy.manifest.json   what made it
    out.npy.index.jsonl     whose rows are whose, where a record has several; or ids and digests
    out.npy.lock            held by the process that writes
    out.npy.run/            for its owner alone, as long as the run is not over:
        journal             how much of the others is committed, by what run, from which input
        vectors             the vectors so far, raw float32
        fields              the other fields of these rows, for the formats that hold them
        index               what becomes the index
        whole               the output while it is made from these
        making              a journal or manifest while it is written

Where such a name would be too long, it is shortened: see `side_name`.

The journal is replaced, as a whole, after the data is on the disk: it never speaks of bytes that
are not there, and what is there beyond it is removed. The last journal holds the manifest: from
then on the output is made, and only has to be moved to its name. Without a journal nothing is
committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import OutputError
from bertcli.files.atomic import whole_file
from bertcli.files.paths import beside
from bertcli.files.typed_json import BadJsonError, as_json, parse, read_bytes

VERSION = 4  # of the journal and the files beside it
SHOWN = 60  # characters of a value in a message


BEGIN_AGAIN = "--overwrite starts over"
ENDS = (".manifest.json", ".index.jsonl", ".lock", ".run")  # of names, in the order of `Files`
JOURNAL, VECTORS, FIELDS, INDEX, WHOLE, MAKING = PARTS = (
    "journal",
    "vectors",
    "fields",
    "index",
    "whole",
    "making",
)


class Files(NamedTuple):
    """The output, the files next to it, and the folder of its run."""

    output: Path
    manifest: Path
    row_index: Path
    lock: Path
    folder: Path

    @classmethod
    def of(cls, path: Path) -> Files:
        """Return the files of an output; for a link, those beside what it points to."""
        real = Path(os.path.realpath(path))
        return cls(real, *(beside(real, end) for end in ENDS))

    @property
    def own(self) -> list[Path]:
        """Every file that a run writes or removes, the output first."""
        return [*self[:-1], *(self.folder / name for name in PARTS)]

    @property
    def journal(self) -> Path:
        """The journal of the run."""
        return self.folder / JOURNAL

    def mode(self) -> int | None:
        """Return who may read and write the output that there is."""
        with suppress(OSError):
            return stat.S_IMODE(os.stat(self.output).st_mode)
        return None

    def clear(self) -> None:
        """Remove the folder of a run: first the journal, without which the others say nothing."""
        for name in PARTS:
            (self.folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # there is none, or it holds what is not ours
            self.folder.rmdir()


@dataclass(frozen=True)
class Journal:
    """What is committed."""

    fingerprint: dict[str, Any]
    inputs: list[dict[str, Any]] = field(default_factory=list)  # as `Inputs` describes files
    overwrite: bool = False  # an output that is there already may be replaced
    mode: int | None = None  # who may read and write that
    rows: int = 0
    shape: Sequence[int] = (0,)  # of a row; known from the first one on
    named: bool = False  # whether a record has an id, or another field for the index
    parts: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # name -> bytes, sha256
    state: Any = None
    manifest: dict[str, Any] | None = None  # the output is made

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal at this place, or None. Raises OutputError for a broken one."""
        raw = read_bytes(path, OutputError, BEGIN_AGAIN)
        if raw is None:
            return None
        try:
            value = parse(raw)
        except BadJsonError:
            value = None
        if not isinstance(value, dict) or value.pop("version", None) != VERSION:
            raise OutputError(f"{path}: not a journal of this version of bertcli", BEGIN_AGAIN)
        if value.pop("sha256", None) != _sha256(value):
            raise OutputError(f"{path}: was changed after it was written", BEGIN_AGAIN)
        return cls(**value)

    def write(self, path: Path) -> None:
        """Put the journal on the disk, in place of the one before."""
        value = as_json(asdict(self))
        about = {"version": VERSION, "sha256": _sha256(value)}
        put_json(path, {**value, **about}, making=path.with_name(MAKING))


def _sha256(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def put_json(path: Path, value: Any, mode: int | None = None, making: Path | None = None) -> None:
    """Write a JSON file that is whole, on the disk, or as it was.

    ``mode`` is its own, if given, and ``making`` its name until then.
    """
    with whole_file(path, mode, making) as file:
        file.write(json_text(value))


def json_text(value: Any) -> bytes:
    """Return what stands in a journal or manifest."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    return text.encode(errors="surrogatepass")


def manifest_in(raw: bytes | None) -> dict[str, Any]:
    """Return what the manifest of an output says; nothing when there is none that is whole."""
    try:
        value = None if raw is None else parse(raw)
    except BadJsonError:
        value = None
    return value if isinstance(value, dict) else {}


def not_resumable(name: str) -> OutputError:
    """Return the refusal of an output that no run which can be resumed has made."""
    return OutputError(
        f"{name}: already exists, but has no manifest to resume from",
        "give --overwrite, or choose another output",
    )


def refuse_changes(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise OutputError, naming each difference, when another run made what is there."""
    before, after = _flat(was), _flat(now)
    different = [
        f"{key} was {_shown(before.get(key))}, now {_shown(after.get(key))}"
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key)
    ]
    if different:
        raise OutputError(
            f"{name}: cannot resume a different run: {'; '.join(different)}",
            "run the command as it was, or start over with --overwrite",
        )


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            flat |= _flat(inner, f"{before}{key}.")
        else:
            flat[before + key] = inner
    return flat


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
