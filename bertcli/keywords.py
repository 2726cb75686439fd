"""Options given as Python keywords: check names, choices and ranges."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from itertools import chain
from math import isfinite
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from bertcli.errors import UsageError, option

R = TypeVar("R")


def options_from(record: type[R], options: Mapping[str, Any], **fixed_fields: Any) -> R:
    """Return a record filled from options by name, and from fields that are not options.

    Raises UsageError for an option that the record lacks, and for a value that is not a choice.
    """
    names = [name for name in init_fields(record) if name not in fixed_fields]
    refuse_unknown(options, names)
    refuse_other_choices(record, options)
    return record(**options, **fixed_fields)


def refuse_other_choices(record: type[Any], options: Mapping[str, Any]) -> None:
    """Raise UsageError for an option whose value is not a choice of its field."""
    for name, annotation in get_type_hints(record).items():
        choices = _literal_choices(annotation)
        default = getattr(record, name, None)
        if choices and options.get(name, default) not in (default, *choices):
            raise UsageError(
                f"unknown {name} {options[name]!r}", f"one of {', '.join(map(str, choices))}"
            )


def _literal_choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, alone or in a union such as `Literal[...] | None`, or ()."""
    for type_ in (annotation, *get_args(annotation)):
        if get_origin(type_) is Literal:
            return get_args(type_)
    return ()


def init_fields(record: type[Any]) -> list[str]:
    """Return the names of the fields that the constructor of a record takes."""
    return [field.name for field in fields(record) if field.init]


def group_options(
    options: Mapping[str, Any], names_by_group: Mapping[str, Collection[str]]
) -> dict[str, dict[str, Any]]:
    """Return group -> its options.

    Options that are None are left out, as they mean the default. An option may be in several
    groups. Raises UsageError for an option that no group takes.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = list(dict.fromkeys(chain(*names_by_group.values())))
    refuse_unknown(given, known)
    return {
        group: {name: given[name] for name in names if name in given}
        for group, names in names_by_group.items()
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
            similar = get_close_matches(name, names, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"one of {', '.join(names)}"
            raise UsageError(f"unknown option {name!r}", hint)


def refuse_outside(
    record: Any,
    integer_minima: Mapping[str, int] = {},
    decimal_maxima: Mapping[str, float] = {},
) -> None:
    """Raise UsageError for a field of a record that is outside its range; None is accepted.

    ``integer_minima`` has the minimum of integer fields, ``decimal_maxima`` the maximum of fields
    that may be decimal and must not be negative.
    """
    for name, minimum in integer_minima.items():
        value = getattr(record, name)
        if value is not None and not (type(value) is int and value >= minimum):
            raise UsageError(f"{option(name, value)} is not a whole number from {minimum}")
    for name, maximum in decimal_maxima.items():
        value = getattr(record, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UsageError(f"{option(name, value)} is not a number")
        if not 0 <= value <= maximum:
            limit = f"from 0 to {maximum:g}" if isfinite(maximum) else "from 0"
            raise UsageError(f"{option(name, value)} is not a number {limit}")
