"""Records of any source, one after another; counts those that cannot be read.

    for record in Reader(Source(paths=("reviews.jsonl.gz",))):
        print(record.text)

Memory is that of one block, for a file of any size. A record that cannot be read is an InputError
with its file and line, or is reported, counted and skipped (`on_error="skip"`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence

from bertcli.files.streams import unreadable
from bertcli.records.read_progress import ReadProgress
from bertcli.records.records import Record, checked


class Reader(ReadProgress):
    """Iterates over the records of a source."""

    def __iter__(self) -> Iterator[Record]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[Sequence[Record]]:
        """Yield records as they become available, in lists of no fixed length."""
        for block in self._blocks():
            self.records += len(block)
            yield block

    def _blocks(self) -> Iterator[Sequence[Record]]:
        from bertcli.records import formats  # arguments alone do not need it

        if self.source.texts:
            yield self.collect(enumerate(self.source.texts, 1), self._argument)
        self._check_paths()
        for path in self.source.paths:
            yield from formats.read(path, self)

    def _argument(self, number: int, text: str) -> Record:
        record = Record(text, self.source.pair, line=number)
        return checked(record, self.source)

    def _check_paths(self) -> None:
        """Raise InputError for a missing file before the first record is read."""
        for path in self.source.paths:
            try:
                if path != "-" and stat.S_ISDIR(os.stat(path).st_mode):
                    raise IsADirectoryError
            except OSError as failed:
                raise unreadable(path, failed) from None
