"""What runs a model, and what it is given. Nothing here needs torch.

A runner takes texts as token ids and yields a step per batch; at the end it returns an array per
text: its vector, or those of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bertcli.errors import UsageError
from bertcli.inference.progress import Ran
from bertcli.tokenizing.columns import Encoded

if TYPE_CHECKING:
    import numpy as np


class Tokens(NamedTuple):
    """One text as the model takes it."""

    ids: tuple[int, ...]
    types: tuple[int, ...]

    @classmethod
    def of(cls, item: Encoded) -> Tokens:
        """Return an encoded text without what the model does not need."""
        return cls(tuple(item.columns["input_ids"]), tuple(item.columns["token_type_ids"]))


@dataclass(frozen=True)
class Reading:
    """The layers to read, and how they are combined."""

    layers: tuple[int, ...] = (-1,)  # 0 is the embedding output, -1 the last layer
    combine: str = "mean"
    first: bool = False  # the first token of each text only, [CLS]

    def indices(self, depth: int) -> list[int]:
        """Return the layers counted from 0, the embedding output, up to ``depth``."""
        found = [layer if layer >= 0 else depth + 1 + layer for layer in self.layers]
        for asked, layer in zip(self.layers, found, strict=True):
            if not 0 <= layer <= depth:
                raise UsageError(
                    f"layer {asked} not found (--layers)",
                    f"this model has layers 0 to {depth}; -1 is the last",
                )
        return found


# the model, packed states [T, D] of texts of these lengths, 1 each when `Reading.first` -> what is
# kept of them, one array per text; arrays of the library that the model computes with, torch or
# NumPy. It is sent to other processes: a function or a frozen record.
Finish = Callable[[Any, Any, Sequence[int]], Any]

# Yields a step per batch, and returns what was kept of each text, in order.
Work = Generator[Ran, None, "list[np.ndarray]"]


class Runner(Protocol):
    """Whatever runs a model: this process, or several."""

    @property
    def busy(self) -> bool:
        """Whether nothing is gained by giving it more work now."""

    @property
    def threads(self) -> int:
        """The threads of each process."""

    def run(self, texts: Sequence[Tokens], finish: Finish, budget: int | None = None) -> Work:
        """Run the model over texts; equal ones once. The arrays are float32."""


def counted(batch: Sequence[Tokens], counts: Mapping[Tokens, int]) -> Ran:
    """Return the step of a batch; ``counts`` says how often each of its texts was given."""
    texts = sum(counts[text] for text in batch)
    return Ran(texts, sum(counts[text] * len(text.ids) for text in batch))


def result_of(work: Work, warn: Callable[[str], None] = lambda message: None) -> list[np.ndarray]:
    """Run to the end and return the vectors, where nobody wants to know of the batches."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            found: list[np.ndarray] = end.value
            return found
        if step.warning:
            warn(step.warning)


def first_tokens(states: Any, lengths: Sequence[int]) -> Any:
    """Return the states of the first token of each text, [n, D], of [T, D]."""
    return states[[0, *accumulate(lengths)][: len(lengths)]]
