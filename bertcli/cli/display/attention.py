"""An attention map on the terminal: rows look at columns, in colours and per cent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.text import Text

from bertcli.files.printable import printable
from bertcli.plots.attention_maps import AttentionMaps
from bertcli.plots.drawing import colour, hexadecimal, readable_on

LABEL = 14  # characters of a token beside its row
HIGH = 10  # and above its column
SHADES = " ░▒▓█"  # where there are no colours
SENTENCES = ("cyan", "yellow")


def attention_view(screen: Console, maps: AttentionMaps) -> None:
    """Print a map for each layer: that of the only head, or the mean of all that were chosen."""
    for layer, heads in maps.maps.items():
        count = maps.averaged.get(layer, len(heads))
        which = f"mean of {count} heads" if count > 1 else f"head {next(iter(heads))}"
        title = Text.assemble(
            (f"layer {layer}", "bold"), f" (of 0 to {maps.layers - 1}), {which}: "
        )
        screen.print(title.append("each row looks at the columns", "dim"))
        for line in _lines(screen, maps, maps.mean[layer]):
            screen.print(line, no_wrap=True, overflow="crop")
        if (fits := _measure(screen, maps).fits) < len(maps.tokens):
            note = f"the first {fits} of {len(maps.tokens)} tokens: -o attention.html shows all"
            screen.print(Text(note, "dim"))


class _Measure(NamedTuple):
    """Widths in characters, and how many tokens there is room for."""

    label: int
    cell: int
    fits: int


def _measure(screen: Console, maps: AttentionMaps) -> _Measure:
    label = min(LABEL, max(map(cell_len, maps.tokens)))
    room, length = max(screen.width - label - 2, 1), len(maps.tokens)
    cell = next((wide for wide in (3, 2) if wide * length <= room), 1)
    return _Measure(label, cell, min(length, room // cell))


def _lines(screen: Console, maps: AttentionMaps, weights: Any) -> Iterator[Text]:
    """Yield the header, a line for each token, and what the colours mean."""
    label, cell, fits = _measure(screen, maps)
    coloured = screen.color_system is not None and not screen.no_color
    high = min(HIGH, max(map(len, maps.tokens[:fits])))
    for level in range(high):
        line = Text(" " * (label + 2))
        for at in range(fits):
            token = _short(maps.tokens[at], high).rjust(high)
            line.append(_right(token[level], cell), _tone(maps, at))
        yield line
    for row in range(fits):
        token = _right(_short(maps.tokens[row], label), label)
        line = Text.assemble((token, _tone(maps, row)))
        line.append(" ▏", SENTENCES[maps.sentences[row] % 2])
        for at in range(fits):
            _add_cell(line, float(weights[row, at]), cell, coloured)
        yield line
    yield _legend(label, cell, coloured)


def _add_cell(line: Text, weight: float, cell: int, coloured: bool) -> None:
    percent = round(100 * weight)
    shown = f"{percent or '':>{cell}}" if cell > 2 else ""
    if coloured:
        back = colour(weight)
        style = Style(color=hexadecimal(readable_on(back)), bgcolor=hexadecimal(back))
        line.append(shown.rjust(cell), style)
    else:
        shade = SHADES[round(weight**0.5 * (len(SHADES) - 1))]
        line.append(shown if cell > 2 else shade * cell)


def _legend(label: int, cell: int, coloured: bool) -> Text:
    line = Text(" " * (label + 2))
    if cell > 2 and not coloured:
        return line.append("per cent; blank is less than half of one", "dim")
    for weight in (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0):
        _add_cell(line, weight, 2, coloured)
        line.append(f" {weight:.0%}  ", "dim")
    return line


def _tone(maps: AttentionMaps, at: int) -> str:
    return "dim" if maps.special[at] else SENTENCES[maps.sentences[at] % 2]


def _short(token: str, most: int) -> str:
    token = printable(token)
    return token if len(token) <= most else token[: most - 1] + "…"


def _right(text: str, width: int) -> str:
    """Move a text to the right of its place; some characters take two columns."""
    while cell_len(text) > width:
        text = "·" if len(text) == 1 else text[1:]
    return " " * (width - cell_len(text)) + text
