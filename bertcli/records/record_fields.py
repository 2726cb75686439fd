"""The fields of a row that make a record: text, pair, id and carried fields."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from bertcli.errors import SKIP, InputError, counted, option
from bertcli.io.printable import listed
from bertcli.io.typed_json import shown
from bertcli.records.input import ORIGIN, FieldSelection, Input

# Keys that lead to a value: a field, then keys of nested objects.
FieldPath = tuple[str, ...]


class RecordFields(NamedTuple):
    """The field names of a file that make a record.

    A name in ``paths`` is not itself a field of the file: "user.bio" is a nested value,
    "title,body" are two fields to join.
    """

    text: str
    pair: str | None
    id: str | None
    carried: Sequence[str]
    paths: Mapping[str, Sequence[FieldPath]] = {}
    join: str = ""  # separator of joined fields

    @property
    def needed(self) -> list[str]:
        """The fields to read from the file, without duplicates."""
        names: list[str] = []
        for name in (self.text, self.pair, self.id, *self.carried):
            if name is not None:
                names += [path[0] for path in self.paths.get(name, [(name,)])]
        return list(dict.fromkeys(names))

    def with_paths(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return the row with the values of all ``paths``. Raises InputError if one is missing.

        Empty fields are left out of joined fields; if all are null, the value is null.
        """
        values = {name: self._value(row, paths, where) for name, paths in self.paths.items()}
        return {**row, **values}

    def _value(self, row: Mapping[str, Any], paths: Sequence[FieldPath], where: str) -> Any:
        values = [nested_value(row, path, where) for path in paths]
        if len(paths) == 1:
            return values[0]
        for path, value in zip(paths, values, strict=True):
            if not isinstance(value, str | None):
                raise InputError(
                    f"{where}: field {'.'.join(path)!r} is {shown(value)}, not a string", SKIP
                )
        if values.count(None) == len(values):
            return None
        return self.join.join(filter(None, values))


def nested_value(row: Mapping[str, Any], path: FieldPath, where: str) -> Any:
    """Return the value at a path; None below a null. Raises InputError for a missing key."""
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


def names_to_keep(keep: str | None) -> list[str] | None:
    """Return the names in a list separated by commas; None, for all fields, for None and "*"."""
    return None if keep in (None, "*") else [name.strip() for name in str(keep).split(",")]


def kept_fields(fields: dict[str, Any], names: Sequence[str] | None, where: str) -> dict[str, Any]:
    """Return the fields of these names, or all for None. Raises InputError for a missing one."""
    if names is None:
        return fields
    for name in names:
        if name not in fields:
            raise InputError(f"{where}: field {name!r} not found", f"available: {listed(fields)}")
    return {name: fields[name] for name in names}


def field_path(name: str, names: Collection[str]) -> FieldPath | None:
    """Return the keys that a name such as "user.bio" refers to; None if no field matches."""
    if name in names:
        return (name,)
    keys = name.split(".")
    for count in range(len(keys) - 1, 0, -1):
        if (field := ".".join(keys[:count])) in names:
            return (field, *keys[count:])
    return None


def joined_fields(name: str, names: Collection[str]) -> list[str]:
    """Return the field names in a text field such as "title,body", or its own name."""
    if name in names or "," not in name:
        return [name]
    return [part.strip() for part in name.split(",")]


# Fields that the next command computes anew, if the rows come from `chunk` (the number of tokens)
# or from a search (row and score of a hit).
HIT_FIELDS = frozenset({"row", "id", "score", "text"})
REPLACED_FIELDS = (  # the fields that show it, and those that are replaced
    (frozenset({"chunk", "start", "end", "n_tokens"}), frozenset({"n_tokens"})),
    (HIT_FIELDS, frozenset({"row", "score"})),
)


# Fields of output rows that contain no text unless it was kept.
RESULT_FIELDS = {
    *("entities", "label", "labels", "predictions", "answer", "answers", "choices"),
    *("embedding", "vectors", "terms", "input_ids"),
}


def replaced_fields(input_names: Collection[str]) -> set[str]:
    """Return the input fields that a command computes anew, if the input is bertcli's own output.

    For example, `embed` of the chunks that `chunk` wrote replaces ``n_tokens``.
    """
    replaced = set[str]()
    for row_fields, fields in REPLACED_FIELDS:
        if row_fields.issubset(input_names):
            replaced |= fields
    return replaced


def hits_of(value: Any) -> list[Any] | None:
    """Return the hits, which are rows, of an answer of `bertcli similar`; None for other values."""
    if not isinstance(value, dict) or "text" in value or not {"query", "hits"} <= value.keys():
        return None
    hits = value["hits"]
    return hits if isinstance(hits, list) and all(isinstance(hit, dict) for hit in hits) else None


def record_fields(source: Input, names: Sequence[str], where: str) -> RecordFields:
    """Return the names of text, pair, id and carried fields among those available.

    Raises InputError for a requested field that is missing, and for a carried field with the name
    of an output field.
    """
    options = source.fields
    present = {*names}
    text = _text_field(source, names)
    pair = _pair_field(source)
    id_field = options.id_field or "id"
    reserved = _reserved_names(options)
    carried = _carried_fields(source, names, text, pair, id_field)
    text_names = joined_fields(text, present)
    requested = filter(None, (options.pair_field, options.id_field))
    paths: dict[str, list[FieldPath]] = {}
    for name in (*text_names, *carried, *requested, *options.extra_ids):
        if name in present:
            continue
        path = field_path(name, present)
        if path is None:
            if name == text and options.example_text_fields and not options.text_field:
                raise _no_example(options, names, where)
            hint = _hint_for_missing(source, names, is_text=name == text)
            raise InputError(f"{where}: field {name!r} not found", hint)
        paths[name] = [path]
    for name in carried:
        if name in reserved:
            raise InputError(
                f"{where}: field {name!r} cannot be kept, as the output has a field of that name",
                f"rename it in the input, or name the fields to keep: {option('keep_fields')} "
                "a,b,c",
            )
    carried += [name for name in options.extra_ids if name not in carried]
    if options.hit_rows and HIT_FIELDS.issubset(names):
        carried.append("row")
    if len(text_names) > 1:
        text_paths = (field_path(name, present) for name in text_names)
        paths[text] = [path for path in text_paths if path]
    if options.example_text_fields and text in paths:  # the text is read from the carried fields
        carried.append(text)
    present.update(paths)
    return RecordFields(
        text,
        pair if pair in present else None,
        id_field if id_field in present else None,
        carried,
        paths,
        "\n\n" if options.join is None else options.join,
    )


def _text_field(source: Input, names: Sequence[str]) -> str:
    """Return the name of the text field: the first known one of examples, else the option's."""
    for name in source.fields.example_text_fields:
        if name in names:
            return name
    return source.fields.text_field or ("input_ids" if source.ids else "text")


def _pair_field(source: Input) -> str | None:
    """Return the name of the field of the second text, which may be missing."""
    if source.fields.pair_field is None and (source.fields.no_pairs or source.ids):
        return None
    return source.fields.pair_field or "pair"


def _reserved_names(options: FieldSelection) -> set[str]:
    """Return the output field names, which no carried field may have."""
    if options.keep_rows:
        return set()
    if options.with_location and not options.example_text_fields:
        return {*options.reserved, *ORIGIN}
    return {*options.reserved}


def _carried_fields(
    source: Input, names: Sequence[str], text: str, pair: str | None, id_field: str
) -> list[str]:
    """Return the names of the fields to carry besides text, pair and id."""
    options = source.fields
    if options.keep_rows:
        return [*names]
    if options.keep != "*":
        kept = [name.strip() for name in options.keep.split(",")] if options.keep else []
        return [name for name in dict.fromkeys(kept) if name != "id" or id_field != "id"]
    excluded = {id_field} | (replaced_fields(names) & _reserved_names(options))
    if not (source.kept_text or options.example_text_fields):
        excluded |= {text, pair or text}
    return [name for name in names if name not in excluded]


def _no_example(options: FieldSelection, names: Sequence[str], where: str) -> InputError:
    """Return the error for an example row without any of the known text fields."""
    return InputError(
        f"{where}: an example needs a text and a label, and none of the fields "
        f"{', '.join(options.example_text_fields)} is there",
        f"available: {listed(names)}; name both: {option('text_field', 'NAME')} "
        f"{option('label_field', 'NAME')}",
    )


def _hint_for_missing(source: Input, names: Sequence[str], *, is_text: bool) -> str:
    """Return the hint for a missing field: the fields available, and a likely option."""
    delimiter = max(";|\t", key=names[0].count) if len(names) == 1 else ""
    if delimiter and delimiter in names[0]:  # the header is one column
        advice = f"{option('delimiter')} '{delimiter}'"
        if delimiter == "\t":
            advice = option("input_format", "tsv")
        return f"the header is one column, {names[0]!r}; try {advice}"
    hint = f"available: {listed(names)}"
    if is_text and source.fields.text_option != "text_field":
        return f"{hint}; choose with {option(source.fields.text_option)}"
    if not is_text or source.ids or source.fields.text_field:
        return hint
    if "id" in names and RESULT_FIELDS.intersection(names):
        return f"{hint}; {option('keep_fields')} of the command before keeps the text"
    return f"{hint}; choose with {option('text_field')}"


def not_two_columns(where: str, count: int) -> InputError:
    """Return the error for a row of a file of pairs that does not have two columns."""
    return InputError(
        f"{where}: {counted(count, 'column')}, but a pair has two",
        f"keep two columns, or read the file with {option('input')} and name "
        f"{option('text_field')} and {option('pair_field')}",
    )
