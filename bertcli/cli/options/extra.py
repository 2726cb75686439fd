"""The option --extra: embeddings of ids that records give for their words."""

from collections.abc import Sequence
from typing import Any

import typer

from bertcli.errors import UsageError


def extra_option(about: str) -> Any:
    """Return an option that takes NAME=FIELD, see `extra_fields`."""
    return typer.Option(metavar="NAME=FIELD", help=f"{about}; repeatable.")


def extra_fields(given: Sequence[str] | None) -> dict[str, str]:
    """Return extra embedding -> field of its ids, of options NAME=FIELD.

    Raises UsageError for a name that cannot be one, or that is given twice.
    """
    found: dict[str, str] = {}
    for text in given or ():
        name, _, field = text.partition("=")
        if not (name.isidentifier() and field):
            raise UsageError(
                f"--extra {text}: NAME=FIELD expected", "for example --extra emotion=emotion_ids"
            )
        if name in found:
            raise UsageError("--extra names an embedding twice")
        found[name] = field
    return found
