"""Rows of any command, written to a file: streamed to it, or kept so that a run can be resumed.

    run = RowRun(inputs, {"options": options}, reader_run)
    with open_rows(run, RowTarget(Path("tags.csv"), "csv", resume=True)) as write:
        for rows in reader_run:
            write(rows)

With ``resume``, rows wait in the run folder as lines of JSON, and the output is made of them at the
end; otherwise they go to the new output at once, and nothing is left of a run that fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertcli.errors import OutputError
from bertcli.formats.jsonl import NAMES, to_lines
from bertcli.formats.registry import CONTENT, FINISHED, FORMATS
from bertcli.formats.tables import TableHeader, lines_of
from bertcli.formats.writers import Write, is_special, open_writer, writer_of
from bertcli.io.output_files import FIELDS, NEW_OUTPUT
from bertcli.io.paths import WatchedFiles
from bertcli.io.publish import unwritable
from bertcli.io.typed_json import parse
from bertcli.runs.identity import ANOTHER, Inputs
from bertcli.runs.run import open_run
from bertcli.runs.run_folder import OutputState, RunWriter, Target

if TYPE_CHECKING:
    from bertcli.tokenizing.run import ReaderRun

ROWS_READ_AGAIN = 4096  # at a time


@dataclass
class RowRun:
    """Rows that a command writes."""

    read: Inputs
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    reader_run: ReaderRun | None = None  # what makes the rows; None: rows of all texts together

    def inputs(self) -> Inputs:
        """Return what is read."""
        return self.read

    def identity(self) -> Mapping[str, Any]:
        """Return what the rows depend on besides the inputs."""
        return self.fingerprint

    def resume(self, state: Any) -> None:
        """Begin after the records whose rows are committed."""
        if self.reader_run and state:
            self.reader_run.begin_after(state)

    def commit(self, writer: RowWriter) -> None:
        """Commit the rows of the windows that are done, unless the input cannot be read again."""
        run = self.reader_run
        if run and run.done != writer.state and not self.read.streams:
            writer.commit(run.done)
            run.committed = writer.state["records"]

    def summary(self) -> Mapping[str, Any]:
        """Return what the manifest says of the run."""
        return {"counts": asdict(self.reader_run.tally)} if self.reader_run else {}


@contextmanager
def open_rows(run: RowRun, target: RowTarget) -> Iterator[Write | None]:
    """Yield a function that writes rows; None where the output is complete.

    Raises OutputError as `Target.opened` does, and for a complete output that was made of a pipe,
    which cannot be compared.
    """
    with open_run(run, target) as writer:
        if writer.found is OutputState.COMPLETE:
            yield None
            return

        def write(rows: Sequence[Any]) -> None:
            run.commit(writer)
            writer.write(rows)

        yield write
        run.commit(writer)


@contextmanager
def streamed_rows(
    path: Path,
    form: str,
    *,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
    model_files: Sequence[Path] = (),
) -> Iterator[Write]:
    """Yield a function that writes rows to a file, which appears complete or not at all.

    A device or pipe is written as it is. Raises OutputError if the file exists, is one of the
    ``inputs`` or ``model_files``, or cannot be written.
    """
    if is_special(path):
        with open_writer(path, form, inputs=inputs) as write_now:
            yield write_now
        return
    run = RowRun(Inputs([str(name) for name in inputs], model_files=model_files))
    with open_rows(run, StreamedTarget(path, form, overwrite=overwrite)) as write:
        assert write is not None  # only a run that can be resumed is complete
        yield write


def write_file(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file as `streamed_rows` does."""
    with streamed_rows(path, CONTENT, overwrite=overwrite) as write:
        write([content])


@dataclass(frozen=True)
class RowTarget(Target["RowWriter"]):
    """A file of rows, which is made of rows that wait."""

    row_files: ClassVar[tuple[str, ...]] = (FIELDS,)

    def writer(self, model: WatchedFiles) -> RowWriter:
        """Return the writer of the rows of a run."""
        return RowWriter(self, model)


class RowWriter(RunWriter):
    """Keeps rows as lines of JSON, and makes the output of them."""

    def __init__(self, target: RowTarget, model: WatchedFiles) -> None:
        super().__init__(target, model)
        self.cached: Inputs | None = None  # the inputs, if some are written during the run
        self.headers: list[TableHeader] = []

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out what is there. Rows of a run that has committed no state are not continued."""
        super().begin(fingerprint, inputs)
        if inputs.cached:
            self.cached = inputs
        if self.found is OutputState.COMPLETE and inputs.streams:
            raise OutputError(
                f"{self.path}: already exists, and {inputs.streams[0]} cannot be compared with "
                "what it was made of",
                ANOTHER,
            )
        if self.state is None:  # those of a pipe, whose run was killed at its end
            self.journal["parts"] = {}

    @property
    def waits_finished(self) -> bool:
        """True if the waiting bytes are those of the output."""
        return self.target.form == FINISHED or FORMATS[self.target.form].is_json

    def write(self, rows: Sequence[Any]) -> None:
        """Add rows; headers are kept for a table without any."""
        self.headers.extend(row for row in rows if isinstance(row, TableHeader))
        if self.target.form == FINISHED:
            data = b"".join(rows)
        else:
            data = to_lines(lines_of(rows)).encode(errors=NAMES)
        self.append({FIELDS: data})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Make the output of the rows that wait, and its manifest."""
        form = FINISHED if self.waits_finished else self.target.form
        with self.new_file() as file, writer_of(form, to_file=True)(file) as write:
            for rows in self._waiting(self.folder / FIELDS):
                self.headers.clear()
                write(rows)
            if self.headers and form != FINISHED:
                write(self.headers)
        if self.cached:
            self.journal["inputs"] = self.cached.described()  # with vectors that it has written
        self.publish_run(summary)

    def _waiting(self, path: Path) -> Iterator[list[Any]]:
        """Yield the rows that wait, some at a time."""
        with path.open("rb") as lines:
            while some := [*islice(lines, ROWS_READ_AGAIN)]:
                yield [b"".join(some)] if self.waits_finished else [*map(parse, some)]


@dataclass(frozen=True)
class StreamedTarget(RowTarget):
    """A file of rows that are written to it at once, and which has no manifest."""

    row_files: ClassVar[tuple[str, ...]] = ()
    manifest: bool = field(default=False, kw_only=True)

    def writer(self, model: WatchedFiles) -> RowWriter:
        """Return the writer of the rows."""
        return StreamedWriter(self, model)


class StreamedWriter(RowWriter):
    """Writes rows to the new output; what an interrupted run has left stays until that is there."""

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Refuse to replace what is there, unless that is wanted."""
        if not self.target.overwrite:
            self.refuse_replacing()

    @contextmanager
    def open_files(self) -> Iterator[None]:
        """Open the new output."""
        with self.errors(), ExitStack() as self.opened:
            file = self.opened.enter_context(self.new_file())
            self.put = self.opened.enter_context(writer_of(self.target.form, to_file=True)(file))
            yield

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn what the system refuses into an OutputError."""
        try:
            yield
        except OSError as failed:
            raise unwritable(self.path, failed) from None

    def write(self, rows: Sequence[Any]) -> None:
        """Write rows to the new output."""
        self.put(rows)

    def commit(self, state: Any) -> None:
        """Do nothing: a run that is killed starts over."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Publish the output, and remove what an interrupted run has left."""
        self.model.refuse_changes()
        self.opened.close()
        if not self.target.overwrite:  # again: another program may have made it
            self.refuse_replacing()
        self.publish()
        self.clear()

    def end(self) -> None:
        """Remove the new output if it was not published."""
        (self.folder / NEW_OUTPUT).unlink(missing_ok=True)
