"""Blocks of records as columns, so that millions of texts are no objects each but their texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import Any, overload

from bertcli.records.records import Record, Text


class TextBlock(Sequence[Record]):
    """Records as columns; a record is made where somebody asks for one.

    ``pairs``, ``ids`` and ``extras`` are None where no record has any.
    """

    def __init__(
        self,
        texts: list[Text],
        files: list[str],
        lines: Sequence[int],
        pairs: list[Text | None] | None = None,
        ids: list[Any] | None = None,
        extras: list[dict[str, Any] | None] | None = None,
    ) -> None:
        self.texts, self.files, self.lines = texts, files, lines
        self.pairs, self.ids, self.extras = pairs, ids, extras

    @classmethod
    def of_lines(cls, texts: Sequence[Text], file: str, number: int) -> TextBlock:
        """Return texts that stand on successive lines of a file, the first on line ``number``."""
        return cls(list(texts), [file] * len(texts), range(number, number + len(texts)))

    @classmethod
    def of(cls, records: Sequence[Record]) -> TextBlock:
        """Return records as columns."""
        if isinstance(records, TextBlock):
            return records
        if not records:
            return cls([], [], [])
        texts, pairs, ids, extras, files, lines, _ = map(list, zip(*records, strict=True))
        rest = (None if one.count(None) == len(one) else one for one in (pairs, ids, extras))
        return cls(texts, files, lines, *rest)

    @classmethod
    def joined(cls, blocks: Sequence[TextBlock]) -> TextBlock:
        """Return the records of several blocks."""

        def column(name: str) -> Any:
            columns = [getattr(block, name) for block in blocks]
            if all(one is None for one in columns):
                return None
            filled = zip(columns, blocks, strict=True)
            return list(chain(*(repeat(None, len(b)) if one is None else one for one, b in filled)))

        return cls(*map(column, ("texts", "files", "lines", "pairs", "ids", "extras")))

    @property
    def is_plain(self) -> bool:
        """Whether the records are nothing but single texts."""
        return self._rest == (None, None, None)

    @cached_property
    def is_split(self) -> bool:
        """Whether any text is a list of words."""
        return list in map(type, self.texts) or list in map(type, self.pairs or ())

    @property
    def strings(self) -> Iterable[str]:
        """All strings of the records: texts and pairs, or their words if they are split."""
        if self.pairs is None and not self.is_split:
            return self.texts  # type: ignore[return-value]
        both = zip(self.texts, self.pairs or repeat(None), strict=False)
        there = filter(None, chain.from_iterable(both))
        return chain.from_iterable([one] if isinstance(one, str) else one for one in there)

    def __len__(self) -> int:
        return len(self.texts)

    @overload
    def __getitem__(self, at: int) -> Record: ...
    @overload
    def __getitem__(self, at: slice) -> TextBlock: ...
    def __getitem__(self, at: int | slice) -> Record | TextBlock:
        if isinstance(at, slice):
            return self._mapped(lambda column: column[at])
        pair, key, extra = (None if one is None else one[at] for one in self._rest)
        return Record(self.texts[at], pair, key, extra, self.files[at], self.lines[at])

    @property
    def _rest(self) -> tuple[list[Any] | None, ...]:
        return self.pairs, self.ids, self.extras

    def __iter__(self) -> Iterator[Record]:
        rest = (one or repeat(None) for one in self._rest)
        return map(Record, self.texts, *rest, self.files, self.lines)

    def take(self, rows: Sequence[int]) -> TextBlock:
        """Return some of the records."""
        return self._mapped(lambda column: [column[at] for at in rows])

    def with_texts(self, texts: list[Text], pairs: list[Text | None] | None) -> TextBlock:
        """Return the records with other texts."""
        return TextBlock(texts, self.files, self.lines, pairs, self.ids, self.extras)

    def without(self, names: Collection[str]) -> TextBlock:
        """Return the records without these of the fields that they carry."""
        if not (names and self.extras):
            return self
        rest = [{k: v for k, v in (one or {}).items() if k not in names} for one in self.extras]
        extras: list[dict[str, Any] | None] = [one or None for one in rest]
        return TextBlock(
            self.texts, self.files, self.lines, self.pairs, self.ids, extras if any(rest) else None
        )

    def _mapped(self, change: Callable[[Any], Any]) -> TextBlock:
        rest = (one and change(one) for one in self._rest)
        return TextBlock(*map(change, (self.texts, self.files, self.lines)), *rest)
