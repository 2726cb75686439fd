"""What a shell completes: models, devices, fields of the files given. No model is loaded."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from bertcli.hub import known_models

INPUTS = ("input", "pairs", "corpus", "files", "examples", "file")  # parameters that name files


def complete_model(incomplete: str) -> list[str]:
    """Return the models that are installed or in the cache."""
    return [name for name in known_models() if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """Return the devices that seem to be here, as far as that is known without torch."""
    before, comma, last = incomplete.rpartition(",")
    names = sorted(_devices()) if comma else ["auto", "cpu", *sorted(_devices())]
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _devices() -> Iterator[str]:
    if platform.system() == "Darwin":
        yield "mps"
    gpus = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    yield from (f"cuda:{number}" for number in gpus)
    yield from ("cuda", "cuda:all")[: len(gpus)]


def complete_field(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the fields of the first file that was given; names may be joined by commas."""
    from bertcli.errors import BertcliError
    from bertcli.records.formats import field_names
    from bertcli.records.source import Source, input_files

    before, comma, last = incomplete.rpartition(",")
    names: dict[str, None] = {}
    try:
        source = Source(format=ctx.params.get("input_format") or "auto")
        for path in input_files(_given(ctx.params), source)[:1]:
            names.update(dict.fromkeys(field_names(path, source)))
    except BertcliError:
        return []
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def _given(params: dict[str, Any]) -> Iterator[str]:
    """Yield the files that were named before."""
    for name in INPUTS:
        value = params.get(name) or ()
        yield from (path for path in ([value] if isinstance(value, str) else value) if path != "-")
