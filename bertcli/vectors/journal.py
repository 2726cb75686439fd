"""What survives a kill: the files beside an output, and the journal of what is committed.

    out.npy                 the output, under its name only when it is whole
    out.npy.index.jsonl     whose rows are whose, where a record has several
    out.npy.manifest.json   what made it
    out.npy.partial         room for a header, then the vectors so far, raw float32
    out.npy.partial.jsonl   the other fields of these rows, for the formats that hold them; or
                            what becomes the index
    out.npy.partial.whole   the output while it is made from both
    out.npy.partial.index   the index with digests, of an output that is updated
    out.npy.journal.json    how much of both is committed, by what run, from which input
    out.npy.lock            held by the process that writes

Where such a name would be too long, it is shortened: see `side_files`. What replaces a file that
not everybody may read is made readable by nobody else from the start.

The journal is replaced, as a whole, after the data is on the disk: it never speaks of bytes that
are not there, and what is there beyond it is removed. The last journal holds the manifest: from
then on the output is made, and only has to be moved to its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import OutputError
from bertcli.files.atomic import whole_file
from bertcli.files.paths import beside
from bertcli.files.system_calls import OWNER
from bertcli.files.typed_json import BadJsonError, JsonObject, as_json, parse, read_bytes

VERSION = 3  # of the journal and of the partial files
SHOWN = 60  # characters of a value in a message


BEGIN_AGAIN = "--overwrite starts over"
MOST = 1 << 62  # of a count of rows or bytes
ENDS = (  # of the names of the files beside an output, in the order of `Files`
    ".index.jsonl",
    ".manifest.json",
    ".partial",
    ".partial.jsonl",
    ".partial.whole",
    ".partial.index",
    ".journal.json",
    ".lock",
)
PUBLISHED = ("output", "row_index", "manifest")  # what stays when a run is over


class Files(NamedTuple):
    """The output and the files next to it."""

    output: Path
    row_index: Path
    manifest: Path
    vectors: Path
    metas: Path
    whole: Path
    new_index: Path
    journal: Path
    lock: Path

    @classmethod
    def of(cls, path: Path) -> Files:
        """Return the files of an output; for a link, those beside what it points to."""
        real = Path(os.path.realpath(path))
        return cls(real, *(beside(real, end) for end in ENDS))

    @property
    def own(self) -> list[Path]:
        """Every file that a run writes or removes, the output first."""
        return [*self, _making(self.journal), _making(self.manifest)]

    def modes(self) -> dict[str, int]:
        """Return who may read and write those of the published files that there are."""
        modes = {}
        for name in PUBLISHED:
            with suppress(OSError):
                modes[name] = stat.S_IMODE(os.stat(getattr(self, name)).st_mode)
        return modes

    @property
    def unfinished(self) -> list[Path]:
        """All that a run leaves which is killed, but its lock; the journal behind its data."""
        data = [self.whole, self.new_index, self.vectors, self.metas]
        return [*data, _making(self.journal), self.journal, _making(self.manifest)]

    def clear(self, *, journal_first: bool = False) -> None:
        """Remove all that an unfinished run leaves; of what is not made, its journal first."""
        for path in [self.journal] * journal_first + self.unfinished:
            path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Journal:
    """What is committed."""

    fingerprint: dict[str, Any]
    inputs: list[dict[str, Any]] = field(default_factory=list)  # as `input_hashes` describes files
    overwrite: bool = False  # an output that is there already may be replaced
    modes: dict[str, int] = field(default_factory=dict)  # of the published files that it replaces
    rows: int = 0
    shape: tuple[int, ...] = (0,)  # of a row; known from the first one on
    meta_bytes: int = 0
    vectors_sha256: str = ""  # of the rows, behind the room for a header
    metas_sha256: str = ""
    state: Any = None
    manifest: dict[str, Any] | None = None  # the output is made

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal at this place, or None. Raises OutputError for a broken one."""
        raw = read_bytes(path, OutputError, BEGIN_AGAIN)
        if raw is None:
            return None
        other = OutputError(f"{path}: not a journal of this version of bertcli", BEGIN_AGAIN)
        try:
            value = parse(raw)
        except BadJsonError:
            raise other from None
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise other
        if value.pop("sha256", None) != _sha256(value):
            raise OutputError(f"{path}: was changed after it was written", BEGIN_AGAIN)
        return cls._of(JsonObject(value, str(path), OutputError, BEGIN_AGAIN))

    @classmethod
    def _of(cls, fields: JsonObject) -> Journal:
        return cls(
            fingerprint=dict(fields.object("fingerprint")),
            inputs=list(map(dict, fields.list_of_objects("inputs"))),
            overwrite=fields.switch("overwrite") or False,
            modes={
                name: fields.object("modes").whole(name) or 0 for name in fields.object("modes")
            },
            rows=fields.whole("rows", most=MOST) or 0,
            shape=tuple(fields.wholes("shape", most=MOST) or ()),
            meta_bytes=fields.whole("meta_bytes", most=MOST) or 0,
            vectors_sha256=fields.text("vectors_sha256") or "",
            metas_sha256=fields.text("metas_sha256") or "",
            state=fields.get("state"),
            manifest=dict(fields.object("manifest")) or None,
        )

    @property
    def mode(self) -> int | None:
        """Who may read and write what is under way: whoever may the output that it replaces."""
        mode = self.modes.get("output")
        return None if mode is None else mode | OWNER

    def write(self, path: Path) -> None:
        """Put the journal on the disk, in place of the one before."""
        value = as_json({"version": VERSION, **asdict(self)})
        put_json(path, {**value, "sha256": _sha256(value)}, self.mode)


def _sha256(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def put_json(path: Path, value: Any, mode: int | None = None) -> None:
    """Write a JSON file that is whole, on the disk, or as it was; ``mode`` is its own, if given."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    with whole_file(path, mode, _making(path)) as file:
        file.write(text.encode(errors="surrogatepass"))


def _making(path: Path) -> Path:
    return beside(path, ".tmp")


def manifest_in(raw: bytes | None, name: str) -> JsonObject:
    """Return what the manifest of an output says; nothing when there is none that is whole."""
    try:
        value = None if raw is None else parse(raw)
    except BadJsonError:
        value = None
    return JsonObject(value if isinstance(value, dict) else {}, name, OutputError)


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
