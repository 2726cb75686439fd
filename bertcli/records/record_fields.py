"""The fields of a row that make a record: text, pair, id, and those that are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError, counted, option
from bertcli.io.printable import listed
from bertcli.io.typed_json import shown
from bertcli.records.input import ORIGIN, Input

# Keys that lead to a value: a field, and those of the objects in it.
FieldPath = tuple[str, ...]


class RecordFields(NamedTuple):
    """The names of the fields of a file that make a record.

    A name in ``paths`` is no field of the file: "user.bio" is a value of an object, "title,body"
    are two fields that are joined.
    """

    text: str
    pair: str | None
    id: str | None
    carried: Sequence[str]
    paths: Mapping[str, Sequence[FieldPath]] = {}
    join: str = ""  # what stands between fields that are joined

    @property
    def needed(self) -> list[str]:
        """The fields of the file, without duplicates."""
        names: list[str] = []
        for name in (self.text, self.pair, self.id, *self.carried):
            if name is not None:
                names += [path[0] for path in self.paths.get(name, [(name,)])]
        return list(dict.fromkeys(names))

    def with_paths(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return the row with the values of all ``paths``. Raises InputError where there is none.

        Of joined fields, those that are empty are left out; null where all are null.
        """
        values = {name: self._value(row, paths, where) for name, paths in self.paths.items()}
        return {**row, **values}

    def _value(self, row: Mapping[str, Any], paths: Sequence[FieldPath], where: str) -> Any:
        found = [nested_value(row, path, where) for path in paths]
        if len(paths) == 1:
            return found[0]
        for path, value in zip(paths, found, strict=True):
            if not isinstance(value, str | None):
                raise InputError(
                    f"{where}: field {'.'.join(path)!r} is {shown(value)}, not a string", SKIP
                )
        if found.count(None) == len(found):
            return None
        return self.join.join(filter(None, found))


def nested_value(row: Mapping[str, Any], path: FieldPath, where: str) -> Any:
    """Return the value that keys lead to; None behind a null. Raises InputError for no such key."""
    value: Any = row
    for depth, key in enumerate(path):
        if value is None:
            return None
        if not isinstance(value, Mapping) or key not in value:
            outer = ".".join(path[:depth])
            available = [f"{outer}.{name}" for name in value] if isinstance(value, Mapping) else []
            hint = f"available: {', '.join(available)}" if available else SKIP
            raise InputError(f"{where}: field {'.'.join(path)!r} not found", hint)
        value = value[key]
    return value


def field_path(name: str, names: Collection[str]) -> FieldPath | None:
    """Return the keys that a name such as "user.bio" stands for; None where no field fits."""
    if name in names:
        return (name,)
    keys = name.split(".")
    for count in range(len(keys) - 1, 0, -1):
        if (field := ".".join(keys[:count])) in names:
            return (field, *keys[count:])
    return None


def joined_fields(name: str, names: Collection[str]) -> list[str]:
    """Return the names that a text field such as "title,body" lists, or the one that it is."""
    if name in names or "," not in name:
        return [name]
    return [part.strip() for part in name.split(",")]


# Fields of the rows of bertcli's own commands that the next command has anew: of chunks the number
# of tokens, of hits the place and the score.
HIT_FIELDS = frozenset({"row", "id", "score", "text"})
REPLACED_FIELDS = (
    (frozenset({"chunk", "start", "end", "n_tokens"}), frozenset({"n_tokens"})),
    (HIT_FIELDS, frozenset({"row", "score"})),
)


# Fields of the rows of bertcli's own commands, which have no text unless it is kept.
RESULT_FIELDS = {
    *("entities", "label", "labels", "predictions", "answer", "answers", "choices"),
    *("embedding", "vectors", "terms", "input_ids"),
}


def replaced_fields(names: Collection[str]) -> set[str]:
    """Return the fields, of rows that a command of bertcli wrote, that another one may replace."""
    return {name for row, fields in REPLACED_FIELDS if row.issubset(names) for name in fields}


def hits_of(value: Any) -> list[Any] | None:
    """Return the hits of an answer of `bertcli similar`, which are rows; else None."""
    if not isinstance(value, dict) or "text" in value or not {"query", "hits"} <= value.keys():
        return None
    hits = value["hits"]
    return hits if isinstance(hits, list) and all(isinstance(hit, dict) for hit in hits) else None


def record_fields(source: Input, names: Sequence[str], where: str) -> RecordFields:
    """Return the names of text, pair, id and kept fields among those available.

    Raises InputError for a requested name that is missing, and for a kept field that has the name
    of an output field.
    """
    text = source.text_field or ("input_ids" if source.ids else "text")
    text = next((name for name in source.text_fields if name in names), text)
    single = source.pair_field is None and (source.single or source.ids)
    pair, key = None if single else source.pair_field or "pair", source.id_field or "id"
    reserved = {*source.taken, *(ORIGIN if source.placed and not source.text_fields else ())}
    if source.full_rows:
        reserved = set()
        carried = [*names]
    elif source.keep == "*":
        written = () if source.kept_text or source.text_fields else (text, pair)
        carried = [name for name in names if name != key and name not in written]
        replaced = replaced_fields(names) & reserved
        carried = [name for name in carried if name not in replaced]
    else:
        carried = [name.strip() for name in source.keep.split(",")] if source.keep else []
        carried = [name for name in dict.fromkeys(carried) if name != "id" or key != "id"]
    named = filter(None, (source.pair_field, source.id_field))
    present = {*names}
    paths: dict[str, list[FieldPath]] = {}
    text_names = joined_fields(text, present)
    for name in (*text_names, *carried, *named, *source.extra_ids):
        if name in present:
            continue
        if path := field_path(name, present):
            paths[name] = [path]
            continue
        if name == text and source.text_fields and not source.text_field:
            raise InputError(
                f"{where}: an example needs a text and a label, and none of the fields "
                f"{', '.join(source.text_fields)} is there",
                f"available: {listed(names)}; name both: {option('text_field', 'NAME')} "
                f"{option('label_field', 'NAME')}",
            )
        hint = f"available: {listed(names)}"
        if name == text and source.text_option != "text_field":
            hint += f"; choose with {option(source.text_option)}"
        elif name == text and not (source.ids or source.text_field):
            if "id" in present and present & RESULT_FIELDS:
                hint += f"; {option('keep_fields')} of the command before keeps the text"
            else:
                hint += f"; choose with {option('text_field')}"
        likely = max(";|\t", key=names[0].count) if len(names) == 1 else ""
        if likely and likely in names[0]:  # the header is one column
            advice = (
                f"{option('input_format', 'tsv')}"
                if likely == "\t"
                else f"{option('delimiter')} '{likely}'"
            )
            hint = f"the header is one column, {names[0]!r}; try {advice}"
        raise InputError(f"{where}: field {name!r} not found", hint)
    for name in carried:
        if name in reserved:
            raise InputError(
                f"{where}: field {name!r} cannot be kept, as the output has a field of that name",
                f"rename it in the input, or name the fields to keep: {option('keep_fields')} "
                "a,b,c",
            )
    carried += [name for name in source.extra_ids if name not in carried]
    if source.hit_rows and HIT_FIELDS.issubset(names):
        carried.append("row")
    if len(text_names) > 1:
        paths[text] = [path for name in text_names if (path := field_path(name, present))]
    if source.text_fields and text in paths:  # where the text is read from what is kept
        carried.append(text)
    present.update(paths)
    pair = pair if pair in present else None
    join = "\n\n" if source.join is None else source.join
    return RecordFields(text, pair, key if key in present else None, carried, paths, join)


def no_pair(where: str, count: int) -> InputError:
    """Return the error for a row of a file of pairs that has not two columns."""
    return InputError(
        f"{where}: {counted(count, 'column')}, but a pair has two",
        f"keep two columns, or read the file with {option('input')} and name "
        f"{option('text_field')} and {option('pair_field')}",
    )
