"""How far a run of a model is: counts that grow with every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic


@dataclass
class Progress:
    """What this process has done. ``show`` is called when something has changed."""

    before: int = 0  # texts that an earlier run of the same file had done
    texts: int = 0
    tokens: int = 0
    written: int = 0  # rows of the output, which is made at the end
    total: int = 0  # rows that it will have
    hashed: tuple[int, int] = (0, 0)  # bytes of the input that were hashed, of how many
    show: Callable[[], None] = lambda: None
    start: float = field(default_factory=monotonic)

    def batch(self, texts: int, tokens: int) -> None:
        """Note that the model has run over so many more."""
        self.texts += texts
        self.tokens += tokens
        self.show()

    def rows(self, count: int) -> None:
        """Note that so many more rows are in the output."""
        self.written += count
        self.show()

    def hash(self, done: int, size: int) -> None:
        """Note how much of the input is hashed, before the model runs."""
        self.hashed = done, size
        self.show()

    @property
    def seconds(self) -> float:
        """The time since the run began."""
        return max(monotonic() - self.start, 1e-9)

    @property
    def rates(self) -> str:
        """Texts and tokens a second."""
        texts, tokens = self.texts / self.seconds, self.tokens / self.seconds
        return f"{texts:,.0f} texts/s  {tokens:,.0f} tokens/s"
