"""Rich, safe for untrusted text: no markup, no escape codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from bertcli.files.printable import printable
from bertcli.files.writers import open_output

if TYPE_CHECKING:
    pass

BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")
PIPED = 100  # columns, if the width is unknown

Draw = Callable[[RenderableType], None]


class Screen(Console):
    """A console that shows every text as it is: `[bold]` in brackets, and U+FFFD for ESC.

    Cells and titles given as str are filtered before they are measured; what comes in a Text is
    filtered by `plain` then, and as a last resort when it is drawn.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(
            stderr=stderr, width=width, markup=False, emoji=False, highlight=False, soft_wrap=False
        )
        if not self.width:  # COLUMNS=0, as some programs tell those that they start
            self.width = PIPED

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text without control characters, in one line."""
        return super().render_str(printable(in_one_line(text)), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is drawn, without control characters in any text."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not control and not text.isprintable():  # "\n" ends the lines that Rich has laid out
                text = "\n".join(map(printable, text.split("\n")))
            yield Segment(text, style, control)


def plain(text: str, style: str = "") -> Text:
    """Return text from outside, filtered, in a style."""
    return Text(printable(in_one_line(text)), style)


def in_one_line(text: str) -> str:
    """Return a text with spaces for line feeds and tabs."""
    return BREAKS.sub(" ", text)


@contextmanager
def drawing() -> Iterator[Draw]:
    """Yield what draws on stdout; a full disk or a closed pipe ends it like any other format."""
    screen = Screen()
    with open_output(None, drawn=True) as output:

        def draw(picture: RenderableType) -> None:
            with screen.capture() as drawn:
                screen.print(picture)
            output.write(drawn.get().encode(screen.encoding, "replace"))
            output.flush()

        yield draw


def show(*pictures: RenderableType) -> None:
    """Draw on stdout."""
    with drawing() as draw:
        for picture in pictures:
            draw(picture)


@contextmanager
def screen_of_stdout() -> Iterator[Screen]:
    """Yield what prints to stdout; a reader who has had enough ends the command in silence."""
    with open_output(None, drawn=True):
        told = sys.stdout.isatty() or "COLUMNS" in os.environ
        yield Screen(width=None if told else PIPED)
