"""Rows of any command in a file that appears whole, of a run that may be killed at any instant.

    target = RowTarget(Path("tags.csv"), "csv", resume=True)
    with target.written(run, fingerprint, inputs) as write:
        for rows in run:
            write(rows)

The rows wait in the folder of the run as lines of JSON, whatever the format; the file is made from
them at the end. They are committed whenever the run has begun another window of records. A run that
reads a pipe commits nothing, since its records cannot be compared with those of another: it starts
over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertcli.errors import OutputError
from bertcli.files.jsonl import NAMES, to_lines
from bertcli.files.streams import packed
from bertcli.files.system_calls import opener, sync
from bertcli.files.tables import TYPES, Made, TableHeader, lines_of
from bertcli.files.typed_json import parse
from bertcli.files.writers import Write, writer_of
from bertcli.tokenizing.run import ReaderRun
from bertcli.vectors.formats import FIELDS
from bertcli.vectors.run_folder import ANOTHER, WHOLE, Inputs, Target

AT_ONCE = 4096  # rows that are read again together
LINES = ("finished", "jsonl")  # formats whose file has the bytes that wait


@dataclass(frozen=True)
class RowTarget(Target):
    """An output of rows."""

    @property
    def parts(self) -> list[str]:
        """The file that rows are appended to."""
        return [FIELDS]

    def check(self) -> None:
        """Raise OutputError for what can never be written."""
        if self.path.exists() and not self.path.is_file():
            raise OutputError(f"{self.path}: is a folder, device or pipe", "name a file")

    @contextmanager
    def written(
        self, run: ReaderRun | None, fingerprint: Mapping[str, Any], inputs: Inputs
    ) -> Iterator[Write | None]:
        """Yield what takes the rows of a run, which begins behind what is committed.

        None where the file is there already, complete. Where there is no run, nothing is committed.
        Raises OutputError as `opened` does, and for a file that was made of a pipe, which cannot be
        compared.
        """
        with self.opened(fingerprint, inputs) as sink:
            if sink.complete and inputs.streams:
                raise OutputError(
                    f"{self.path}: already exists, and {inputs.streams[0]} cannot be compared with "
                    "what it was made of",
                    ANOTHER,
                )
            if sink.complete:
                yield None
                return
            if run and sink.state:
                run.begin_after(sink.state)
            else:  # what is there is of a pipe, whose run was killed at its end
                sink.files[FIELDS].truncate(0)
                sink.journal["parts"] = {}
            headers: list[TableHeader] = []
            lasting = run is not None and not inputs.streams

            def write(rows: Sequence[Any]) -> None:
                if run and lasting and run.done != sink.state:
                    sink.commit(run.done)
                headers.extend(row for row in rows if isinstance(row, TableHeader))
                if self.form == "finished":
                    data = b"".join(rows)
                else:
                    data = to_lines(lines_of(rows)).encode(errors=NAMES)
                sink.append({FIELDS: data})

            yield write
            if run and run.done and lasting:
                sink.commit(run.done)
            form = "finished" if self.form in LINES else self.form
            with open(sink.folder / WHOLE, "wb", opener=opener(None)) as file:
                with packed(sink.output, file) as inner, writer_of(form)(inner) as put:
                    for rows in self._waiting(sink.folder / FIELDS):
                        put(rows)
                    if headers and not file.tell() and form != "finished":
                        put(headers)
                sync(file)
            sink.publish({"counts": asdict(run.tally)} if run else {})

    def _waiting(self, path: Path) -> Iterator[list[Any]]:
        """Yield the rows that wait, some at a time."""
        with path.open("rb") as lines:
            while some := [*islice(lines, AT_ONCE)]:
                yield [b"".join(some)] if self.form in LINES else [*map(_row, some)]


def _row(line: bytes) -> dict[str, Any]:
    """Return a row; lists that we made have the type of their name again."""
    row: dict[str, Any] = parse(line)
    return {
        name: Made(value) if name in TYPES and isinstance(value, list) else value
        for name, value in row.items()
    }
