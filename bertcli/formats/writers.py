"""Rows out: one writer a format, to a file that appears whole or not at all, or to stdout.

    with open_writer(Path("ids.parquet"), "parquet") as write:
        write([{"input_ids": [101, 102]}])

A writer takes the rows of a window at a time. Where there is none, a `tables.TableHeader` tells the
columns of the empty file. The rows of "jsonl" are one JSON array in a file with the suffix .json,
and lines elsewhere; "json" is one row, on its own in any file.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from bertcli.errors import OutputError, PipeClosed, UsageError, option
from bertcli.formats.jsonl import NAMES, JsonArrayFile, to_lines
from bertcli.formats.tables import Row, cell, lines_of
from bertcli.io.output_files import OutputFiles
from bertcli.io.paths import refuse_inputs
from bertcli.io.printable import printable
from bertcli.io.publish import unwritable
from bertcli.io.streams import packed, suffix_of
from bertcli.io.system_calls import silence

Write = Callable[[Sequence[Any]], None]  # takes rows
Format = Callable[[IO[bytes]], AbstractContextManager[Write]]

COMPARED = 1 << 18  # bytes at a time
TENSORS = ("npy", "npz", "safetensors")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"} | {
    f".{form}": form for form in ("csv", "tsv", *TENSORS, "parquet", "txt")
}
RAGGED = ("ragged npz", "ragged safetensors")


def format_of(path: Path) -> str:
    """Return the format that a file name asks for. Raises OutputError for an unknown suffix."""
    suffix = suffix_of(path)
    if suffix not in SUFFIXES:
        raise OutputError(
            f"{path}: unknown format", f"known: {', '.join(SUFFIXES)}; or give {option('format')}"
        )
    return SUFFIXES[suffix]


JSON_LINES = ("jsonl", "finished")  # formats whose writers write lines of JSON to a .json file
TEXT_FORMATS = ("txt", "jsonl", "json", "csv", "tsv")  # that a file named .txt may hold


def refuse_other_suffix(path: Path, form: str, suffixes: Mapping[str, str] = SUFFIXES) -> None:
    """Raise UsageError where the suffix of a file is that of another format than the given one."""
    suffix = suffix_of(path)
    expected = suffixes.get(suffix, form)
    if suffix == ".txt" and form in TEXT_FORMATS:
        return
    if form == "json" and expected == "jsonl":  # another name of jsonl
        return
    if suffix == ".json" and form == "jsonl":
        raise UsageError(
            f"{path}: .json is a JSON array, not jsonl",
            f"name the file .jsonl for a row per line, or leave out {option('format')}",
        )
    if expected != form:
        name = "json" if suffix == ".json" else expected
        raise UsageError(
            f"{path}: {suffix} is the suffix of {name}, not of {form}",
            f"leave out {option('format')}, or name the file .{form}",
        )


@contextmanager
def json_array(path: Path | None, form: str, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield what the rows of a file are written to: for .json, it makes an array of lines."""
    if path is None or suffix_of(path) != ".json" or form not in JSON_LINES:
        yield file
        return
    array: Any = JsonArrayFile(file)
    yield array
    array.end()


@contextmanager
def open_writer(
    path: Path | None, form: str, *, overwrite: bool = False, inputs: Sequence[str | Path] = ()
) -> Iterator[Write]:
    """Yield a function that writes rows in this format to a file, or to stdout for None.

    Raises OutputError when the file already exists, is one of the ``inputs``, or cannot be written.
    """
    refuse_inputs(inputs, ["-"] if path is None else [path, *OutputFiles(path).all])
    make = writer_of(form, to_file=path is not None and not is_special(path))
    with (
        open_output(path, overwrite=overwrite) as file,
        json_array(path, form, file) as rows_file,
        make(rows_file) as write,
    ):
        yield write


@contextmanager
def same_file_writer(path: Path, form: str) -> Iterator[Write]:
    """Yield a writer of a file that is there already, as a command that is resumed has left it.

    Raises OutputError at the end unless the same bytes would be written.
    """
    with TemporaryFile() as file:
        with (
            packed(path, file) as inner,
            json_array(path, form, inner) as rows_file,
            writer_of(form, to_file=True)(rows_file) as write,
        ):
            yield write
        file.seek(0)
        with path.open("rb") as before:
            while (block := file.read(COMPARED)) == before.read(COMPARED):
                if not block:
                    return
    raise OutputError(f"{path}: already exists, with other content", "give another name")


def writer_of(form: str, *, to_file: bool = False) -> Format:
    """Return the writer of a format; "finished" is lines that are bytes already.

    A stream is flushed after each call. What goes ``to_file`` has the same bytes however many rows
    are written at a time.
    """
    match form:
        case "parquet":
            from bertcli.formats.parquet import rows_writer

            return rows_writer
        case "npy" | "npz" | "safetensors" | "ragged npz" | "ragged safetensors":
            from bertcli.formats.arrays import ids_writer_of

            return ids_writer_of(form)
        case "csv" | "tsv" if to_file:
            from bertcli.formats.delimited import file_writer

            return partial(file_writer, tabs=form == "tsv")
        case "csv" | "tsv":
            from bertcli.formats.delimited import encoder

            encode: Callable[[Sequence[Any]], bytes] = encoder(tabs=form == "tsv")
        case "jsonl" | "json":

            def encode(rows: Sequence[Row]) -> bytes:
                return to_lines(lines_of(rows)).encode(errors=NAMES)

        case "finished":
            encode = b"".join
        case _:

            def encode(rows: Sequence[Row]) -> bytes:
                return "".join(map(to_text, lines_of(rows))).encode()

    @contextmanager
    def writer(file: IO[bytes]) -> Iterator[Write]:
        def write(rows: Sequence[Any]) -> None:
            file.write(encode(rows))
            if not to_file:
                file.flush()

        yield write

    return writer


def to_text(row: Row) -> str:
    """Return a row as a plain line. OutputError for a value that would be more than one."""
    values = [
        " ".join(map(str, value)) if isinstance(value, list) else str(cell(value))
        for value in row.values()
    ]
    if any(end in value for value in values for end in ("\t\r\n" if len(values) > 1 else "\n")):
        raise OutputError(
            "a value holds a tab or a line end, which a plain line cannot hold",
            f"{option('format', 'jsonl')} can hold it",
        )
    return "\t".join(values) + "\n"


class _Shown:
    """A terminal that data are written to: lines of UTF-8, a whole number of them at a time."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.flush = file, file.flush

    def write(self, lines: bytes) -> None:
        """Show lines without what would steer the terminal; blanks and ends of lines stay."""
        text = lines.decode("utf-8", "replace")
        self.file.write(re.sub(r"[^\t\r\n]+", lambda run: printable(run[0]), text).encode())


@contextmanager
def open_output(
    path: Path | None, *, overwrite: bool = False, drawn: bool = False
) -> Iterator[IO[bytes]]:
    """Yield the file to write to: under its name only when all went well. None is stdout.

    A pipe gets the data as they are, a terminal what is `printable` of them; what is ``drawn`` for
    a terminal is that already.
    """
    try:
        if path is None and sys.stdout is None:
            raise OutputError("stdout is closed", "give -o FILE, or leave stdout open")
        if path is None:
            stdout: Any = sys.stdout.buffer
            if sys.stdout.isatty() and not drawn:
                stdout = _Shown(stdout)
            yield stdout
            sys.stdout.buffer.flush()
        else:
            with _replacing(path, overwrite=overwrite) as file, packed(path, file) as inner:
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
    return os.path.exists(path) and not os.path.isfile(path)  # False for too long a name


@contextmanager
def _replacing(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Write beside the target and move over it at the end; a device or pipe is written as it is."""
    if is_special(path):
        with open(path, "wb") as file:
            yield file
        return
    files = OutputFiles(path)
    if files.output.is_symlink():
        raise OutputError(f"{path}: circular symlink")
    with files.locked():
        if not overwrite:
            files.refuse_replacing()
        with files.new_output() as file:
            yield file
            if not overwrite:  # again: another program may have made it
                files.refuse_replacing()
        files.clear()  # of an interrupted run that this one replaces
