"""A search at a prompt: queries typed one after another, and the hits of the last one by number."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from bertcli.cli.display.screen import Draw, drawing
from bertcli.cli.display.search_tables import answer_view, hit_view
from bertcli.records.records import Record

if TYPE_CHECKING:
    from bertcli.vectors.search import Answer, Search

PROMPT = "query> "
USAGE = "type a query; a number shows that result in full; Ctrl-D ends"


def typed_lines() -> Iterator[str]:
    """Yield what is typed at the prompt, with history and editing where there is readline."""
    with suppress(ImportError):  # Windows has none, and edits lines itself
        import readline  # noqa: F401 - input() uses it once it is there
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    with suppress(EOFError):
        while True:
            if line := input(PROMPT).strip():
                yield line
    sys.stdout.write("\n")


def search_at_prompt(search: Search) -> None:
    """Answer queries until the end of the input."""
    with drawing() as draw:
        prompt = _Prompt(draw)
        for answers in search.answering(prompt.queries()):
            prompt.show(answers[0])


class _Prompt:
    """The hits of the last query, which a number names from 1."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.last: Answer | None = None

    def queries(self) -> Iterator[list[Record]]:
        """Yield queries; numbers of hits are answered here."""
        for line in typed_lines():
            hits = self.last.hits if self.last else []
            if line.isdecimal() and 1 <= int(line) <= len(hits):
                self.draw(hit_view(hits[int(line) - 1]))
            else:
                yield [Record(line)]

    def show(self, answer: Answer) -> None:
        """Draw an answer, and keep it for the numbers."""
        self.last = answer
        self.draw(answer_view(answer, numbered=True))
