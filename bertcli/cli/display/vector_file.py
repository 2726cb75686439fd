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
    said = [report.format, size(report.nbytes)]
    said += [counted(records, "record")] if records is not None else []
    screen.print(Text(", ".join(said), "dim"))
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
        facts = ((name, _brief(one)) for name, one in _facts(report.manifest))
        screen.print(Text("\nmanifest", "bold"))
        screen.print(pairs(facts, width=NAMES))
    warnings(screen, report.warnings)


def _array(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if found["name"]:
        yield "name", found["name"]
    yield "shape", f"{by(found['shape'])}  {found['dtype']}"
    if norm := found["norm"]:
        each = (f"{name} {norm[name]:.6g}" for name in ("min", "mean", "max"))
        yield "norms", f"{'  '.join(each)}  of {counted(found['vectors'], 'vector')}"
    if found["min"] is not None:
        known = {name: found[name] for name in ("min", "mean", "max") if found[name] is not None}
        yield "values", "  ".join(f"{name} {value:.6g}" for name, value in known.items())
    yield "not finite", f"{found['nan']:,} NaN, {found['inf']:,} infinite"


def _arrays(found: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("name", overflow="fold")
    for name in ("type", "shape", "norms", "NaN", "inf"):
        table.add_column(name, justify="left" if name == "type" else "right")
    for one in found:
        norm = one["norm"]
        norms = f"{norm['min']:.4g} .. {norm['max']:.4g}" if norm else ""
        shape, bad = by(one["shape"]), (f"{one['nan']:,}", f"{one['inf']:,}")
        table.add_row(one["name"], one["dtype"], shape, norms, *bad)
    return table


def _facts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what is shown of a manifest: of its fingerprint the model, some options, the hash."""
    made = manifest.get("fingerprint")
    if isinstance(made, dict):
        options, weights = made.get("options"), made.get("weights")
        if "model" in made:
            yield "model", made["model"]
        if isinstance(options, dict):
            yield from ((name, options[name]) for name in OPTIONS if name in options)
        if isinstance(weights, dict):
            yield "weights", ", ".join(f"{name} {str(one)[:12]}" for name, one in weights.items())
    for name, value in manifest.items():
        if name == "inputs" and isinstance(value, list):
            value = ", ".join(_input(one) for one in value if isinstance(one, dict))
        if name != "fingerprint" or not isinstance(value, dict):
            yield name, value


def _input(described: Mapping[str, Any]) -> str:
    digest = described.get("sha256")
    return f"{described.get('name')} {str(digest)[:12] if digest else '(read once)'}"


def _brief(value: Any) -> str:
    text = value if isinstance(value, str) else JSON.from_data(value, indent=None).text.plain
    return text if len(text) <= 300 else f"{text[:297]}..."
