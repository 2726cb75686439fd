"""What runs a model, and what it is given. Nothing here needs torch.

A runner takes texts as flat arrays of token ids and yields a step per batch; at the end it returns
a vector per text, or those of its tokens. Letters: `B` texts, `T` tokens of all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertcli.errors import BertcliError, UsageError, out_of_memory
from bertcli.inference.compute import Backend, Compute
from bertcli.inference.progress import Ran
from bertcli.models.config import BertConfig
from bertcli.tokenizing.columns import EXTRA, Encoded, TokenBlock
from bertcli.tokenizing.ragged import offsets_of, spans

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
    def of(cls, rows: Sequence[Encoded]) -> Tokens:
        """Return encoded texts without what the model does not need."""
        tokens = TokenBlock.of(rows, ("input_ids", "token_type_ids"))
        columns = tokens.columns
        return cls(
            np.asarray(tokens.ids, np.uint32),
            np.asarray(columns["token_type_ids"], np.uint8),
            np.asarray(tokens.offsets, np.int64),
            {
                name.removeprefix(EXTRA): np.asarray(columns[name], np.int64)
                for name in columns
                if name.startswith(EXTRA)
            },
        )

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

    def attended(self, texts: Tokens) -> Places:
        """Return how many tokens of each text others attend to, [B]: the first ones."""
        if self.idle is None:
            return texts.lengths
        rows = np.split(texts.ids != self.idle, texts.offsets[1:-1])
        return np.array([row.nonzero()[0].max(initial=-1) + 1 for row in rows])

    def places(self, texts: Tokens) -> Places:
        """Return which tokens are read, [n]; all where what is read is made of all."""
        if self.first:
            return texts.offsets[:-1]
        if self.token is None:
            return np.arange(len(texts.ids))
        return np.flatnonzero(texts.ids == self.token)

    def counts(self, texts: Tokens) -> list[int]:
        """Return how many tokens of each text are read."""
        if self.single:
            return [1] * len(texts)
        counts: list[int] = np.diff(np.searchsorted(self.places(texts), texts.offsets)).tolist()
        return counts


@dataclass(frozen=True)
class ModelSpec:
    """What is to be opened. The processes of a pool are sent it as it is."""

    folder: Path  # with config.json in it
    compute: Compute = field(default_factory=Compute)
    kind: str = "BertModel"  # the class, one of models.heads.ARCHITECTURES, or StaticEmbedding
    reading: Reading = field(default_factory=Reading)
    pooler: bool | None = None  # of a BertModel: None is yes if there are weights for it
    parse_special: bool = True
    extra: bool = False  # whether ids of extra embeddings come with the tokens
    one_device: bool = False  # whether there may be no process per device


# the model, packed states [T, D] of texts of these lengths (tokens that are read, so 1 each when
# `Reading.first`) -> what is kept of them, one array per text; arrays of the library that the model
# computes with, torch or NumPy. It is sent to other processes: a function or a frozen record.
Finish = Callable[[Any, Any, Sequence[int]], Any]

# What is kept of texts, in their order: [B, D...], or where they have several vectors, [L, D...]
# each. All float32, or wider.
Kept = np.ndarray | list[np.ndarray]

# Yields a step per batch, and returns what was kept of the texts.
Work = Generator[Ran, None, Kept]


# Waits for what is kept of a batch, and returns it.
Arriving = Callable[[], Kept]


class Device(ABC):
    """Whatever runs a batch: a model in this process, or another process that has one."""

    where: str = "cpu"  # for messages
    depth = 1  # batches that it holds: one runs, the next one is there when it is done

    @abstractmethod
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Run a batch, or begin to."""

    def batches(self, texts: Tokens, budget: int) -> Iterable[Places]:
        """Yield the numbers of the texts of each batch, of at most ``budget`` tokens."""
        return batches(texts.lengths, budget)

    def free(self) -> None:  # noqa: B027 - most keep nothing
        """Give back what is kept for later batches, as memory ran out."""

    def close(self) -> None:  # noqa: B027 - most end with the program
        """End now."""


class Engine(Device):
    """A model that is open in this process."""

    backend: Backend = "auto"
    config: BertConfig
    places: tuple[str, ...] = ("cpu",)  # all devices that are named for it
    threads = 1  # of all devices together
    budget = 0  # tokens of a batch
    # Whether a vector depends on its text alone, to the last bit: in any batch, order and number
    # of threads.
    same_bits = True

    @abstractmethod
    def facts(self, threads: int) -> dict[str, Any]:
        """Return what decides the numbers, where each device has so many threads; for manifests."""


@dataclass(eq=False)
class TextsOfRun:
    """The texts of a run, and what is kept of each, batch by batch."""

    texts: Tokens
    finish: Finish
    rows: list[Places] = field(default_factory=list)  # the numbers of the texts of each batch
    vectors: list[Kept] = field(default_factory=list)
    left: int = 0  # texts that are not done

    def keep(self, rows: Places, vectors: Kept) -> Ran:
        """Take in what is kept of the texts with these numbers, and return the step."""
        self.rows.append(rows)
        self.vectors.append(vectors)
        self.left -= len(rows)
        return Ran(len(rows), int(self.texts.lengths[rows].sum()))

    @property
    def kept(self) -> Kept:
        """What was kept, in the order of the texts."""
        if not self.rows:
            return []
        order = np.argsort(np.concatenate(self.rows))
        if isinstance(self.vectors[0], np.ndarray):
            return np.concatenate(self.vectors)[order]
        vectors = [*chain.from_iterable(self.vectors)]
        return [vectors[at] for at in order]


Batched = tuple[TextsOfRun, "Places"]  # texts of a run, by their numbers


class Runner:
    """Runs texts in batches on devices that hold the same model.

        texts -> batches -> as many at each device as it holds -> vectors, in the order of the texts

    What is in a batch is settled before a device takes it: so vectors do not depend on how fast
    devices are, nor on their number. ``budget``, the tokens of a batch, shrinks when memory runs
    out.
    """

    def __init__(self, devices: Sequence[Device], budget: int) -> None:
        self.devices, self.budget = devices, budget
        self.waiting: deque[Batched] = deque()
        self.held: deque[tuple[Device, Batched, Arriving]] = deque()
        self.lock = RLock()  # threads of a program may share a model

    @property
    def busy(self) -> bool:
        """Whether nothing is gained by giving it more work now."""
        return self.devices[0].depth == 1 or len(self.waiting) >= len(self.devices)

    def run(self, texts: Tokens, finish: Finish) -> Work:
        """Begin batches, as many as devices hold; what is returned runs and waits for all."""
        run = TextsOfRun(texts, finish, left=len(texts))
        with self.lock:
            parts = self.devices[0].batches(texts, self.budget)
            self.waiting.extend((run, rows) for rows in parts)
            if self.devices[0].depth > 1:
                self._hand_out()
        return self._wait(run)

    def _wait(self, run: TextsOfRun) -> Work:
        try:
            while run.left:
                with self.lock:
                    step = self._step()
                if step:
                    yield step
            return run.kept
        finally:
            if run.left:
                with self.lock:
                    self.waiting = deque(batch for batch in self.waiting if batch[0] is not run)

    def _step(self) -> Ran | None:
        """Wait for the batch that was begun first, of whatever run; or halve what is too large."""
        self._hand_out()
        if self.held:
            _, (run, rows), arriving = self.held.popleft()
            try:
                return run.keep(rows, arriving())
            except (RuntimeError, MemoryError) as failed:  # of another process
                if not out_of_memory(failed):
                    raise
                self.waiting.appendleft((run, rows))
        return Ran(warning=self._shrink()) if self.waiting else None

    def _hand_out(self) -> None:
        """Begin batches; one that does not fit into memory waits until there is more."""
        while self.waiting:
            load = [sum(device is at for at, *_ in self.held) for device in self.devices]
            device = self.devices[load.index(min(load))]
            if min(load) >= device.depth:
                return
            run, rows = batch = self.waiting.popleft()
            try:
                arriving = device.begin(run.texts.take(rows), run.finish)
            except (RuntimeError, MemoryError) as failed:
                if not out_of_memory(failed):
                    raise
                self.waiting.appendleft(batch)
                return
            self.held.append((device, batch, arriving))

    def _shrink(self) -> str:
        """Halve what waits after memory ran out, and return a warning.

        Raises BertcliError when one text alone is too much.
        """
        device = self.devices[0]
        if len(self.waiting[0][1]) == 1:
            raise BertcliError(
                f"out of memory on {device.where} with a batch of {self.budget} tokens",
                "use a smaller --max-length, another --device, or a smaller model",
            )
        self.budget //= 2
        device.free()
        self.waiting = deque(
            (run, rows[part])
            for run, rows in self.waiting
            for part in device.batches(run.texts.take(rows), self.budget)
        )
        return f"out of memory on {device.where}: batches of {self.budget} tokens from here on"

    def close(self) -> None:
        """End the processes of devices now, and not with the program."""
        for device in self.devices:
            device.close()


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
