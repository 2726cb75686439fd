"""A corpus as documents of tokenized sentences, in a file; memory is that of the longest document.

A text file has one sentence per line and blank lines between documents. In other formats a record
is a document: text with one sentence per line, or a list of sentences.

The file holds int32: for each document the number of its sentences, their lengths, their ids. The
offset of each document is kept in memory, 8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bertcli.records.reader import Reader
from bertcli.records.records import Record, Text
from bertcli.records.windows import ahead, windows
from bertcli.tokenizing.columns import Encoded, Layout
from bertcli.tokenizing.tokenizer import Tokenizer

END = Record("")  # between documents
WINDOW = 4096  # sentences tokenized together
ITEM = array("i").itemsize


def sentences(reader: Reader) -> Iterator[list[Record]]:
    """Yield the sentences of a corpus as they are read; a blank one ends a document."""
    paths = {"stdin" if path == "-" else path: path for path in reader.source.paths}
    file = ""
    for block in filter(None, reader.blocks()):
        found = [] if block[0].file == file else [END]
        file = block[0].file
        if reader.format_of(paths[file]) == "txt":
            yield [*found, *block]
        else:
            yield found + [sentence for record in block for sentence in (*_split(record), END)]
    yield [END]


def _split(record: Record) -> Iterator[Record]:
    for line in lines_of(record.text):
        if line.strip():
            yield record._replace(text=line)


def lines_of(text: Text) -> Sequence[str]:
    """Return the sentences of a document."""
    return text if isinstance(text, list) else text.split("\n")


def tokenized(reader: Reader, tokenizer: Tokenizer) -> Iterator[list[Sequence[int] | None]]:
    """Yield windows of sentences as ids, without special tokens; None ends a document."""
    layout = Layout(columns=("input_ids",), special_tokens=False)

    def run(records: Sequence[Record]) -> list[Sequence[int] | None]:
        found = tokenizer.encode(records, layout)
        return [_ids(encoded) if str(encoded.record.text).strip() else None for encoded in found]

    return ahead(run(records) for records in windows(sentences(reader), WINDOW))


def _ids(encoded: Encoded) -> list[int]:
    return list(encoded.columns["input_ids"])


class Documents:
    """Tokenized documents in a file. Written once, then read in any order."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("x+b", buffering=0)
        self.starts = array("q", [0])  # in items, of each document and of the end
        self.tokens = self.sentences = 0
        self.lengths = array("i")  # of the sentences of the document being written
        self.ids = array("i")
        self.waiting = bytearray()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def fill(self, batches: Iterable[Sequence[Sequence[int] | None]]) -> Iterator[int]:
        """Add sentences, None ends a document; yield the number of sentences after each batch."""
        for batch in batches:
            for ids in batch:
                if ids is None:
                    self._end()
                elif ids:
                    self.lengths.append(len(ids))
                    self.ids.extend(ids)
            yield self.sentences
        self._flush()

    def _end(self) -> None:
        count = len(self.lengths)
        if not count:
            return
        self.tokens += len(self.ids)
        self.sentences += count
        self.starts.append(self.starts[-1] + 1 + count + len(self.ids))
        for part in (array("i", [count]), self.lengths, self.ids):
            self.waiting += part.tobytes()
        del self.lengths[:], self.ids[:]
        if len(self.waiting) > 1 << 20:
            self._flush()

    def _flush(self) -> None:
        """Write the buffer."""
        left = memoryview(self.waiting)
        while left:
            left = left[self.file.write(left) :]
        left.release()
        self.waiting = bytearray()

    def __getitem__(self, number: int) -> list[list[int]]:
        """Return the sentences of a document."""
        start, end = self.starts[number], self.starts[number + 1]
        items = self._read(start, end - start)
        at, found = 1 + items[0], []
        for length in items[1:at]:
            found.append(items[at : at + length].tolist())
            at += length
        return found

    def stretch(self, number: int, tokens: int, choose: Callable[[int], int]) -> list[int]:
        """Return the ids of consecutive sentences: at least one, up to about ``tokens`` ids.

        ``choose`` selects the first sentence, given their number. Only these are read.
        """
        start = self.starts[number]
        count = self._read(start, 1)[0]
        lengths = self._read(start + 1, count)
        first = choose(count)
        last, size = first + 1, lengths[first]
        while size < tokens and last < count:
            size += lengths[last]
            last += 1
        return self._read(start + 1 + count + sum(lengths[:first]), size).tolist()

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _read(self, start: int, count: int) -> array[int]:
        self.file.seek(start * ITEM)
        found, size = array("i"), count * ITEM
        raw = self.file.read(size)
        while len(raw) < size and (more := self.file.read(size - len(raw))):
            raw += more
        found.frombytes(raw)
        return found
