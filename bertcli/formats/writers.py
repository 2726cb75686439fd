"""Write rows in any format to stdout, to a device or pipe, or to an open file.

    with open_writer(None, "csv") as write:     # stdout
        write([{"input_ids": [101, 102]}])

Files that are replaced atomically are written by `runs.row_run`.

A writer takes some rows per call. If there are no rows, a `tables.TableHeader`
provides the columns of the empty file. Rows of JSON Lines become one JSON array in a file with the
suffix .json, and lines otherwise; "json" is a single row.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from bertcli.errors import OutputError, PipeClosed, UsageError, option
from bertcli.formats.jsonl import JsonArrayFile
from bertcli.formats.registry import (
    ENCODED_ROWS,
    FORMATS,
    INPUT_SUFFIXES,
    JSON,
    JSONL,
    OUTPUT_SUFFIXES,
    TXT,
    load,
)
from bertcli.io.paths import refuse_inputs
from bertcli.io.printable import printable
from bertcli.io.publish import unwritable
from bertcli.io.streams import compressing, suffix_of
from bertcli.io.system_calls import silence

Write = Callable[[Sequence[Any]], None]  # takes rows: `tables.Row`, or a `Table` of columns
Writer = Callable[[IO[bytes]], AbstractContextManager[Write]]  # takes an open file

BYTES_PER_READ = 1 << 18  # bytes per read
JSON_LINES = (JSONL, ENCODED_ROWS)  # formats whose rows become an array in a .json file


def format_of(path: Path) -> str:
    """Return the format for the suffix of a file name. Raises OutputError for an unknown suffix."""
    suffix = suffix_of(path)
    if suffix not in OUTPUT_SUFFIXES:
        known = ", ".join(OUTPUT_SUFFIXES)
        raise OutputError(f"{path}: unknown format", f"known: {known}; or give {option('format')}")
    return OUTPUT_SUFFIXES[suffix]


def refuse_other_suffix(
    path: Path, file_format: str, suffixes: Mapping[str, str] = OUTPUT_SUFFIXES
) -> None:
    """Raise UsageError if the suffix of a file belongs to another format."""
    suffix = suffix_of(path)
    written_format = suffixes.get(suffix, file_format)
    suffix_format = INPUT_SUFFIXES.get(suffix, written_format)
    entry = FORMATS.get(file_format)
    suffix_entry = FORMATS.get(suffix_format)
    if entry and entry.is_text and suffix in FORMATS[TXT].suffixes:
        return
    if entry and written_format in (entry.written_as, entry.stored_as):
        return
    if suffix_entry and suffix_entry.written_as == file_format:
        raise UsageError(
            f"{path}: {suffix} is a JSON array, not {file_format}",
            f"name the file .{file_format} for a row per line, or leave out {option('format')}",
        )
    if written_format != file_format:
        raise UsageError(
            f"{path}: {suffix} is the suffix of {suffix_format}, not of {file_format}",
            f"leave out {option('format')}, or name the file .{file_format}",
        )


@contextmanager
def json_array_file(path: Path | None, file_format: str, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield ``file``, or for .json and rows of JSON, a file that stores them as a JSON array."""
    is_array = path is not None and suffix_of(path) in FORMATS[JSON].suffixes
    if not is_array or file_format not in JSON_LINES:
        yield file
        return
    array: Any = JsonArrayFile(file)
    yield array
    array.end()


@contextmanager
def open_writer(
    path: Path | None, file_format: str, *, inputs: Sequence[str | Path] = ()
) -> Iterator[Write]:
    """Yield a function that writes rows in this format to a device, a pipe, or stdout (None).

    Raises OutputError if the path is one of the ``inputs``, or cannot be written.
    """
    refuse_inputs(inputs, ["-" if path is None else path])
    writer = writer_of(file_format)
    with (
        open_output(path) as file,
        json_array_file(path, file_format, file) as rows_file,
        writer(rows_file) as write,
    ):
        yield write


@contextmanager
def same_file_writer(path: Path, file_format: str) -> Iterator[Write]:
    """Yield a writer for an existing output file, for a command that is resumed after finishing.

    Raises OutputError at the end unless the written bytes equal the file.
    """
    with TemporaryFile() as file:
        with (
            compressing(path, file) as inner,
            json_array_file(path, file_format, inner) as rows_file,
            writer_of(file_format, to_file=True)(rows_file) as write,
        ):
            yield write
        file.seek(0)
        with path.open("rb") as existing:
            while (block := file.read(BYTES_PER_READ)) == existing.read(BYTES_PER_READ):
                if not block:
                    return
    raise OutputError(f"{path}: already exists, with other content", "give another name")


def writer_of(file_format: str, *, to_file: bool = False) -> Writer:
    """Return the writer of a format.

    A stream is flushed after each call. The bytes of a file do not depend on the number of rows per
    call.
    """
    entry = FORMATS[file_format]
    if entry.writer and (to_file or not entry.encoder):
        writer: Writer = load(entry.writer)
        return writer

    @contextmanager
    def encoding_writer(file: IO[bytes]) -> Iterator[Write]:
        encode = load(entry.encoder)()

        def write(rows: Sequence[Any]) -> None:
            file.write(encode(rows))
            if not to_file:
                file.flush()

        yield write

    return encoding_writer


def encoded_rows_encoder() -> Callable[[Sequence[bytes]], bytes]:
    """Return a function that joins rows that are bytes already."""
    return b"".join


class _TerminalFile:
    """A terminal as an output file. Each write must consist of complete lines of UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.flush = file.flush

    def write(self, lines: bytes) -> None:
        """Show lines with unsafe characters replaced, except tabs and line ends."""
        text = lines.decode("utf-8", "replace")
        self.file.write(re.sub(r"[^\t\r\n]+", lambda run: printable(run[0]), text).encode())


@contextmanager
def open_output(path: Path | None, *, is_drawn: bool = False) -> Iterator[IO[bytes]]:
    """Yield the device or pipe to write to. None is stdout.

    A pipe receives the bytes unchanged. On a terminal, they are shown as `printable` text, unless
    ``is_drawn``: they were made for a terminal and contain its control sequences.
    """
    try:
        if path is None and sys.stdout is None:
            raise OutputError("stdout is closed", "give -o FILE, or leave stdout open")
        if path is None:
            stdout: Any = sys.stdout.buffer
            if sys.stdout.isatty() and not is_drawn:
                stdout = _TerminalFile(stdout)
            yield stdout
            sys.stdout.buffer.flush()
        else:
            with open(path, "wb") as file, compressing(path, file) as inner:
                yield inner
    except BrokenPipeError:
        silence(sys.stdout.fileno())
        raise PipeClosed from None
    except OSError as failed:
        if path is None:
            silence(sys.stdout.fileno())
        raise unwritable(path or "stdout", failed) from None


def is_special(path: Path) -> bool:
    """Return True for a pipe, a device or a folder."""
    return os.path.exists(path) and not os.path.isfile(path)  # False if the name is too long
