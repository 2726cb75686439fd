"""Bytes in: files, pipes and compressed files, cut into numbered lines and decoded.

A block holds the lines that one read brought: a file gives large blocks at full speed, and a slow
pipe gives each line as soon as it is there.
"""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bertcli.errors import InputError, option
from bertcli.io.paths import input_name
from bertcli.io.publish import OTHER_FOLDER, unwritable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK = 1 << 18  # bytes per read; of 2**19 and more, the heap of some systems keeps what was freed
PACKED = (".gz", ".zst")  # suffixes of files that are unpacked, and packed
LARGEST_RECORD = 32 << 20  # bytes, unless --max-record-bytes says otherwise
# A packed file of a format that is not read as a stream may unpack to so many bytes, or to so many
# times its own size: Parquet is packed inside, and arrays of ids hardly shrink to a hundredth.
UNPACKED, RATIO = 256 << 20, 100


@dataclass
class Block:
    """Whole lines: the number of the first, its offset in the stream, and all up to the last end.

    Who decodes them together needs no line as bytes.
    """

    number: int
    offset: int
    raw: bytes
    separator: bytes = b"\n"

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines, without their ends."""
        return self.raw.split(self.separator)


class Derived(io.RawIOBase):
    """A readable stream of parts, none of them empty; closing it closes the file below as well."""

    def __init__(self, parts: Iterator[bytes], file: IO[bytes]) -> None:
        self.parts = parts
        self.file = file
        self.ready = memoryview(b"")

    def readable(self) -> bool:
        """Say yes: this is for reading."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer with what is ready, asking for more when nothing is."""
        self.ready = self.ready or memoryview(next(self.parts, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self.ready))
        target[:size], self.ready = self.ready[:size], self.ready[size:]
        return size

    def close(self) -> None:
        """Close both."""
        if not self.closed:
            self.file.close()
        super().close()


def recoded(file: IO[bytes], name: str, encoding: str, errors: str) -> Iterator[bytes]:
    """Yield a stream as UTF-8; for encodings whose line end is not one byte (UTF-16, UTF-32)."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    offset = 0
    while True:
        chunk = file.read(CHUNK)
        start = offset - len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as bad:
            raise undecodable(name, bad, encoding, start + bad.start) from None
        except UnicodeError as bad:  # it has no byte order mark
            raise InputError(
                f"{name}: not {encoding}: {bad}",
                f"give the right {option('encoding')}, such as utf-16-le",
            ) from None
        if text:
            yield text.encode("utf-8", "surrogatepass")
        if not chunk:
            return
        offset += len(chunk)


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a file in lower case; of one that is packed, that of what is in it."""
    path = Path(path)
    return (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()


def stream_of(parts: Iterator[bytes], file: IO[bytes]) -> IO[bytes]:
    """Return a stream of these parts, none of them empty; closing it closes the ``file``."""
    return io.BufferedReader(Derived(parts, file), CHUNK)


def undecodable(where: str, bad: UnicodeDecodeError, encoding: str, offset: int) -> InputError:
    """Return the error for bytes that are not text in this encoding."""
    return InputError(
        f"{where}: byte {offset} (0x{bad.object[bad.start]:02x}) is not valid {encoding}",
        f"give the right {option('encoding')}, or use {option('encoding_errors', 'replace')}",
    )


def open_bytes(path: str, count: Callable[[int], None] = lambda size: None) -> IO[bytes]:
    """Open a file (``-`` is stdin) for reading, unpacked when its suffix is .gz or .zst."""
    try:
        raw: Any = _stdin() if path == "-" else open(path, "rb", buffering=0)  # noqa: SIM115
    except OSError as failed:
        raise unreadable(path, failed) from None

    def more() -> bytes:
        chunk: bytes = raw.read(CHUNK) or b""
        count(len(chunk))
        return chunk

    parts, suffix = iter(more, b""), Path(path).suffix.lower()
    return stream_of(_unpacked(parts, raw, suffix) if suffix in PACKED else parts, raw)


def _unpacked(parts: Iterator[bytes], raw: IO[bytes], suffix: str) -> Iterator[bytes]:
    """Yield what a file holds that is packed as its suffix says."""
    broken, opened = _packer(suffix, stream_of(parts, raw))
    try:
        yield from iter(partial(opened.read1, CHUNK), b"")
    except broken as failed:
        raise EOFError(str(failed)) from None


def _packer(suffix: str, file: IO[bytes], mode: str = "rb") -> tuple[type[Exception], Any]:
    """Return what a broken file raises beside EOFError, and what packs or unpacks it.

    No name and no time stamp are written, so that equal rows give equal bytes.
    """
    if suffix == ".gz":
        import gzip

        return EOFError, gzip.GzipFile("", mode, fileobj=file, mtime=0)
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return zstd.ZstdError, zstd.ZstdFile(file, mode[0])


@contextmanager
def packed(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Compress for a name ending in .gz or .zst."""
    suffix = path.suffix.lower()
    with _packer(suffix, file, "wb")[1] if suffix in PACKED else nullcontext(file) as stream:
        yield stream


@contextmanager
def on_disk(
    path: str, count: Callable[[int], None] = lambda size: None
) -> Iterator[str | IO[bytes]]:
    """Yield a file that can be read anywhere: its path; for stdin and packed files, a copy.

    The copy is a temporary file without a name, so a kill leaves nothing. Raises InputError for a
    packed file that unpacks to much more than its size, OutputError when there is no room.
    """
    is_packed = Path(path).suffix.lower() in PACKED
    if path != "-" and not is_packed:
        yield path
        return
    import tempfile

    limit = max(UNPACKED, RATIO * (size_on_disk((path,)) or 0)) if is_packed else None
    try:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError as failed:
        raise unwritable(tempfile.gettempdir(), failed, OTHER_FOLDER) from None
    with copy:
        size = 0
        try:
            with open_bytes(path, count) as stream:
                while chunk := read_chunk(stream, input_name(path)):
                    size += len(chunk)
                    if limit is not None and size > limit:
                        raise InputError(
                            f"{path}: unpacks to more than {limit:,} bytes",
                            "if it is what it should be, unpack it, and read the unpacked file",
                        )
                    copy.write(chunk)
            copy.seek(0)
        except OSError as failed:  # of the copy: what cannot be read is an InputError
            raise unwritable(tempfile.gettempdir(), failed, OTHER_FOLDER) from None
        yield copy


def unreadable(path: str, failed: OSError | ValueError) -> InputError:
    """Return the error for a file that cannot be opened or read."""
    if isinstance(failed, FileNotFoundError):
        return InputError(f"{path}: file not found", "check the path; - is stdin")
    if isinstance(failed, IsADirectoryError):
        return InputError(
            f"{path}: is a folder", f"give the files in it, with one {option('input')} each"
        )
    return InputError(f"{path}: {getattr(failed, 'strerror', None) or failed}")


def can_be_reread(path: str) -> bool:
    """Tell whether an input is a file, not stdin or a pipe. InputError when nothing is there."""
    if path == "-":
        return False
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
    except OSError as failed:
        raise unreadable(path, failed) from None
    return stat.S_ISREG(mode)


def too_large(where: str, limit: int) -> InputError:
    """Return the error for a record of more bytes than are read."""
    return InputError(
        f"{where}: the record is larger than {limit:,} bytes",
        f"raise {option('max_record_bytes')} (where the command has it), or split the record",
    )


def stop(error: InputError) -> None:
    """Raise an error where nothing is skipped."""
    raise error


def blocks(
    stream: IO[bytes],
    name: str,
    separator: bytes = b"\n",
    limit: int = LARGEST_RECORD,
    skip: Callable[[InputError], None] = stop,
    quoted: bool = False,
) -> Iterator[Block]:
    """Yield the lines of a stream as they come in; the last one needs no separator.

    A line of more than ``limit`` bytes is never held whole: ``skip`` is told of it, and when that
    returns, the line is left out, or where texts may be ``quoted``, it is the quotation mark that
    it leaves open, or none. Raises InputError when a compressed file is broken.
    """
    number, offset = 1, 0
    pieces: list[bytes] = []  # of a line whose end has not been read
    size, large = 0, False  # its bytes so far, and whether it is passed over
    quotes = 0  # in a line that is passed over
    while chunk := read_chunk(stream, name, min(CHUNK, limit)):  # a line inside is not too large
        first, line_end, others = chunk.partition(separator)
        if size + len(first) > limit:
            if not large:
                skip(too_large(f"{name}:{number}", limit))
            quotes += b"".join([*pieces, first]).count(b'"')
            pieces, size, large = [], size + len(first), True
            if not line_end:
                continue
            if quoted:
                yield Block(number, offset, b'"' * (quotes % 2))
            number, offset, chunk = number + 1, offset + size + 1, others
            size, large, quotes = 0, False, 0
        whole, line_end, rest = chunk.rpartition(separator)
        if line_end:
            block = Block(number, offset, b"".join([*pieces, whole]), separator)
            yield block
            number += block.raw.count(separator) + 1
            offset += len(block.raw) + 1
            pieces, size = [], 0
        pieces.append(rest)
        size += len(rest)
    last = b"".join(pieces)
    if last and not (number == 1 and last == codecs.BOM_UTF8):
        yield Block(number, offset, last, separator)


class LineDecoder:
    """Bytes of lines -> text, with the place of a bad byte."""

    def __init__(self, name: str, encoding: str, errors: str, *, separator: bytes = b"\n") -> None:
        self.name, self.encoding, self.errors = name, encoding, errors
        self.separator = separator
        self.line_end = "\r" if separator == b"\n" else ""  # what may stand before the separator
        self.replaced = 0

    def lines(self, block: Block) -> list[str] | None:
        """Return all lines of a block at once; None when they need a closer look."""
        raw = block.raw.removeprefix(codecs.BOM_UTF8) if block.number == 1 else block.raw
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError:
            return None
        lines = text.split(self.separator.decode())
        if self.line_end and self.line_end in text:
            return [line.removesuffix(self.line_end) for line in lines]
        return lines

    def __call__(self, block: Block, index: int) -> str:
        """Return line ``index`` of the block, without a carriage return at its end."""
        line = block.lines[index]
        if block.number + index == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            text = line.decode(self.encoding)
        except UnicodeDecodeError as bad:
            if self.errors == "strict":
                at = sum(len(earlier) + 1 for earlier in block.lines[: index + 1])
                at += bad.start - len(line) - 1
                where = f"{self.name}:{block.number + block.raw.count(block.separator, 0, at)}"
                raise undecodable(where, bad, self.encoding, block.offset + at) from None
            text = line.decode(self.encoding, self.errors)
            self.replaced += text.count("\ufffd")
        return text.removesuffix(self.line_end)


def read_chunk(stream: Any, name: str, most: int = CHUNK, *, peek: bool = False) -> bytes:
    """Return the next bytes, b"" at the end; a ``peek`` leaves them to be read.

    Raises InputError where they cannot be read.
    """
    try:
        chunk: bytes = stream.peek(CHUNK) if peek else stream.read1(most)
    except (EOFError, zlib.error) as broken:
        raise InputError(
            f"{name}: the compressed data is broken or truncated: {broken}",
            "nothing after this point can be read; download or write the file again",
        ) from None
    except OSError as failed:  # gzip.BadGzipFile is one too
        raise unreadable(name, failed) from None
    return chunk


def _stdin() -> Any:
    """Return stdin without its buffer, whose lock a thread that reads would hold at the end."""
    if sys.stdin is None:
        return io.BytesIO()
    if sys.stdin.closed:
        raise InputError("stdin: was read already", "give - once, and files for the rest")
    return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)


def size_on_disk(paths: tuple[str, ...]) -> int | None:
    """Return the bytes of all files together; None when one of them is a pipe."""
    if any(not os.path.isfile(path) for path in paths):
        return None
    return sum(os.path.getsize(path) for path in paths)
