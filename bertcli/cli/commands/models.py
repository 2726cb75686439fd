"""`bertcli models`: what is installed or cached on this machine."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from bertcli.cli.options.common import ConsoleOptions, RowOutput


def models(output: RowOutput, messages: ConsoleOptions) -> None:
    """List models on this machine: installed, and in the hub's cache.

    $ bertcli models
    """
    from bertcli.files.tables import TableHeader
    from bertcli.inspection.folder import ModelFacts

    form, rows = output.form(), list(_rows())
    if form == "table":
        from bertcli.cli.display.tables import show_models

        show_models(rows)
        return
    names = ("model", "state", "bytes", "path", *asdict(ModelFacts()))
    with output.open(form) as write:
        write(rows or [TableHeader(dict.fromkeys(names, ""))])


def _rows() -> Iterator[dict[str, Any]]:
    from bertcli.hub.finding import stored_models
    from bertcli.inspection.folder import ModelFacts, facts_of

    for model in stored_models():
        facts = facts_of(model.folder) if model.folder else ModelFacts(problem="no files")
        row = {"model": model.name, "state": model.state, "bytes": model.size}
        yield row | {"path": str(model.path)} | asdict(facts)
