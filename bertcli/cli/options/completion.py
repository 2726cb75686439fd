"""What the shell completes: models, and the fields of files that were given before."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from bertcli.model_folder.hub_cache import cached_models, known_models

# Parameters that name files of records, those of a corpus first.
FILE_PARAMETERS = ("corpus", "files", "file", "input", "pairs", "queries")


def completed(*names: str) -> Callable[[str], list[str]]:
    """Return what completes an option whose value is mostly one of these."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str]:
    """Return the models that are installed or in the cache."""
    return completed(*known_models())(incomplete)


def complete_cached(incomplete: str) -> list[str]:
    """Return the models in the cache."""
    return completed(*cached_models())(incomplete)


def complete_field(context: typer.Context, incomplete: str) -> list[str]:
    """Return the fields of the first file that was given before; several are joined by commas."""
    options = dict(context.params)
    for name in {"file", "files"} & options.keys():
        # The parser stops at an option without a value, before it gives arguments a name.
        options[name] = options[name] or context.args
    return _fields_of(_first_file(options, FILE_PARAMETERS), options, incomplete)


def complete_query_field(context: typer.Context, incomplete: str) -> list[str]:
    """Return the fields of the file of queries, see `complete_field`."""
    return _fields_of(_first_file(context.params, ("input",)), context.params, incomplete)


def _fields_of(file: str, options: Mapping[str, Any], incomplete: str) -> list[str]:
    """Return completions; none for stdin, pipes, and what cannot be read."""
    from bertcli.errors import BertcliError
    from bertcli.records.field_names import MAX_BYTES, field_names
    from bertcli.records.input import Input, input_files

    before, comma, last = incomplete.rpartition(",")
    given = {
        name: options[name] for name in ("delimiter", "encoding") if options.get(name) is not None
    }
    try:
        source = Input.of(
            format=options.get("input_format") or "auto", max_record_bytes=MAX_BYTES, **given
        )
        path = next(iter(input_files([file], source)))
    except (BertcliError, OSError):
        return []
    if not os.path.isfile(path):
        return []
    names = field_names(path, source)
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _first_file(options: Mapping[str, Any], parameters: Iterable[str]) -> str:
    """Return the first file of the parameters as the shell would expand it, or else stdin."""
    for parameter in parameters:
        value = options.get(parameter)
        paths = [value] if isinstance(value, str) else value
        if paths:
            return os.path.expandvars(os.path.expanduser(paths[0]))
    return "-"
