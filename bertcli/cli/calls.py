"""`bertcli.train` and `bertcli.evaluate`: the commands, with their options as keywords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertcli.cli.app import USAGE, build, explained
from bertcli.errors import UsageError, called_from_python
from bertcli.files.typed_json import parse

OFF = {"frozen": "full"}  # flags of which False has a name of its own


@called_from_python()
def train(file: str | Path, output: str | Path, **options: Any) -> None:
    """Train a model on a file of examples, into a folder.

    ``options`` are those of `bertcli train` with underscores: ``model``, ``epochs``, ``frozen`` and
    so on. Progress and notes go to stderr, unless ``quiet``.
    """
    _run("train", file, {"output": output, **options})


@called_from_python()
def evaluate(file: str | Path, model: str | Path, **options: Any) -> dict[str, Any]:
    """Return the metrics of a model on a file of examples, with their 95 % intervals.

    ``options`` are those of `bertcli evaluate` with underscores.
    """
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        _run("evaluate", file, {"model": model, "output": report, **options})
        metrics: dict[str, Any] = parse(report.read_text("utf-8"))
        return metrics


def _run(command: str, file: str | Path, options: Mapping[str, Any]) -> None:
    argv = [command, *_arguments(options), "--", str(file)]
    try:
        build((command,))(args=argv, prog_name="bertcli", standalone_mode=False)
    except USAGE as wrong:
        raise UsageError(*explained(wrong)) from None


def _arguments(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        match value:
            case None:
                pass
            case True:
                yield option
            case False:
                yield from [f"--{OFF[name]}"] if name in OFF else []
            case Mapping():
                yield from (f"{option}={key}={field}" for key, field in value.items())
            case list() | tuple():
                yield from (f"{option}={item}" for item in value)
            case _:
                yield f"{option}={value}"
