"""Options given as Python keywords: check names, choices and ranges."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bertcli.errors import UsageError, option

R = TypeVar("R")


def options_from(record: type[R], options: Mapping[str, Any], **other: Any) -> R:
    """Return a record filled from options by name, and from ``other`` fields.

    Raises UsageError for an option that the record lacks, and for a value that is not a choice.
    """
    names = [name for name in names_of(record) if name not in other]
    refuse_unknown(options, names)
    refuse_other_choices(record, options)
    return record(**options, **other)


def refuse_other_choices(record: type[Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option whose value is not a choice of its field."""
    for name, annotation in get_type_hints(record).items():
        parts = (annotation, *get_args(annotation))  # also the types in a union with None
        choices = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
        default = getattr(record, name, None)
        if choices and options.get(name, default) not in (default, *choices):
            raise UsageError(f"unknown {name} {options[name]!r}", f"one of {', '.join(choices)}")


def names_of(record: type[Any]) -> list[str]:
    """Return the names of the fields that the constructor of a record takes."""
    return [field.name for field in fields(record) if field.init]


def grouped(
    options: Mapping[str, Any], names: Mapping[str, Collection[str]]
) -> dict[str, dict[str, Any]]:
    """Return the options by group. Each group takes the options in its ``names``.

    Options that are None are left out, as they mean the default. An option may be in several
    groups. Raises UsageError for an option that no group takes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    refuse_unknown(given, [*dict.fromkeys(name for members in names.values() for name in members)])
    return {
        group: {name: given[name] for name in members if name in given}
        for group, members in names.items()
    }


def file_name(value: Any) -> str:
    """Return the name of a file. Raises UsageError unless the value is a string or path."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise UsageError(
            f"expected the name of a file, found {type(value).__name__}", "write it to a file first"
        ) from None


def refuse_unknown(options: Collection[str], names: Collection[str]) -> None:
    """Raise UsageError for the first option that is not one of these names."""
    for name in options:
        if name not in names:
            likely = get_close_matches(name, names, 1)
            hint = f"did you mean {likely[0]}?" if likely else f"one of {', '.join(names)}"
            raise UsageError(f"unknown option {name!r}", hint)


def refuse_outside(
    record: Any,
    whole: Mapping[str, int] = {},
    numbers: Mapping[str, float] = {},
) -> None:
    """Raise UsageError for a field of a record that is outside its range; None is accepted.

    ``whole`` has the minimum of integer fields, ``numbers`` the maximum of fields that may be
    decimal and must not be negative.
    """
    for name, least in whole.items():
        value = getattr(record, name)
        if value is not None and not (type(value) is int and value >= least):
            raise UsageError(f"{option(name, value)} is not a whole number from {least}")
    for name, most in numbers.items():
        value = getattr(record, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UsageError(f"{option(name, value)} is not a number")
        if not 0 <= value <= most:
            limit = f"from 0 to {most:g}" if isfinite(most) else "from 0"
            raise UsageError(f"{option(name, value)} is not a number {limit}")
