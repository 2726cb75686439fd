"""What runs a model, and what it is given. Nothing here needs torch.

A runner takes texts as flat arrays of token ids and yields a step per batch; at the end it returns
a vector per text, or those of its tokens. Letters: `B` texts, `T` tokens of all of them.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from bertcli.engines.compute import Backend, Compute
from bertcli.errors import LOG, BertcliError, UsageError, option, out_of_memory
from bertcli.io.progress import Ran
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.tokenizing.batch import EXTRA, Encoded, TokenBatch
from bertcli.tokenizing.extra_columns import ExtraColumns
from bertcli.tokenizing.ragged import offsets_of, spans

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from numpy.typing import NDArray

    from bertcli.tokenizing.tokenizer import Tokenizer

    Places = NDArray[np.int64]

COLUMNS = ("input_ids", "token_type_ids")  # that every model is given


@dataclass(frozen=True, eq=False)
class Tokens:
    """Some texts as the model takes them, one after the other."""

    columns: NDArray[np.uint32]  # [T, n]: ids, token types, ids of each extra embedding
    offsets: Places  # [B + 1]
    extra: Sequence[str] = ()  # the extra embeddings
    # How many tokens of each text others attend to [B], the first ones; None where they are all.
    attended: Places | None = None

    @classmethod
    def of(cls, rows: Sequence[Encoded]) -> Tokens:
        """Return encoded texts without what the model does not need."""
        tokens = TokenBatch.of(rows, COLUMNS)
        extra = [name for name in tokens.columns if name.startswith(EXTRA)]
        columns = [np.asarray(tokens.columns[name], np.uint32) for name in (*COLUMNS, *extra)]
        names = [name.removeprefix(EXTRA) for name in extra]
        return cls(np.stack(columns, 1), np.asarray(tokens.offsets, np.int64), names)

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The token ids [T]."""
        return self.columns[:, 0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Places:
        """The number of tokens of each text [B]."""
        return np.diff(self.offsets)

    @property
    def places(self) -> Places:
        """The place of each token in its text [T]."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, rows: Places) -> Tokens:
        """Return some of the texts, in the order of their numbers [n]."""
        starts = self.offsets[rows]
        lengths = self.lengths[rows]
        attended = None if self.attended is None else self.attended[rows]
        columns = spans(self.columns, starts, lengths)
        return Tokens(columns, offsets_of(lengths), self.extra, attended)

    @property
    def all_attended(self) -> bool:
        """True if tokens attend to all others of their text."""
        return self.attended is None or np.array_equal(self.attended, self.lengths)


@dataclass(frozen=True)
class Reading:
    """The layers to read, and how they are combined."""

    layers: tuple[int, ...] = (-1,)  # 0 is the embedding output, -1 the last layer
    combine: str = "mean"
    first: bool = False  # the first token of each text only, [CLS]
    mean: bool = False  # the mean of each text's tokens only
    token: int | None = None  # tokens with this id only, such as [MASK]

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
                    f"layer {asked} not found ({option('layers')})",
                    f"this model has layers 0 to {depth}; -1 is the last",
                )
        return indices

    def padded(self, texts: Tokens, longest: int) -> tuple[Places, Places, NDArray[np.bool_]]:
        """Return ids, types and extra ids in rows of one length, [n, B, L], and what is in them.

        That is which of B * L places are tokens, [T], and to which others attend, [B, L].
        """
        places = np.arange(longest)
        real = places < texts.lengths[:, None]
        attended = real if texts.attended is None else places < texts.attended[:, None]
        rows = np.zeros((texts.columns.shape[1], real.size), np.int64)
        tokens = np.flatnonzero(real)
        rows[:, tokens] = texts.columns.T
        return rows.reshape(-1, *real.shape), tokens, attended

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
        counts = texts.lengths
        if self.token is not None:
            counts = np.diff(np.searchsorted(self.places(texts), texts.offsets))
        return counts.tolist()


@dataclass(frozen=True)
class ModelSpec:
    """What is to be opened."""

    folder: ModelFolder  # with config.json in it
    compute: Compute = field(default_factory=Compute)
    kind: str = "BertModel"  # the class, one of models.heads.ARCHITECTURES, or StaticEmbedding
    reading: Reading = field(default_factory=Reading)
    pooler: bool = False  # whether that of a BertModel is needed


# the model, packed states [T, D] of texts of these lengths (tokens that are read, so 1 each when
# `Reading.first`) -> what is kept of them, one array per text; arrays of the library that the model
# computes with, torch or NumPy.
Finish = Callable[[Any, Any, Sequence[int]], Any]

# What is kept of texts, in their order: [B, D...], or where they have several vectors, [L, D...]
# each. All float32, or wider.
Kept = np.ndarray | list[np.ndarray]

# Yields a step per batch, and returns what was kept of the texts.
Work = Generator[Ran, None, Kept]


# Waits for what is kept of a batch, and returns it.
Arriving = Callable[[], Kept]


class Engine(ABC):
    """A model that is open on a device."""

    backend: Backend = "auto"
    config: BertConfig
    places: tuple[str, ...] = ("cpu",)  # its device, and all others that are named
    threads = 1
    budget = 0  # tokens of a batch
    depth = 1  # batches that it holds: one runs, the next one is there when it is done
    # Whether a vector depends on its text alone, to the last bit: in any batch, order and number
    # of threads.
    same_bits = True

    @abstractmethod
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Run a batch, or begin to."""

    def batches(self, texts: Tokens, budget: int) -> Iterator[Places]:
        """Yield the numbers of texts, longest first, in batches of at most ``budget`` tokens.

        A batch counts as its longest text times their number, which bounds its memory with padding
        too. A text that is longer than the budget is a batch of its own.
        """
        order = np.argsort(-texts.lengths, kind="stable")
        at = 0
        while at < len(order):
            size = max(1, budget // max(1, int(texts.lengths[order[at]])))
            yield order[at : at + size]
            at += size

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what decides the numbers, for manifests."""


class Runtime:
    """A model that is open on one or several devices, and runs texts in batches.

        texts -> batches -> whichever device is free -> vectors, in the order of the texts

    What is in a batch is settled before a device takes it: so vectors do not depend on how fast
    devices are, nor on their number. A CPU runs a batch when it is waited for; where there are
    GPUs, or several devices, threads have them begin all. ``budget``, the tokens of a batch,
    shrinks when memory runs out.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, devices: Sequence[Engine]) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self.engine = devices[0]
        self.config = self.engine.config
        self.budget = self.engine.budget
        self.extra = ExtraColumns(self.config.fields_of_extra, self.config.extra_embeddings)
        self.free: SimpleQueue[Engine] = SimpleQueue()
        for device in devices:
            self.free.put(device)
        self.threads: ThreadPoolExecutor | None = None
        if (places := sum(device.depth for device in devices)) > 1:
            from concurrent.futures import ThreadPoolExecutor  # a late import

            self.threads = ThreadPoolExecutor(places)

    def run(self, texts: Tokens, finish: Finish) -> Work:
        """Begin batches, where threads run them; what is returned waits for all."""
        return self._wait(texts, finish, self._begin(texts, finish, np.arange(len(texts))))

    def _begin(self, texts: Tokens, finish: Finish, rows: Places) -> deque[tuple[Places, Arriving]]:
        """Divide texts into batches, and return what waits for each."""
        begun: deque[tuple[Places, Arriving]] = deque()
        for part in self.engine.batches(texts.take(rows), self.budget):
            job = partial(self._batch, texts, finish, rows[part])
            begun.append((rows[part], self.threads.submit(job).result if self.threads else job))
        return begun

    def _batch(self, texts: Tokens, finish: Finish, rows: Places) -> Kept:
        """Run a batch on a device that is free, which may take the next one before this is here."""
        device = self.free.get()
        try:
            arriving = device.begin(texts.take(rows), finish)
        except (RuntimeError, MemoryError) as failed:
            if out_of_memory(failed):
                failed.__traceback__ = None  # whose frames hold the memory that others need
            raise failed
        finally:
            self.free.put(device)
        return arriving()

    def _wait(self, texts: Tokens, finish: Finish, begun: deque[tuple[Places, Arriving]]) -> Work:
        batches = []
        vectors = []
        while begun:
            rows, arriving = begun.popleft()
            try:
                vectors.append(arriving())
            except (RuntimeError, MemoryError) as failed:
                if not out_of_memory(failed):
                    raise
                self._shrink(texts.lengths[rows])
                begun.extendleft(reversed(self._begin(texts, finish, rows)))
                continue
            batches.append(rows)
            yield Ran(len(rows), int(texts.lengths[rows].sum()))
        if not batches:
            return []
        order = np.argsort(np.concatenate(batches))
        if isinstance(vectors[0], np.ndarray):
            return np.concatenate(vectors).take(order, 0)
        of_texts = [*chain.from_iterable(vectors)]
        return [of_texts[at] for at in order]

    def _shrink(self, lengths: Places) -> None:
        """Halve batches after memory ran out with texts of these lengths, and warn of it.

        Raises BertcliError when one text alone is too much.
        """
        where = self.engine.places[0]
        if len(lengths) == 1:
            raise BertcliError(
                f"out of memory on {where} with a batch of {self.budget} tokens",
                f"use a smaller {option('max_length')}, another {option('device')}, or a "
                "smaller model",
            )
        if len(lengths) * int(lengths.max()) <= self.budget:  # else it was begun before another
            self.budget //= 2
            LOG.warn(f"out of memory on {where}: batches of {self.budget} tokens from here on")


def result_of(work: Work) -> Kept:
    """Run to the end and return the vectors, where nobody wants to know of the batches."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def library_of(array: Any) -> Any:
    """Return the library that an array is of, torch or NumPy."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def combined(layers: Sequence[Any], how: str) -> Any:
    """Combine the states [..., D] of layers: [..., D], concatenated or [..., k, D]."""
    if len(layers) == 1 and how != "stack":
        return layers[0]
    library = library_of(layers[0])
    if how == "concat":
        return library.concat(layers, -1)
    stacked = library.stack(layers, -2)
    return stacked if how == "stack" else stacked.sum(-2) if how == "sum" else stacked.mean(-2)
