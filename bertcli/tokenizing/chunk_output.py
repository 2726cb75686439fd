"""What `bertcli chunk` writes: a row for each piece of a text, or the pieces alone.

run = ChunkRun(reader, chunker)
with open_writer(path, "jsonl") as put:
    for written in run.write("jsonl", put): ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertcli.errors import OutputError
from bertcli.files.tables import TableHeader
from bertcli.records.reader import Reader
from bertcli.records.records import Record, TextBlock, carried
from bertcli.records.source import Source
from bertcli.tokenizing.chunks import Chunk, Chunker
from bertcli.tokenizing.columns import PLACE
from bertcli.tokenizing.run import TokenCounts

WRITTEN = ("id", *PLACE, "text", "n_tokens")  # names that no carried field may have


def chunk_row(chunk: Chunk, source: Source) -> dict[str, Any]:
    """Return what is written of a piece. A record without an id has its number."""
    record = _with_line(chunk, source)
    row = {
        "id": chunk.sample if record.id is None else record.id,
        "chunk": chunk.number,
        "start": chunk.start,
        "end": chunk.end,
        "text": chunk.text,
        "n_tokens": chunk.n_tokens,
    }
    return row | carried(row, record)


def _with_line(chunk: Chunk, source: Source) -> Record:
    """Return the record of a piece; in a file that is one text, with the line of the piece."""
    record = chunk.record
    if not source.placed or source.format_of(record.file) != "whole":
        return record
    line = record.line + str(record.text).count("\n", 0, chunk.start)
    return record._replace(line=line, extra={**(record.extra or {}), "line": line})


def plain(chunks: Sequence[Chunk], *, null: bool) -> bytes:
    """Return the pieces alone, each ended by a line feed, or by NUL.

    Raises OutputError for a piece that holds such a character itself.
    """
    end, name, hint = "\n", "line feed", "-0 ends chunks with NUL, --format jsonl holds any text"
    if null:
        end, name, hint = "\0", "NUL", "--format jsonl holds any text"
    texts = [chunk.text for chunk in chunks]
    for chunk, text in zip(chunks, texts, strict=True):
        if end in text:
            raise OutputError(f"{chunk.record.where}: a chunk holds a {name}, which ends it", hint)
    return "".join([text + end for text in texts]).encode()


@dataclass
class ChunkRun:
    """One pass over a source. Iterate once; ``tally`` counts texts, ``chunks`` their pieces."""

    reader: Reader
    chunker: Chunker
    tally: TokenCounts = field(default_factory=TokenCounts)
    chunks: int = 0
    bytes_done: float = 0  # of the input that is read; about, where one long text is divided

    def __iter__(self) -> Iterator[list[Chunk]]:
        """Yield the pieces of all texts, in their order."""
        tokenizer = self.chunker.counter.tokenizer
        for records in self.reader.blocks():
            first = self.tally.records
            self.tally.records += len(records)
            self.tally.literals += tokenizer.count_literals(records)
            before, length = self.bytes_done, len(records[0].text) if len(records) == 1 else 0
            for chunks in self.chunker.chunks(records, self.reader.skip, first):
                self.chunks += len(chunks)
                if length:
                    part = chunks[-1].end / length
                    self.bytes_done = before + (self.reader.bytes_read - before) * part
                yield chunks
            self.bytes_done = self.reader.bytes_read

    def header(self) -> TableHeader:
        """Return the row that begins a table without any."""
        rest = dict.fromkeys(self.reader.fields.carried) if self.reader.fields else {}
        return TableHeader(dict.fromkeys(WRITTEN) | rest)

    def write(
        self, form: str, put: Callable[[Sequence[Any]], None], *, null: bool = False
    ) -> Iterator[int]:
        """Write all pieces, and yield how many there are so far.

        The writer of plain text takes bytes: its form is "finished".
        """
        for chunks in self:
            if form == "txt":
                put([plain(chunks, null=null)])
            else:
                put([chunk_row(chunk, self.reader.source) for chunk in chunks])
            yield self.chunks
        if not self.chunks and form not in ("txt", "jsonl"):
            put([self.header()])


class ChunkReader(Reader):
    """Reads the pieces of texts as records of their own, which carry their places in the texts.

    A text without an id has its number.
    """

    def __init__(self, reader: Reader, chunker: Chunker) -> None:
        super().__init__(reader.source, reader.warn, reader.note)
        self.chunker = chunker

    def again(self) -> Reader:
        """Return a reader of the same pieces, from the first."""
        return ChunkReader(super().again(), self.chunker)

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield pieces as they become available, in lists of no fixed length."""
        for records in super().blocks():
            first = self.records - len(records)
            for chunks in self.chunker.chunks(records, self.skip, first):
                yield TextBlock.of([_record_of(chunk, self.source) for chunk in chunks])


def _record_of(chunk: Chunk, source: Source) -> Record:
    record = _with_line(chunk, source)
    place = dict(zip(PLACE, (chunk.number, chunk.start, chunk.end), strict=True))
    key = chunk.sample if record.id is None else record.id
    extra = place | (record.extra or {})
    if source.kept_text:
        extra[source.kept_text] = chunk.text
    return record._replace(text=chunk.text, id=key, extra=extra)
