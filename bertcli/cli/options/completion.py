"""Shell completion of model names, and of the field names of a file given earlier."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

from bertcli.model_folder.hub_cache import cached_models, known_models

# Parameters that take input files, corpora first.
FILE_PARAMETERS = ("corpus", "files", "file", "input", "pairs", "queries")


def complete_choices(*names: str) -> Callable[[str], list[str]]:
    """Return a completion function for an option with these common values."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of an installed or cached model."""
    return complete_choices(*known_models())(incomplete)


def complete_cached(incomplete: str) -> list[str]:
    """Complete the name of a cached model."""
    return complete_choices(*cached_models())(incomplete)


def complete_field(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a field name, or a comma-separated list, from the first file given earlier."""
    options = dict(context.params)
    for name in {"file", "files"} & options.keys():
        # At an option without a value, Typer has not yet assigned arguments to parameters.
        options[name] = options[name] or context.args
    return _complete_from_file(_first_file(options, FILE_PARAMETERS), options, incomplete)


def complete_query_field(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a field name of the query file, see `complete_field`."""
    return _complete_from_file(_first_file(context.params, ("input",)), context.params, incomplete)


def _complete_from_file(file: str, options: Mapping[str, Any], incomplete: str) -> list[str]:
    """Complete a field name of a file. Returns no names for stdin, pipes and unreadable files."""
    from bertcli.errors import BertcliError
    from bertcli.records.field_names import MAX_BYTES, field_names
    from bertcli.records.input import Input, input_files

    complete_names, comma, prefix = incomplete.rpartition(",")
    reading = {
        name: options[name] for name in ("delimiter", "encoding") if options.get(name) is not None
    }
    try:
        source = Input.of(
            format=options.get("input_format") or "auto",
            max_record_bytes=MAX_BYTES,
            offline=True,  # a key press downloads nothing
            **reading,
        )
        path = next(iter(input_files([file], source)))
    except (BertcliError, OSError):
        return []
    if not os.path.isfile(path):
        return []
    names = field_names(path, source)
    return [f"{complete_names}{comma}{name}" for name in names if name.startswith(prefix)]


def _first_file(options: Mapping[str, Any], parameters: Iterable[str]) -> str:
    """Return the first file in these parameters, after shell expansion; "-" if there is none."""
    for parameter in parameters:
        value = options.get(parameter)
        paths = [value] if isinstance(value, str) else value
        if paths:
            return os.path.expandvars(os.path.expanduser(paths[0]))
    return "-"
