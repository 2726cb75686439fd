"""What survives a kill: the files beside an output, and the journal of what is committed.

    out.npy                 the output, under its name only when it is whole
    out.npy.index.jsonl     whose rows are whose, where a record has several
    out.npy.manifest.json   what made it
    out.npy.partial         room for a header, then the vectors so far, raw float32
    out.npy.partial.jsonl   the other fields of these rows, for the formats that hold them; or
                            what becomes the index
    out.npy.partial.whole   the output while it is made from both
    out.npy.journal.json    how much of both is committed, and by what run
    out.npy.lock            held by the process that writes

The journal is replaced, as a whole, after the data is on the disk: it never speaks of bytes that
are not there, and what is there beyond it is cut off. The last journal holds the manifest: from
then on the output is made, and only has to be moved to its name.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertcli.errors import OutputError

VERSION = 2  # of the journal and of the partial files
SHOWN = 60  # characters of a value in a message
FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Files(NamedTuple):
    """The output and the files beside it."""

    output: Path
    row_index: Path
    manifest: Path
    vectors: Path
    metas: Path
    whole: Path
    journal: Path
    lock: Path

    @classmethod
    def of(cls, path: Path) -> Files:
        """Return the files of an output; for a link, those beside what it points to."""
        real = Path(os.path.realpath(path))
        partial = ("", ".jsonl", ".whole")
        beside = ["", ".index.jsonl", ".manifest.json", *(f".partial{end}" for end in partial)]
        return cls(
            *(real.with_name(real.name + end) for end in (*beside, ".journal.json", ".lock"))
        )

    def clear(self) -> None:
        """Remove all that an unfinished run leaves; the data first, as the journal speaks of it."""
        for path in (self.whole, self.vectors, self.metas, _beside(self.journal), self.journal):
            path.unlink(missing_ok=True)
        _beside(self.manifest).unlink(missing_ok=True)


@dataclass(frozen=True)
class Journal:
    """What is committed."""

    fingerprint: dict[str, Any]
    overwrite: bool = False  # an output that is there already may be replaced
    rows: int = 0
    shape: tuple[int, ...] = (0,)  # of a row; known from the first one on
    meta_bytes: int = 0
    state: Any = None
    manifest: dict[str, Any] | None = None  # the output is made

    @classmethod
    def read(cls, path: Path) -> Journal | None:
        """Return the journal at this place, or None. Raises OutputError for a broken one."""
        try:
            raw = json.loads(path.read_bytes())
            if raw.pop("version") != VERSION:
                raise ValueError
            return cls(**{**raw, "shape": tuple(raw["shape"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            raise OutputError(
                f"{path}: not a journal of this version of bertcli", "--overwrite begins again"
            ) from None

    def write(self, path: Path) -> None:
        """Put the journal on the disk, in place of the one before."""
        put_json(path, {"version": VERSION, **asdict(self)})


def put_json(path: Path, value: Any) -> None:
    """Write a JSON file that is whole, on the disk, or as it was."""
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    with open(_beside(path), "wb") as file:
        file.write(text.encode(errors="surrogatepass"))
        file.flush()
        os.fsync(file.fileno())
    os.replace(_beside(path), path)
    sync_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder as durable as the files (Windows has no call for it)."""
    if os.name != "posix":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is read back after this was written as JSON: tuples become lists."""
    result: dict[str, Any] = json.loads(json.dumps(value))
    return result


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
            f"{name}: cannot go on with what another run began: {'; '.join(different)}",
            "run the command as it was, or begin again with --overwrite",
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


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the system refuses into an OutputError about this output."""
    try:
        yield
    except OSError as failed:
        full = failed.errno in FULL
        raise OutputError(
            f"{path}: cannot be written: {failed.strerror or failed}",
            "make room, then run the same command with --resume" if full else "",
        ) from None
