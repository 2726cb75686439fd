"""A corpus as documents of tokenized sentences, in a file; memory is that of the longest document.

A text file has one sentence per line and blank lines between documents. In other formats a record
is a document: text with one sentence per line, or a list of sentences; and fields with ids of extra
embeddings for its words.

The file holds int32: for each document the number of its sentences, their lengths, their tokens. A
token is its id, followed by its id of each extra embedding. The offset of each document is kept in
memory, 8 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from bertcli.errors import UsageError
from bertcli.files.system_calls import write_all
from bertcli.records.extra_ids import MOST, sentence_ids
from bertcli.records.reader import Reader
from bertcli.records.records import Record, Text
from bertcli.records.windows import ahead, windows
from bertcli.tokenizing.columns import EXTRA, Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.instances import Token

END = Record("")  # between documents
WINDOW = 4096  # sentences tokenized together
ITEM = array("i").itemsize


def sentences(reader: Reader, fields: Sequence[str] = ()) -> Iterator[list[Record]]:
    """Yield the sentences of a corpus as they are read; a blank one ends a document.

    Each has its part of the ids in these fields of its document. Raises UsageError for a text
    file, which has no fields.
    """

    def split(_: int, record: Record) -> list[Record]:
        lines = lines_of(record.text)
        ids = [sentence_ids(record, lines, field) for field in fields]
        return [
            *(
                record._replace(text=line, extra=dict(zip(fields, values, strict=True)))
                for line, *values in zip(lines, *ids, strict=True)
                if line.strip()
            ),
            END,
        ]

    paths = {"stdin" if path == "-" else path: path for path in reader.source.paths}
    file = ""
    for block in filter(None, reader.blocks()):
        before = [] if block[0].file == file else [END]
        file = block[0].file
        if reader.format_of(paths[file]) != "txt":
            documents = reader.collect(enumerate(block), split)
            yield [*before, *chain.from_iterable(documents)]
        elif not fields:
            yield [*before, *block]
        else:
            raise UsageError(
                f"--extra: {file} is read as txt, which has no fields",
                "--input-format csv, tsv or jsonl reads fields",
            )
    yield [END]


def lines_of(text: Text) -> Sequence[str]:
    """Return the sentences of a document."""
    return text if isinstance(text, list) else text.split("\n")


def tokenized(
    reader: Reader, tokenizer: Tokenizer, extra: Mapping[str, str]
) -> Iterator[list[Sequence[int] | None]]:
    """Yield windows of sentences as ids, without special tokens; None ends a document.

    The id of a token is followed by its id of each ``extra`` embedding, read from these fields.
    """
    fields = tuple(dict.fromkeys(extra.values()))
    columns = ExtraColumns(extra, dict.fromkeys(extra, MOST))
    layout = Layout(columns=("input_ids", *columns.needed), special_tokens=False)

    def ids_of(item: Encoded) -> Sequence[int] | None:
        if not str(item.record.text).strip():
            return None
        if not extra:
            return [*item.columns["input_ids"]]
        (item,) = columns.added([item], tokenizer)
        ids = [item.columns["input_ids"], *(item.columns[EXTRA + name] for name in extra)]
        return [*chain.from_iterable(zip(*ids, strict=True))]

    def run(records: Sequence[Record]) -> list[Sequence[int] | None]:
        return [*map(ids_of, tokenizer.encode_records(records, layout))]

    return ahead(windows(sentences(reader, fields), WINDOW), run)


class Documents:
    """Tokenized documents in a file. Written once, then read in any order.

    Tokens have ``width`` ids: their own, and one of each extra embedding.
    """

    def __init__(self, path: Path, width: int = 1) -> None:
        self.file, self.width = path.open("x+b", buffering=0), width
        self.largest = [0] * (width - 1)  # id of each extra embedding
        self.starts = array("q", [0])  # in items, of each document and of the end
        self.tokens = self.sentences = 0
        self.lengths = array("i")  # of the sentences of the document being written
        self.ids = array("i")
        self.waiting = bytearray()

    def __len__(self) -> int:
        return len(self.starts) - 1

    def fill(self, batches: Iterable[Sequence[Sequence[int] | None]]) -> Iterator[int]:
        """Add sentences, flat, None ends a document; yield their number after each batch."""
        for batch in batches:
            for ids in batch:
                if ids is None:
                    self._end()
                elif ids:
                    self.lengths.append(len(ids) // self.width)
                    self.ids.extend(ids)
            yield self.sentences
        self._flush()

    def _end(self) -> None:
        count = len(self.lengths)
        if not count:
            return
        self.tokens += len(self.ids) // self.width
        for number, largest in enumerate(self.largest):
            self.largest[number] = max(largest, *self.ids[number + 1 :: self.width])
        self.sentences += count
        self.starts.append(self.starts[-1] + 1 + count + len(self.ids))
        for part in (array("i", [count]), self.lengths, self.ids):
            self.waiting += part.tobytes()
        del self.lengths[:], self.ids[:]
        if len(self.waiting) > 1 << 20:
            self._flush()

    def _flush(self) -> None:
        write_all(self.file, self.waiting)
        self.waiting = bytearray()

    def __getitem__(self, number: int) -> list[list[Token]]:
        """Return the sentences of a document."""
        start, end = self.starts[number], self.starts[number + 1]
        items = self._read(start, end - start)
        place, document = 1 + items[0], []
        for length in items[1:place]:
            end = place + length * self.width
            document.append(self._tokens(items[place:end]))
            place = end
        return document

    def _tokens(self, ids: array[int]) -> list[Token]:
        if self.width == 1:
            return [*ids]
        return [*zip(*(ids[at :: self.width] for at in range(self.width)), strict=True)]

    def stretch(self, number: int, tokens: int, choose: Callable[[int], int]) -> list[Token]:
        """Return the tokens of consecutive sentences: at least one, up to about ``tokens`` tokens.

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
        start += 1 + count + sum(lengths[:first]) * self.width
        return self._tokens(self._read(start, size * self.width))

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _read(self, start: int, count: int) -> array[int]:
        self.file.seek(start * ITEM)
        items, size = array("i"), count * ITEM
        raw = self.file.read(size)
        while len(raw) < size and (more := self.file.read(size - len(raw))):
            raw += more
        items.frombytes(raw)
        return items
