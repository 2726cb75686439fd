"""How far a source is read: what its formats count, and the checks of every record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bertcli.errors import InputError
from bertcli.files.tables import TableHeader
from bertcli.files.typed_json import kind_of, strict
from bertcli.records.records import Record, RecordFields, TextBlock, checked, extra_ids, fields_of
from bertcli.records.source import Source, input_files

T = TypeVar("T")
PAIRS, IDS = frozenset({str, type(None)}), frozenset({str, int, type(None)})
Say = Callable[[str], None]  # shows a message


def silent(message: str) -> None:
    """Show nothing."""


def finite(value: Any, where: str, name: str) -> Any:
    """Return a value without NaN and infinity. Raises InputError for one that has any."""
    if strict(value) == value:
        return value
    raise InputError(
        f"{where}: field {name!r} holds NaN or infinity, which JSON cannot hold",
        "write null there, or leave the field out",
    )


class ReadProgress:
    """A source, whose folders and globs are made files here, and how far it is read.

    Raises InputError for a path where no file is, UsageError for fields of inputs that have none.
    """

    def __init__(self, source: Source, warn: Say = silent, note: Say = silent) -> None:
        paths = input_files(source.paths, source, note)
        if source.placed is None:
            source = replace(source, placed=len(paths) > 1 or paths != source.paths)
        self.source = replace(source, paths=paths)
        self.warn, self.note = warn, note
        self.stdin_format: str | None = None  # once it is open
        self.fields: RecordFields | None = None  # of the last table; JSONL has them per line
        self.skipped = self.replaced = 0
        self.bytes_read = self.records = 0
        self.empty = 0  # texts without a character that are left out
        self.exhausted = False  # whether all records were read
        if any(source.format_of(path) == "parquet" for path in paths):
            from bertcli.files import parquet  # noqa: F401 - is pyarrow installed?
        if "-" not in paths or source.format != "auto":  # else stdin tells
            source.refuse_fields(map(source.format_of, paths))

    def format_of(self, path: str) -> str:
        """Return the format of a file; of stdin, the one that was found."""
        return (self.stdin_format if path == "-" else None) or self.source.format_of(path)

    def read_extra(self, limits: Mapping[str, int]) -> None:
        """Read fields with ids of words as well, each so many, and refuse records without them."""
        self.source = replace(self.source, extra_ids=limits)

    def reserve(self, names: frozenset[str]) -> None:
        """Refuse to keep fields of these names: the output has such fields itself."""
        self.source = replace(self.source, taken=names)

    def collect(self, units: Iterable[tuple[int, Any]], parse: Callable[[int, Any], T]) -> list[T]:
        """Parse numbered units; one that cannot be parsed stops the run or is skipped."""
        parsed = []
        for number, unit in units:
            try:
                parsed.append(parse(number, unit))
            except InputError as error:
                self.skip(error)
        return parsed

    def skip(self, error: InputError) -> None:
        """Report and count a record that is skipped; raise with ``on_error="fail"``."""
        if self.source.on_error != "skip":
            raise error
        self.skipped += 1
        self.warn(f"skipped: {error}")

    def count(self, size: int) -> None:
        """Count bytes read from disk."""
        self.bytes_read += size

    def fit_id(self, key: Any, where: str) -> Any:
        """Return a valid id: a string, a number or None.

        A list, an object, true or false is none; where the field was asked for with --id-field,
        it raises InputError.
        """
        if not isinstance(key, bool | list | dict):
            return finite(key, where, self.source.id_field or "id")
        if self.source.id_field is None:
            return None
        raise InputError(
            f"{where}: the id is {kind_of(key)}, not a string or a number",
            "name another field with --id-field",
        )

    def record(self, fields: RecordFields, row: Mapping[str, Any], file: str, line: int) -> Record:
        """Return the record of a row.

        Raises InputError for values that cannot be written as JSON: NaN and infinity.
        """
        where = f"{file}:{line}"
        record = Record(
            row[fields.text],
            row.get(fields.pair) if fields.pair else None,
            self.fit_id(row.get(fields.id), where) if fields.id else None,
            {name: finite(row.get(name), where, name) for name in fields.carried} or None,
            file,
            line,
        )
        for name, value in row.items():
            if isinstance(value, bytes):  # of Parquet
                raise InputError(
                    f"{record.where}: field {name!r} is not valid UTF-8",
                    "use --encoding-errors replace",
                )
        record = checked(record, self.source)
        for name, size in self.source.extra_ids.items():
            extra_ids(record, name, size)
        return record

    def rows(
        self,
        fields: RecordFields,
        columns: Mapping[str, list[Any]],
        file: str,
        lines: Sequence[int],
    ) -> Sequence[Record]:
        """Return the records of columns.

        They are made together, or one by one where any needs a closer look: `record` refuses it, or
        makes another of it. No text is half a surrogate pair.
        """
        texts, pairs, ids = (columns[name] if name else None for name in fields[:3])
        carried = [columns[name] for name in fields.carried]
        plain = not (self.source.ids or self.source.pre_split or self.source.extra_ids)
        if not (
            plain
            and texts
            and {*map(type, texts)} == {str}
            and PAIRS.issuperset(map(type, pairs or ()))
            and IDS.issuperset(map(type, ids or ()))
            and not any(bytes in map(type, column) for column in carried)
            and strict(carried) == carried
        ):
            rows = zip(*columns.values(), strict=True)
            return self.collect(
                zip(lines, rows, strict=True),
                lambda line, row: self.record(
                    fields, dict(zip(columns, row, strict=True)), file, line
                ),
            )
        extras: Any = [
            dict(zip(fields.carried, row, strict=True)) for row in zip(*carried, strict=True)
        ]
        pairs = None if pairs is None or pairs.count(None) == len(pairs) else pairs
        ids = None if ids is None or ids.count(None) == len(ids) else ids
        return TextBlock(texts, pairs, ids, extras or None, [file] * len(texts), lines)

    def header(self, columns: Mapping[str, Any]) -> TableHeader:
        """Return the row that begins a table without any: these columns, ids and kept fields."""
        key = {"id": None} if self.fields and self.fields.id is not None else {}
        return TableHeader(
            {**key, **columns, **dict.fromkeys(self.fields.carried if self.fields else ())}
        )

    def table_fields(self, names: Sequence[str], where: str) -> RecordFields:
        """Return the fields of a table, and keep them for the header of the output.

        Raises InputError for a field that is missing, or the name of two columns.
        """
        fields = fields_of(self.source, names, where)
        columns = Counter(names)
        for name in fields.needed:
            if columns[name] > 1:
                raise InputError(
                    f"{where}: {columns[name]} columns are named {name!r}",
                    "give each a name of its own, or leave it out of --keep-fields",
                )
        self.fields = fields
        return fields
