"""Rows of any command, written to a file: streamed, or stored so that a run can be resumed.

    run = RowRun(inputs, {"options": options}, reader_run)
    with open_rows(run, RowTarget(Path("tags.csv"), "csv", resume=True)) as write:
        for rows in reader_run if write else ():   # None: the output is complete
            write(rows)

With ``resume``, rows are stored as lines of JSON in the run folder, and the output is made from
them at the end. Otherwise they are written to the new output directly, and a failed run leaves
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertcli.errors import OutputError
from bertcli.formats.jsonl import ENCODE_ERRORS, to_lines
from bertcli.formats.registry import CONTENT, ENCODED_ROWS, FORMATS
from bertcli.formats.tables import TableHeader, without_headers
from bertcli.formats.writers import Write, is_special, open_writer, writer_of
from bertcli.io.output_files import FIELDS, NEW_OUTPUT
from bertcli.io.paths import WatchedFiles
from bertcli.io.publish import FREE_SPACE, unwritable
from bertcli.io.typed_json import parse
from bertcli.runs.identity import OVERWRITE_HINT, Inputs
from bertcli.runs.run import open_run
from bertcli.runs.run_folder import OutputState, RunWriter, Target

if TYPE_CHECKING:
    from bertcli.tokenizing.run import ReaderRun

ROWS_READ_AGAIN = 4096  # stored rows that are converted at once


@dataclass
class RowRun:
    """A run whose rows a command makes and writes."""

    inputs: Inputs
    fingerprint: Mapping[str, Any] = field(default_factory=dict)  # what else the rows depend on
    reader_run: ReaderRun | None = None  # yields the rows; None if they need all texts together

    def resume(self, state: Any) -> None:
        """Skip the records whose rows are committed."""
        if self.reader_run and state:
            self.reader_run.begin_after(state)

    def commit(self, writer: RowWriter) -> None:
        """Commit the rows of completed windows, unless the input cannot be read again."""
        run = self.reader_run
        if run and run.done != writer.state and not self.inputs.streams:
            writer.commit(run.done)
            run.committed = writer.state["records"]

    def summary(self) -> Mapping[str, Any]:
        """Return the run's entries of the manifest."""
        return {"counts": asdict(self.reader_run.tally)} if self.reader_run else {}


@contextmanager
def open_rows(run: RowRun, target: RowTarget) -> Iterator[Write | None]:
    """Yield a function that writes rows, or None if the output is complete.

    Raises OutputError as `Target.opened` does, and for a complete output that was made from a
    pipe, with which it cannot be compared.
    """
    with open_run(run, target) as writer:
        if writer.output_state is OutputState.COMPLETE:
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
    file_format: str,
    *,
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
    model_files: Sequence[Path] = (),
) -> Iterator[Write]:
    """Yield a function that writes rows to a file, which is written atomically.

    Devices and pipes are written directly. Raises OutputError if the file exists, is one of the
    ``inputs`` or ``model_files``, or cannot be written.
    """
    if is_special(path):
        with open_writer(path, file_format, inputs=inputs) as write_now:
            yield write_now
        return
    run = RowRun(Inputs([str(name) for name in inputs], model_files=model_files))
    with open_rows(run, StreamedTarget(path, file_format, overwrite=overwrite)) as write:
        assert write is not None  # only a resumable run can be complete
        yield write


def write_file(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file atomically, see `streamed_rows`."""
    with streamed_rows(path, CONTENT, overwrite=overwrite) as write:
        write([content])


@dataclass(frozen=True)
class RowTarget(Target["RowWriter"]):
    """A file of rows, made at the end from rows stored in the run folder."""

    row_files: ClassVar[tuple[str, ...]] = (FIELDS,)

    def writer(self, model: WatchedFiles) -> RowWriter:
        """Return the writer of the rows of a run."""
        return RowWriter(self, model)


class RowWriter(RunWriter):
    """Stores rows as lines of JSON, and makes the output from them."""

    def __init__(self, target: RowTarget, model: WatchedFiles) -> None:
        super().__init__(target, model)
        self.cached: Inputs | None = None  # the inputs, if the run writes some of them
        self.headers: list[TableHeader] = []

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Find out the state of the output. Rows without a committed state are discarded."""
        super().begin(fingerprint, inputs)
        if inputs.cached:
            self.cached = inputs
        if self.output_state is OutputState.COMPLETE and inputs.streams:
            raise OutputError(
                f"{self.path}: already exists, and {inputs.streams[0]} cannot be compared with "
                "what it was made of",
                OVERWRITE_HINT,
            )
        if self.state is None:  # rows of a pipe whose run was killed at its end
            self.journal["parts"] = {}

    @property
    def stores_encoded_rows(self) -> bool:
        """True if the stored rows are already encoded."""
        return self.target.file_format == ENCODED_ROWS or FORMATS[self.target.file_format].is_json

    def write(self, rows: Sequence[Any]) -> None:
        """Add rows. Headers are remembered for a table without rows."""
        self.headers.extend(row for row in rows if isinstance(row, TableHeader))
        if self.target.file_format == ENCODED_ROWS:
            data = b"".join(rows)
        else:
            data = to_lines(without_headers(rows)).encode(errors=ENCODE_ERRORS)
        self.append({FIELDS: data})

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Make the output from the stored rows, and its manifest."""
        file_format = ENCODED_ROWS if self.stores_encoded_rows else self.target.file_format
        writer = writer_of(file_format, to_file=True)
        with self.converting_os_errors(), self.new_file() as file, writer(file) as write:
            for rows in self._stored_rows(self.folder / FIELDS):
                self.headers.clear()
                write(rows)
            if self.headers and file_format != ENCODED_ROWS:
                write(self.headers)
        if self.cached:
            self.journal["inputs"] = self.cached.describe()  # including vectors it has written
        self.publish_run(summary)

    def _stored_rows(self, path: Path) -> Iterator[list[Any]]:
        """Yield the stored rows, ``ROWS_READ_AGAIN`` at a time."""
        with path.open("rb") as lines:
            while block := [*islice(lines, ROWS_READ_AGAIN)]:
                yield [b"".join(block)] if self.stores_encoded_rows else [*map(parse, block)]


@dataclass(frozen=True)
class StreamedTarget(RowTarget):
    """A file that rows are written to directly, without a manifest."""

    row_files: ClassVar[tuple[str, ...]] = ()
    has_manifest: bool = field(default=False, kw_only=True)

    def writer(self, model: WatchedFiles) -> RowWriter:
        """Return the writer of the rows."""
        return StreamedWriter(self, model)


class StreamedWriter(RowWriter):
    """Writes rows to the new output. Files of an interrupted run stay until it is published."""

    def begin(self, fingerprint: Mapping[str, Any], inputs: Inputs) -> None:
        """Raise OutputError for an output or an interrupted run that must not be replaced."""
        if not self.target.overwrite:
            self.refuse_replacing()

    hint_if_full: ClassVar[str] = FREE_SPACE

    @contextmanager
    def open_files(self) -> Iterator[None]:
        """Open the new output. An OSError of the caller's block is not converted."""
        writer = writer_of(self.target.file_format, to_file=True)
        caller_error: OSError | None = None
        try:
            with ExitStack() as self.opened:
                file = self.opened.enter_context(self.new_file())
                self.write_rows = self.opened.enter_context(writer(file))
                try:
                    yield
                except OSError as error:
                    caller_error = error
                    raise
        except OSError as failed:
            if failed is caller_error:
                raise
            raise unwritable(self.path, failed, self.hint_if_full) from None

    def write(self, rows: Sequence[Any]) -> None:
        """Write rows to the new output."""
        with self.converting_os_errors():
            self.write_rows(rows)

    def commit(self, state: Any) -> None:
        """Do nothing: a killed run starts over."""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Publish the output, and remove the files of an interrupted run."""
        self.model.refuse_changes()
        with self.converting_os_errors():
            self.opened.close()
            if not self.target.overwrite:  # checked again: another program may have created it
                self.refuse_replacing()
            self.publish()
            self.clear()

    def end(self) -> None:
        """Remove the new output if it was not published."""
        (self.folder / NEW_OUTPUT).unlink(missing_ok=True)
