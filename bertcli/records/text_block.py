"""Texts of a file, one a line, that become records only for those who want records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from bertcli.records.records import Record


class TextBlock(Sequence[Record]):
    """Records that are nothing but texts, the first of them on line ``number`` of ``file``."""

    def __init__(self, texts: list[str], file: str, number: int) -> None:
        self.texts, self.file, self.number = texts, file, number

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> TextBlock: ...
    def __getitem__(self, at: int | slice) -> Record | TextBlock:
        lines = range(self.number, self.number + len(self.texts))
        if isinstance(at, int):
            return Record(self.texts[at], file=self.file, line=lines[at])
        start = at.indices(len(self.texts))[0]
        return TextBlock(self.texts[at], self.file, self.number + start)

    def __iter__(self) -> Iterator[Record]:
        file = self.file
        for line, text in enumerate(self.texts, self.number):
            yield Record(text, None, None, None, file, line)
