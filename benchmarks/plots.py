"""Pictures of the results, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw what the sections ``lengths`` and ``size`` found; return the files, PNG and SVG."""
    if find_spec("matplotlib") is None:
        return []
    made: list[Path] = []
    if found := results.get("lengths"):
        axes = ("tokens of a text", "tokens per second")
        made += _plot(folder / "lengths", found["tokens"], found["rates"], axes)
    if found := results.get("size"):
        for key, label in (("milliseconds", "ms a text"), ("megabytes", "peak memory, MB")):
            lines = {name: one[key] for name, one in found["contestants"].items()}
            made += _plot(folder / f"size-{key}", found["texts"], lines, ("texts", label))
    return made


def _plot(
    stem: Path, across: list[float], lines: Mapping[str, list[float]], axes: tuple[str, str]
) -> list[Path]:
    from matplotlib.figure import Figure  # no pyplot: nothing looks for a display

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    plot = figure.add_subplot(xlabel=axes[0], ylabel=axes[1], xscale="log")
    for name, values in lines.items():
        width = 2.5 if name.startswith("bertcli") else 1.2
        plot.plot(across, values, marker="o", linewidth=width, label=name)
    plot.set_xticks(across, [f"{at:,}" for at in across])
    plot.minorticks_off()
    plot.set_ylim(bottom=0)
    plot.grid(alpha=0.3)
    plot.legend()
    files = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
