"""Records of any source, one after another; counts those that cannot be read.

    for record in Reader(Source(paths=("reviews.jsonl.gz",))):
        print(record.text)

Memory is that of one block, for a file of any size. A record that cannot be read is an InputError
with its file and line, or is reported, counted and skipped (`on_error="skip"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bertcli.records.input_files import input_files
from bertcli.records.read_progress import ReadProgress, Say, silent
from bertcli.records.records import Record, checked
from bertcli.records.source import Source


class Reader(ReadProgress):
    """Iterates over the records of a source; its folders and globs are made files here.

    Raises InputError for a path where no file is, UsageError for fields of inputs that have none.
    """

    def __init__(self, source: Source, warn: Say = silent, note: Say = silent) -> None:
        paths = input_files(source.paths, source)
        super().__init__(replace(source, paths=paths), warn, note)
        if "-" not in paths or source.format != "auto":  # else stdin tells
            source.refuse_fields(map(source.format_of, paths))

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield records as they become available, in lists of no fixed length."""
        for block in self._blocks():
            self.records += len(block)
            yield block
        self.exhausted = True

    def _blocks(self) -> Iterator[Sequence[Record]]:
        from bertcli.records import formats  # arguments alone do not need it

        if self.source.texts:
            yield self.collect(enumerate(self.source.texts, 1), self._argument)
        for path in self.source.paths:
            yield from formats.read(path, self)

    def _argument(self, number: int, text: str) -> Record:
        record = Record(text, self.source.pair, line=number)
        return checked(record, self.source)
