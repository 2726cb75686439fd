"""What runs a model, and what it is given. Nothing here needs torch.

A runner takes texts as flat arrays of token ids and yields a step per batch; at the end it returns
a vector per text, or those of its tokens. Letters: `B` texts, `T` tokens of all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bertcli.errors import BertcliError, UsageError, out_of_memory
from bertcli.inference.progress import Ran
from bertcli.tokenizing.columns import EXTRA, RaggedBatch
from bertcli.tokenizing.ragged import offsets_of, spans
from bertcli.tokenizing.run import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Places = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Tokens:
    """Some texts as the model takes them, one after the other."""

    ids: NDArray[np.uint32]  # [T]
    types: NDArray[np.uint8]  # [T]
    offsets: Places  # [B + 1]
    extra: Mapping[str, Places] = field(default_factory=dict)  # an extra embedding -> ids [T]

    @classmethod
    def of(cls, batch: Batch) -> Tokens:
        """Return encoded texts without what the model does not need."""
        if isinstance(batch, RaggedBatch):
            return cls(batch.ids, batch.column("token_type_ids").astype(np.uint8), batch.offsets)
        columns = [item.columns for item in batch]
        tokens = cls.listed(
            [row["input_ids"] for row in columns], [row["token_type_ids"] for row in columns]
        )
        names = [name for name in columns[0] if name.startswith(EXTRA)] if columns else []
        extra = {
            name.removeprefix(EXTRA): np.array([n for row in columns for n in row[name]], np.int64)
            for name in names
        }
        return replace(tokens, extra=extra)

    @classmethod
    def listed(
        cls, ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
    ) -> Tokens:
        """Return texts given as lists of ids, of token type 0 unless ``types`` are given."""
        offsets = offsets_of(np.array([len(row) for row in ids], np.int64))
        flat = np.fromiter(chain.from_iterable(ids), np.uint32, offsets[-1])
        if types is None:
            return cls(flat, np.zeros(len(flat), np.uint8), offsets)
        return cls(flat, np.fromiter(chain.from_iterable(types), np.uint8, len(flat)), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Places:
        """The number of tokens of each text [B]."""
        return np.diff(self.offsets)

    def take(self, rows: Places) -> Tokens:
        """Return some of the texts, in the order of their numbers [n]."""
        starts, lengths = self.offsets[rows], self.lengths[rows]
        ids: NDArray[np.uint32] = spans(self.ids, starts, lengths)
        types: NDArray[np.uint8] = spans(self.types, starts, lengths)
        extra = {name: spans(flat, starts, lengths) for name, flat in self.extra.items()}
        return Tokens(ids, types, offsets_of(lengths), extra)

    def distinct(self) -> tuple[Places, Places]:
        """Return the first of the texts that are equal [n], and for each text which of these [B].

        Both are in the order of the texts.
        """
        bounds, parts = self.offsets.tolist(), []
        types = [self.types] if self.types.any() else []
        flats: list[np.ndarray] = [self.ids, *types, *self.extra.values()]
        for flat in flats:
            raw, size = flat.tobytes(), flat.itemsize
            parts.append([raw[size * start : size * stop] for start, stop in pairwise(bounds)])
        keys = parts[0] if len(parts) == 1 else map(b"".join, zip(*parts, strict=True))
        first_of: dict[bytes, int] = {}
        which = np.array([first_of.setdefault(key, len(first_of)) for key in keys], np.int64)
        return np.unique(which, return_index=True)[1], which


class Terms(NamedTuple):
    """How the scores of words at a text's tokens become a weight for each word (SPLADE)."""

    how: str  # max or sum
    logarithms: int  # how often log(1 + x) is taken


@dataclass(frozen=True)
class Reading:
    """The layers to read, and how they are combined."""

    layers: tuple[int, ...] = (-1,)  # 0 is the embedding output, -1 the last layer
    combine: str = "mean"
    first: bool = False  # the first token of each text only, [CLS]
    mean: bool = False  # the mean of each text's tokens only
    token: int | None = None  # tokens with this id only, such as [MASK]
    terms: Terms | None = None  # a weight for each word, of the scores of all tokens
    idle: int | None = None  # tokens with this id at the end of a text: no other attends to them

    @property
    def single(self) -> bool:
        """Whether each text becomes one row."""
        return self.first or self.mean

    def indices(self, depth: int) -> list[int]:
        """Return the layers counted from 0, the embedding output, up to ``depth``."""
        indices = [layer if layer >= 0 else depth + 1 + layer for layer in self.layers]
        for asked, layer in zip(self.layers, indices, strict=True):
            if not 0 <= layer <= depth:
                raise UsageError(
                    f"layer {asked} not found (--layers)",
                    f"this model has layers 0 to {depth}; -1 is the last",
                )
        return indices

    def attended(self, texts: Tokens) -> NDArray[np.bool_]:
        """Return which tokens others attend to, [T]."""
        seen = np.ones(len(texts.ids), bool)
        if self.idle is None:
            return seen
        for start, end in pairwise(texts.offsets.tolist()):
            real = np.flatnonzero(texts.ids[start:end] != self.idle)
            seen[start + (real[-1] + 1 if len(real) else 0) : end] = False
        return seen

    def counts(self, texts: Tokens) -> list[int]:
        """Return how many tokens of each text are read."""
        if self.single:
            return [1] * len(texts)
        marked = np.ones(len(texts.ids), bool) if self.token is None else texts.ids == self.token
        counts: list[int] = np.diff(np.append(0, marked.cumsum())[texts.offsets]).tolist()
        return counts


# the model, packed states [T, D] of texts of these lengths (tokens that are read, so 1 each when
# `Reading.first`) -> what is kept of them, one array per text; arrays of the library that the model
# computes with, torch or NumPy. It is sent to other processes: a function or a frozen record.
Finish = Callable[[Any, Any, Sequence[int]], Any]

# What is kept of texts, in their order: [B, D...], or where they have several vectors, [L, D...]
# each. All float32, or wider.
Kept = np.ndarray | list[np.ndarray]

# Yields a step per batch, and returns what was kept of the texts.
Work = Generator[Ran, None, Kept]


class Runner(Protocol):
    """Whatever runs a model: this process, or several."""

    @property
    def busy(self) -> bool:
        """Whether nothing is gained by giving it more work now."""

    @property
    def threads(self) -> int:
        """The threads of each process."""

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Run the model over texts; equal ones once."""


class DistinctTexts:
    """The texts of a run, equal ones once, and what is kept of each, batch by batch."""

    def __init__(self, texts: Tokens) -> None:
        self.given = texts
        first, self.which = texts.distinct()
        self.all = len(first) == len(texts)
        self.texts = texts if self.all else texts.take(first)
        self.times = np.bincount(self.which, minlength=1)  # how often each was given
        self.array: np.ndarray | None = None
        self.lists: dict[int, np.ndarray] = {}
        self.left = 0  # batches that are not back
        self.rows = np.arange(len(self.texts))

    def divided(self, rows: Places, finish: Finish, budget: int) -> list[PendingBatch]:
        """Return the texts with these numbers in batches, which count until they are back."""
        parts = [rows[places] for places in batches(self.texts.lengths[rows], budget)]
        self.left += len(parts)
        return [PendingBatch(self.texts.take(part), part, finish, self) for part in parts]

    def keep(self, rows: Places, vectors: Kept) -> Ran:
        """Take in what is kept of a batch, the texts with these numbers, and return its step."""
        if isinstance(vectors, list):
            self.lists |= zip(rows.tolist(), vectors, strict=True)
        else:
            if self.array is None:
                self.array = np.empty((len(self.texts), *vectors.shape[1:]), np.float32)
            self.array[rows] = vectors
        times = self.times[rows]
        return Ran(int(times.sum()), int((times * self.texts.lengths[rows]).sum()))

    @property
    def kept(self) -> Kept:
        """What was kept of the texts that were given."""
        if self.array is None:
            return [self.lists[at] for at in self.which.tolist()]
        return self.array if self.all else self.array[self.which]


class PendingBatch(NamedTuple):
    """A batch, the numbers of its texts, what is kept of its states, and the texts it is of."""

    batch: Tokens
    rows: Places
    finish: Finish
    texts: DistinctTexts

    def take(self, vectors: Kept) -> Ran:
        """Take in what is kept of the batch, which is back, and return its step."""
        self.texts.left -= 1
        return self.texts.keep(self.rows, vectors)


def batches(lengths: Places, budget: int) -> Iterator[Places]:
    """Yield the numbers of texts, longest first, in batches of at most ``budget`` tokens.

    A batch counts as its longest text times their number, which bounds its memory with padding too.
    A text that is longer than the budget is a batch of its own.
    """
    order, at = np.argsort(-lengths, kind="stable"), 0
    while at < len(order):
        size = max(1, budget // max(1, int(lengths[order[at]])))
        yield order[at : at + size]
        at += size


class BatchRunner(ABC):
    """A runner in this process, which runs batches. ``budget`` shrinks when memory runs out."""

    budget: int  # tokens of a batch
    busy = True  # it works when its results are asked for

    @property
    @abstractmethod
    def where(self) -> str:
        """The device, for messages."""

    @abstractmethod
    def groups(self, texts: Tokens, budget: int) -> Iterator[tuple[Places, int]]:
        """Yield the numbers of texts that may share a batch, and the tokens that it may have."""

    @abstractmethod
    def vectors(self, batch: Tokens, finish: Finish) -> Kept:
        """Run one batch."""

    def counted(self, texts: Tokens) -> Places:
        """Return the tokens that each text counts as where batches are made."""
        return texts.lengths

    def free(self) -> None:  # noqa: B027 - most keep nothing
        """Give back what is kept for later batches, as memory ran out."""

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Run batches of similar length; one that does not fit into memory is tried in halves."""
        distinct = DistinctTexts(texts)
        lengths, shrunk = self.counted(distinct.texts), budget or self.budget
        for group, most in self.groups(distinct.texts, shrunk):
            waiting = deque(group[places] for places in batches(lengths[group], min(most, shrunk)))
            while waiting:
                picked = waiting.popleft()
                try:
                    vectors = self.vectors(distinct.texts.take(picked), finish)
                except (RuntimeError, MemoryError) as failed:
                    if not out_of_memory(failed):
                        raise
                    yield Ran(warning=self.shrink(len(picked)))
                    left = np.concatenate([picked, *waiting])
                    shrunk = self.budget
                    smaller = batches(lengths[left], min(most, shrunk))
                    waiting = deque(left[places] for places in smaller)
                    continue
                yield distinct.keep(picked, vectors)
        return distinct.kept

    def shrink(self, texts: int) -> str:
        """Halve the budget after memory ran out, and return a warning.

        Raises BertcliError when one text alone is too much.
        """
        if texts == 1:
            raise BertcliError(
                f"out of memory on {self.where} with a batch of {self.budget} tokens",
                "use a smaller --max-length, another --device, or a smaller model",
            )
        self.budget //= 2
        self.free()
        return f"out of memory on {self.where}: batches of {self.budget} tokens from here on"


def result_of(work: Work, warn: Callable[[str], None] = lambda message: None) -> Kept:
    """Run to the end and return the vectors, where nobody wants to know of the batches."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            vectors: Kept = end.value
            return vectors
        if step.warning:
            warn(step.warning)


def first_tokens(states: Any, lengths: Sequence[int]) -> Any:
    """Return the states of the first token of each text, [n, D], of [T, D]."""
    return states[[0, *accumulate(lengths)][: len(lengths)]]
