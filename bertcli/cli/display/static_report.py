"""What `bertcli inspect` shows of a table of token vectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.json import JSON

from bertcli.cli.display.model_report import (
    NAMES,
    checks,
    heading,
    sentence_facts,
    size,
    tensors,
    tokenizer,
    tokenizer_facts,
    warnings,
)
from bertcli.cli.display.screen import screen_of_stdout
from bertcli.cli.display.tables import pairs
from bertcli.inspection import tokenizer_details
from bertcli.inspection.folder import tensor_row
from bertcli.inspection.static_report import StaticReport
from bertcli.inspection.verify import verify_static

if TYPE_CHECKING:
    from bertcli.cli.options.inspect import ViewOptions


def show_static(report: StaticReport, views: ViewOptions) -> bool:
    """Show the views of a table, and return whether all requested checks passed."""
    with screen_of_stdout() as screen:
        if not views.some():
            _summary(screen, report)
        if views.config:
            screen.print(JSON.from_data(report.config), soft_wrap=True)
        if views.tokenizer:
            tokenizer(screen, tokenizer_details(report.folder.path))
        if views.tensors:
            tensors(screen, [tensor_row(one) for one in report.tensors])
        return checks(screen, verify_static(report)) if views.verify else True


def _summary(screen: Console, report: StaticReport) -> None:
    heading(screen, report.folder)
    screen.print(pairs(_facts(report), width=NAMES))
    warnings(screen, report.warnings)


def _facts(report: StaticReport) -> Iterator[tuple[str, Any]]:
    yield "architecture", f"a table of token vectors, as {report.sentence.static} writes it"
    yield "", f"{report.tokens:,} tokens, {report.width} dimensions, no encoder"
    names = ", ".join(f"{one.name} {one.dtype}" for one in report.tensors)
    total = size(sum(path.stat().st_size for path in report.weights.files))
    yield "weights", f"{report.weights.files[0].name}, {total}, {names}"
    yield from tokenizer_facts(report.tokenizer)
    yield from sentence_facts(report.sentence)
