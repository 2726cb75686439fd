"""A corpus as documents of tokenized sentences, in two files that are mapped into memory.

A text file has one sentence per line and blank lines between documents. In other formats a record
is a document: text with one sentence per line, or a list of sentences; and fields with ids of extra
embeddings for its words.

One file holds the tokens, int32: each is its id, followed by its id of each extra embedding. The
other holds where sentences end, int64. The first sentence of each document is kept in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from random import Random

import numpy as np

from bertcli.errors import UsageError
from bertcli.records.extra_ids import MOST, sentence_ids
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.records.windows import ahead, windows
from bertcli.tokenizing.columns import EXTRA, Encoded, Layout
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.tokenizer import Tokenizer
from bertcli.training.instances import below

END = Record("")  # between documents
WINDOW = 4096  # sentences tokenized together


def sentences(reader: Reader, fields: Sequence[str] = ()) -> Iterator[list[Record]]:
    """Yield the sentences of a corpus as they are read; a blank one ends a document.

    Each has its part of the ids in these fields of its document. Raises UsageError for a text
    file, which has no fields.
    """

    def split(_: int, record: Record) -> list[Record]:
        lines = record.text if isinstance(record.text, list) else record.text.split("\n")
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
    """Tokenized documents in files. Written once, then read in any order.

    Tokens have ``width`` ids: their own, and one of each extra embedding.
    """

    def __init__(self, folder: Path, width: int = 1) -> None:
        self.folder, self.width = folder, width
        self.largest = np.zeros(width, np.int32)  # id of each kind
        self.starts = array("q", [0])  # the first sentence of each document, and the end
        self.sentences = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    def fill(self, batches: Iterable[Sequence[Sequence[int] | None]]) -> Iterator[int]:
        """Add sentences, flat, None ends a document; yield their number after each batch."""
        files = self.folder / "tokens", self.folder / "ends"
        with files[0].open("xb") as tokens_file, files[1].open("xb") as ends_file:
            end = 0
            ends_file.write(array("q", [end]))
            for batch in batches:
                tokens, ends = array("i"), array("q")
                for ids in batch:
                    if ids:
                        tokens.extend(ids)
                        end += len(ids) // self.width
                        ends.append(end)
                    elif ids is None and self.starts[-1] < self.sentences + len(ends):
                        self.starts.append(self.sentences + len(ends))
                columns = np.frombuffer(tokens, np.int32).reshape(-1, self.width)
                self.largest = np.maximum(self.largest, columns.max(0, initial=0))
                self.sentences += len(ends)
                tokens_file.write(tokens)
                ends_file.write(ends)
                yield self.sentences
        if end:
            self.tokens = np.memmap(files[0], np.int32, "r").reshape(-1, self.width)
            self.ends = np.memmap(files[1], np.int64, "r")

    def __getitem__(self, number: int) -> tuple[np.ndarray, list[int]]:
        """Return the tokens of a document, and where its sentences begin and the last one ends."""
        ends = self.ends[self.starts[number] : self.starts[number + 1] + 1]
        return self.tokens[ends[0] : ends[-1]], (ends - ends[0]).tolist()

    def elsewhere(self, number: int, tokens: int, rng: Random) -> np.ndarray:
        """Return consecutive sentences of a random other document.

        They are at least one, and end with that which reaches this number of ``tokens``.
        """
        other = below(rng, len(self) - 1)
        other += other >= number
        first, stop = self.starts[other], self.starts[other + 1]
        ends = self.ends[first + below(rng, stop - first) : stop + 1]
        last = 1 + int(np.searchsorted(ends[1:-1], ends[0] + tokens))
        return self.tokens[ends[0] : ends[last]]

    def close(self) -> None:
        """Let go of the files."""
        del self.tokens, self.ends
