"""Read files, pipes and compressed files: bytes, numbered lines, decoded text.

A block has the lines of one read: blocks of a file are large and fast, and a slow pipe delivers
each line as soon as it arrives.
"""

from __future__ import annotations

import codecs
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from bertcli.errors import InputError, option
from bertcli.io.mapped_file import MappedFile
from bertcli.io.paths import input_name
from bertcli.io.publish import FREE_TEMP_SPACE, unwritable
from bertcli.io.system_calls import MOVES_OPEN_FILES, BusErrors

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CHUNK = 1 << 18  # bytes per read; from 2**19, some allocators keep freed memory
COMPRESSED_SUFFIXES = (".gz", ".zst")  # suffixes of compressed files
LARGEST_RECORD = 32 << 20  # bytes; the default of --max-record-bytes
# Limits for compressed files of formats that are not read as a stream: they may decompress to
# MAX_UNPACKED bytes, or to MAX_RATIO times their size. Parquet is compressed inside, and arrays of
# ids rarely shrink to a hundredth.
MAX_UNPACKED = 256 << 20
MAX_RATIO = 100


@dataclass
class Block:
    """Complete lines: the number of the first, its offset in the stream, and the bytes of all.

    The end of the last line is left out. `lines` splits lazily, as most blocks are decoded at once.
    """

    number: int
    offset: int
    raw: bytes
    separator: bytes = b"\n"

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines, without their ends."""
        return self.raw.split(self.separator)


class ChunkStream(io.RawIOBase):
    """A readable stream of non-empty chunks; closing it also closes the file they come from."""

    def __init__(self, chunks: Iterator[bytes], file: IO[bytes]) -> None:
        self.chunks = chunks
        self.file = file
        self.unread = memoryview(b"")  # the rest of the last chunk

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Copy unread bytes, or those of the next chunk, to the buffer; return their number."""
        if not self.unread:
            self.unread = memoryview(next(self.chunks, b""))
        target = memoryview(buffer)
        size = min(len(target), len(self.unread))
        target[:size] = self.unread[:size]
        self.unread = self.unread[size:]
        return size

    def close(self) -> None:
        """Close the stream and the file."""
        if not self.closed:
            self.file.close()
        super().close()


def recoded(file: IO[bytes], name: str, encoding: str, errors: str) -> Iterator[bytes]:
    """Yield a stream as UTF-8, for encodings whose line end has several bytes (UTF-16, UTF-32)."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    offset = 0
    while True:
        chunk = file.read(CHUNK)
        start = offset - len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            raise undecodable(name, error, encoding, start + error.start) from None
        except UnicodeError as error:  # without a byte order mark
            raise InputError(
                f"{name}: not {encoding}: {error}",
                f"give the right {option('encoding')}, such as utf-16-le",
            ) from None
        if text:
            yield text.encode("utf-8", "surrogatepass")
        if not chunk:
            return
        offset += len(chunk)


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a file in lower case, without that of its compression."""
    path = Path(path)
    if path.suffix.lower() in COMPRESSED_SUFFIXES:
        path = path.with_suffix("")
    return path.suffix.lower()


def stream_of(chunks: Iterator[bytes], file: IO[bytes]) -> IO[bytes]:
    """Return a stream of non-empty chunks; closing it closes the ``file``."""
    return io.BufferedReader(ChunkStream(chunks, file), CHUNK)


def undecodable(where: str, error: UnicodeDecodeError, encoding: str, offset: int) -> InputError:
    """Return the error for bytes that are not text in this encoding."""
    return InputError(
        f"{where}: byte {offset} (0x{error.object[error.start]:02x}) is not valid {encoding}",
        f"give the right {option('encoding')}, or use {option('encoding_errors', 'replace')}",
    )


def open_bytes(path: str, count: Callable[[int], None] = lambda size: None) -> IO[bytes]:
    """Open a file (``-`` is stdin) for reading; .gz and .zst files are decompressed.

    ``count`` is called with the size of each chunk that is read from the file.
    """
    try:
        raw: Any = _stdin() if path == "-" else open(path, "rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise unreadable(path, error) from None

    def read() -> bytes:
        chunk: bytes = raw.read(CHUNK) or b""
        count(len(chunk))
        return chunk

    chunks = iter(read, b"")
    suffix = Path(path).suffix.lower()
    if suffix in COMPRESSED_SUFFIXES:
        chunks = _decompressed(chunks, raw, suffix)
    return stream_of(chunks, raw)


def open_mapped(path: str) -> IO[bytes]:
    """Open a file for one pass: a regular one as a `MappedFile`, whose reads return memoryviews.

    `open_bytes` opens the others: compressed files, those that cannot be mapped, pipes and stdin
    (``-``). It opens all files on Windows, where a mapped file cannot be replaced, and where SIGBUS
    would end the process without a message (see `BusErrors`). Raises InputError if the file cannot
    be opened.
    """
    is_compressed = Path(path).suffix.lower() in COMPRESSED_SUFFIXES
    may_map = BusErrors.explained and MOVES_OPEN_FILES
    if may_map and not is_compressed and Path(path).is_file():  # a pipe is opened only once
        with suppress(OSError, ValueError), open(path, "rb") as file:
            return cast("IO[bytes]", MappedFile(file))
    return open_bytes(path)


def _decompressed(chunks: Iterator[bytes], raw: IO[bytes], suffix: str) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file. Raises EOFError if it is broken."""
    data_error, file = _compressor(suffix, stream_of(chunks, raw))
    try:
        yield from iter(partial(file.read1, CHUNK), b"")
    except data_error as error:
        raise EOFError(str(error)) from None


def _compressor(suffix: str, file: IO[bytes], mode: str = "rb") -> tuple[type[Exception], Any]:
    """Return the exception for broken data, and a file object that compresses or decompresses.

    No name and no time stamp are written, so that equal rows give equal bytes.
    """
    if suffix == ".gz":
        import gzip

        return EOFError, gzip.GzipFile("", mode, fileobj=file, mtime=0)
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    return zstd.ZstdError, zstd.ZstdFile(file, mode[0])


@contextmanager
def compressing(path: Path, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which is compressed if the path ends in .gz or .zst."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSED_SUFFIXES:
        yield file
        return
    _, compressor = _compressor(suffix, file, "wb")
    with compressor:
        yield compressor


@contextmanager
def on_disk(
    path: str, count: Callable[[int], None] = lambda size: None
) -> Iterator[str | IO[bytes]]:
    """Yield a seekable input: its path, or a temporary copy of stdin and of compressed files.

    The copy has no name, so a kill leaves nothing. Raises InputError for a file that decompresses
    to much more than its size, OutputError if the disk is full.
    """
    is_compressed = Path(path).suffix.lower() in COMPRESSED_SUFFIXES
    if path != "-" and not is_compressed:
        yield path
        return
    import tempfile

    limit = max(MAX_UNPACKED, MAX_RATIO * (size_on_disk((path,)) or 0)) if is_compressed else None
    try:
        copy = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
    except OSError as error:
        raise unwritable(tempfile.gettempdir(), error, FREE_TEMP_SPACE) from None
    with copy:
        size = 0
        try:
            with open_bytes(path, count) as stream:
                while chunk := read_chunk(stream, input_name(path)):
                    size += len(chunk)
                    if limit is not None and size > limit:
                        raise InputError(
                            f"{path}: unpacks to more than {limit:,} bytes",
                            "if you trust the file, decompress it first",
                        )
                    copy.write(chunk)
            copy.seek(0)
        except OSError as error:  # while writing: reading raises InputError
            raise unwritable(tempfile.gettempdir(), error, FREE_TEMP_SPACE) from None
        yield copy


def unreadable(path: str, error: OSError | ValueError) -> InputError:
    """Return the error for a file that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: file not found", "check the path; - is stdin")
    if isinstance(error, IsADirectoryError):
        return InputError(
            f"{path}: is a folder", f"give the files in it, with one {option('input')} each"
        )
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{path}: {reason}")


def can_be_reread(path: str) -> bool:
    """Return True for a regular file, False for stdin, pipes and devices.

    Raises InputError for a folder and for a missing file.
    """
    if path == "-":
        return False
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
    except OSError as error:
        raise unreadable(path, error) from None
    return stat.S_ISREG(mode)


def too_large(where: str, max_bytes: int) -> InputError:
    """Return the error for a record of more than ``max_bytes``."""
    return InputError(
        f"{where}: the record is larger than {max_bytes:,} bytes",
        f"raise {option('max_record_bytes')} (where the command has it), or split the record",
    )


def raise_error(error: InputError) -> None:
    """Raise the error: the default where records are not skipped."""
    raise error


def blocks(
    stream: IO[bytes],
    name: str,
    separator: bytes = b"\n",
    max_bytes: int = LARGEST_RECORD,
    skip: Callable[[InputError], None] = raise_error,
    quoted: bool = False,
) -> Iterator[Block]:
    """Yield the lines of a stream as they arrive; the last line needs no separator.

    A line of more than ``max_bytes`` is not kept in memory: ``skip`` is called with the error. If
    it returns, the line is left out; with ``quoted``, a line with an odd number of quotation marks
    is replaced by one, as it opens or closes a quoted cell. Raises InputError for broken data.
    """
    number = 1  # of the next line
    offset = 0  # of the next line in the stream
    chunks: list[bytes] = []  # of a line whose end has not been read
    size = 0  # bytes of that line so far
    is_skipped = False  # that line is too large
    quotes = 0  # in a line that is skipped
    while chunk := read_chunk(stream, name, min(CHUNK, max_bytes)):  # no line inside is too large
        beginning, line_end, rest = chunk.partition(separator)
        if size + len(beginning) > max_bytes:
            if not is_skipped:
                skip(too_large(f"{name}:{number}", max_bytes))
            chunks.append(beginning)
            quotes += b"".join(chunks).count(b'"')
            chunks = []
            size += len(beginning)
            is_skipped = True
            if not line_end:
                continue
            if quoted:
                yield Block(number, offset, b'"' * (quotes % 2))
            number += 1
            offset += size + 1
            chunk = rest
            size = 0
            is_skipped = False
            quotes = 0
        complete, line_end, rest = chunk.rpartition(separator)
        if line_end:
            chunks.append(complete)
            block = Block(number, offset, b"".join(chunks), separator)
            yield block
            number += block.raw.count(separator) + 1
            offset += len(block.raw) + 1
            chunks = []
            size = 0
        chunks.append(rest)
        size += len(rest)
    last_line = b"".join(chunks)
    is_byte_order_mark = number == 1 and last_line == codecs.BOM_UTF8
    if last_line and not is_byte_order_mark:
        yield Block(number, offset, last_line, separator)


class LineDecoder:
    """Decodes lines, and reports where invalid bytes are."""

    def __init__(self, name: str, encoding: str, errors: str, *, separator: bytes = b"\n") -> None:
        self.name = name
        self.encoding = encoding
        self.errors = errors
        self.separator = separator
        self.line_end = "\r" if separator == b"\n" else ""  # optional before the separator
        self.replaced = 0  # characters in place of invalid bytes

    def lines(self, block: Block) -> list[str] | None:
        """Return all lines of a block; None if it has invalid bytes, to be decoded by line."""
        raw = block.raw
        if block.number == 1:
            raw = raw.removeprefix(codecs.BOM_UTF8)
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
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                line_end = sum(len(earlier) + 1 for earlier in block.lines[: index + 1]) - 1
                offset = line_end - len(line) + error.start  # in the block
                number = block.number + block.raw.count(block.separator, 0, offset)
                where = f"{self.name}:{number}"
                raise undecodable(where, error, self.encoding, block.offset + offset) from None
            text = line.decode(self.encoding, self.errors)
            self.replaced += text.count("\ufffd")
        return text.removesuffix(self.line_end)


def read_chunk(stream: Any, name: str, max_bytes: int = CHUNK, *, peek: bool = False) -> bytes:
    """Return the next bytes, b"" at the end; with ``peek``, without consuming them.

    Raises InputError if they cannot be read.
    """
    try:
        chunk: bytes = stream.peek(CHUNK) if peek else stream.read1(max_bytes)
    except (EOFError, zlib.error) as error:
        raise InputError(
            f"{name}: the compressed data is broken or truncated: {error}",
            "nothing after this point can be read; download or write the file again",
        ) from None
    except OSError as error:  # among them gzip.BadGzipFile
        raise unreadable(name, error) from None
    return chunk


def _stdin() -> Any:
    """Return stdin unbuffered: a reading thread would keep the lock of the buffer at exit."""
    if sys.stdin is None:
        return io.BytesIO()
    if sys.stdin.closed:
        raise InputError("stdin: was read already", "give - once, and files for the rest")
    return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)


def size_on_disk(paths: tuple[str, ...]) -> int | None:
    """Return the total size of files in bytes; None if one of them is no regular file."""
    if any(not os.path.isfile(path) for path in paths):
        return None
    return sum(os.path.getsize(path) for path in paths)
