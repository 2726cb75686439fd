"""Tables, whose rows all have the same fields: what CSV, TSV and Parquet share; CSV and TSV."""

from __future__ import annotations

import csv
import io
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, TypeAlias, overload

from bertcli.errors import OutputError

Row: TypeAlias = dict[str, Any]

# Arrow types of lists that we made; those of all else are taken from the first rows.
TYPES = {
    "input_ids": "list<int32>",
    "token_type_ids": "list<int8>",
    "attention_mask": "list<int8>",
    "special_tokens_mask": "list<int8>",
    "tokens": "list<string>",
    "offset_mapping": "list<list<int32>>",
    "word_ids": "list<int32>",
    "sequence_ids": "list<int8>",
}


class Made(list[Any]):
    """A list that we made, whose Arrow type is that of its name. A user's value never is one."""


class Numbers(Made):
    """Whole numbers that a tokenizer made: their JSON is their digits. Never a value of a user."""


class Written(Sequence[int]):
    """Numbers that are already written as JSON, and become a list once somebody asks."""

    json: str

    @property
    @abstractmethod
    def numbers(self) -> list[int]:
        """The numbers themselves."""

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        return self.numbers[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.numbers == list(other)

    def __repr__(self) -> str:
        return self.json


class TableHeader(Row):
    """A row that begins a table, with its columns, and is not written itself."""


def lines_of(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are to be written."""
    return [row for row in rows if not isinstance(row, TableHeader)]


def fields_of(rows: Sequence[Row]) -> list[str]:
    """Return the names of all fields of these rows, in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def refuse_new(rows: Sequence[Row], known: Sequence[str]) -> None:
    """Raise OutputError when a row has a field that the table began without."""
    for name in fields_of(rows):
        if name not in known:
            raise OutputError(
                f"field {name!r} appears after the table was begun with {', '.join(known)}",
                "write JSONL, where each line may have its own fields",
            )


@contextmanager
def delimited(file: IO[bytes], *, tabs: bool) -> Iterator[Any]:
    """CSV, quoted where needed, or TSV, never quoted; lists are JSON in their cell."""
    known: list[str] = []
    line = _tsv if tabs else _csv()

    def write(rows: Sequence[Row]) -> None:
        found = []
        if rows and not known:
            known.extend(fields_of(rows))
            found.append(line(known))
        refuse_new(rows, known)
        found += [line([_cell(row.get(name)) for name in known]) for row in lines_of(rows)]
        file.write("".join(found).encode())
        file.flush()

    yield write


def _csv() -> Callable[[Sequence[Any]], str]:
    """Return what makes a line of cells. Only its end is changed: a cell may hold CR and LF."""
    text = io.StringIO()
    table = csv.writer(text)

    def line(cells: Sequence[Any]) -> str:
        text.seek(0)
        text.truncate()
        table.writerow(cells)
        return text.getvalue().removesuffix("\r\n") + "\n"

    return line


def _tsv(cells: Sequence[Any]) -> str:
    texts = ["" if cell is None else str(cell) for cell in cells]
    if any(end in text for text in texts for end in "\t\r\n"):
        raise OutputError(
            "a value holds a tab or a line end, which TSV cannot hold", "write CSV or JSONL"
        )
    return "\t".join(texts) + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, list | tuple | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value
