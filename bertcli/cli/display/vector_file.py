"""The output of `bertcli inspect FILE` for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.json import JSON
from rich.table import Table
from rich.text import Text

from bertcli.cli.display.model_report import NAMES, by, check, size, warnings
from bertcli.cli.display.screen import plain, screen_of_stdout
from bertcli.cli.display.tables import pairs
from bertcli.errors import counted
from bertcli.inspection import FileReport
from bertcli.inspection.verify import VerifyCheck

ROWS = 20  # arrays that are shown
OPTIONS = ("pooling", "max_length", "normalize")  # of embed, shown of a fingerprint; --json has all


def show_vectors(report: FileReport, verified: VerifyCheck | None, *, whole: bool) -> None:
    """Show a file of vectors and its check; `whole`: all of its arrays, however many."""
    with screen_of_stdout() as screen:
        vectors(screen, report, whole=whole)
        if verified:
            check(screen, verified)


def vectors(screen: Console, report: FileReport, *, whole: bool) -> None:
    """Show a file of vectors; `whole`: all of its arrays, however many."""
    screen.print(plain(str(report.path), "bold"), soft_wrap=True)
    records = report.fields.records
    summary = [report.format, size(report.nbytes)]
    summary += [counted(records, "record")] if records is not None else []
    screen.print(Text(", ".join(summary), "dim"))
    if report.fields.kinds:
        kinds = ", ".join(f"{name} ({kind})" for name, kind in report.fields.kinds.items())
        screen.print(plain(f"fields: {kinds}"))
    screen.print()
    shown = report.arrays if whole else report.arrays[:ROWS]
    if len(report.arrays) == 1:
        screen.print(pairs(_array(report.arrays[0]), width=NAMES))
    elif shown:
        screen.print(_arrays(shown))
    if left := len(report.arrays) - len(shown):
        screen.print(Text(f"and {left} more: --tensors shows all", "dim"))
    if report.manifest is not None:
        facts = ((name, _brief(value)) for name, value in _facts(report.manifest))
        screen.print(Text("\nmanifest", "bold"))
        screen.print(pairs(facts, width=NAMES))
    warnings(screen, report.warnings)


def _array(array: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if array["name"]:
        yield "name", array["name"]
    yield "shape", f"{by(array['shape'])}  {array['dtype']}"
    if norm := array["norm"]:
        norms = (f"{name} {norm[name]:.6g}" for name in ("min", "mean", "max"))
        yield "norms", f"{'  '.join(norms)}  of {counted(array['vectors'], 'vector')}"
    if array["min"] is not None:
        values = {name: array[name] for name in ("min", "mean", "max") if array[name] is not None}
        yield "values", "  ".join(f"{name} {value:.6g}" for name, value in values.items())
    yield "not finite", f"{array['nan']:,} NaN, {array['inf']:,} infinite"


def _arrays(arrays: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", overflow="fold")
    for name in ("type", "shape", "norms", "NaN", "inf"):
        table.add_column(name, justify="left" if name == "type" else "right")
    for array in arrays:
        norm = array["norm"]
        norms = f"{norm['min']:.4g} .. {norm['max']:.4g}" if norm else ""
        shape, bad = by(array["shape"]), (f"{array['nan']:,}", f"{array['inf']:,}")
        table.add_row(array["name"], array["dtype"], shape, norms, *bad)
    return table


def _facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is shown of a manifest: of its fingerprint the model, some options, the hash."""
    fingerprint = manifest.get("fingerprint")
    if isinstance(fingerprint, dict):
        options, weights = fingerprint.get("options"), fingerprint.get("weights")
        if "model" in fingerprint:
            yield "model", fingerprint["model"]
        if isinstance(options, dict):
            yield from ((name, options[name]) for name in OPTIONS if name in options)
        if isinstance(weights, dict):
            yield "weights", ", ".join(f"{name} {str(item)[:12]}" for name, item in weights.items())
    for name, value in manifest.items():
        if name == "inputs" and isinstance(value, list):
            value = ", ".join(_input(item) for item in value if isinstance(item, dict))
        if name != "fingerprint" or not isinstance(value, dict):
            yield name, value


def _input(described: Mapping[str, Any]) -> str:
    digest = described.get("sha256")
    return f"{described.get('name')} {str(digest)[:12] if digest else '(read once)'}"


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else JSON.from_data(value, indent=None).text.plain
    return text if len(text) <= 300 else f"{text[:297]}..."
