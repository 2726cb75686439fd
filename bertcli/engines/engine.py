"""Interfaces of engines, which run a model, and their inputs. Nothing here needs torch.

An engine takes texts as flat arrays of token ids. A run yields a step per batch and returns a
vector per text, or the vectors of its tokens. Letters: `B` texts, `T` tokens of all texts.
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

COLUMNS = ("input_ids", "token_type_ids")  # columns that every model takes


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokenized texts as the model takes them, concatenated."""

    columns: NDArray[np.uint32]  # [T, n]: token ids, token types, ids of each extra embedding
    offsets: Places  # [B + 1]
    extra: Sequence[str] = ()  # names of the extra embeddings
    # [B]: number of tokens per text, from the first, that are attended to; None: all tokens.
    attended: Places | None = None

    @classmethod
    def of(cls, rows: Sequence[Encoded]) -> Tokens:
        """Return encoded texts, with only the columns that the model needs."""
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
        """The position of each token in its text [T]."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, rows: Places) -> Tokens:
        """Return the texts with these indices [n], in this order."""
        starts = self.offsets[rows]
        lengths = self.lengths[rows]
        attended = None if self.attended is None else self.attended[rows]
        columns = spans(self.columns, starts, lengths)
        return Tokens(columns, offsets_of(lengths), self.extra, attended)

    @property
    def all_attended(self) -> bool:
        """True if all tokens of every text are attended to."""
        return self.attended is None or np.array_equal(self.attended, self.lengths)


@dataclass(frozen=True)
class Reading:
    """Which outputs of the model are read: layers, their combination, and tokens."""

    layers: tuple[int, ...] = (-1,)  # 0 is the embedding output, -1 the last layer
    combine: str = "mean"
    first: bool = False  # only the first token of each text, [CLS]
    mean: bool = False  # only the mean of each text's tokens
    token: int | None = None  # only tokens with this id, such as [MASK]

    @property
    def single(self) -> bool:
        """True if each text has a single row."""
        return self.first or self.mean

    def indices(self, depth: int) -> list[int]:
        """Return the layers as indices from 0 (the embedding output) to ``depth``.

        Raises UsageError for a layer that the model does not have.
        """
        indices = [layer if layer >= 0 else depth + 1 + layer for layer in self.layers]
        for asked, layer in zip(self.layers, indices, strict=True):
            if not 0 <= layer <= depth:
                raise UsageError(
                    f"layer {asked} not found ({option('layers')})",
                    f"this model has layers 0 to {depth}; -1 is the last",
                )
        return indices

    def padded(self, texts: Tokens, longest: int) -> tuple[Places, Places, NDArray[np.bool_]]:
        """Return the columns padded to ``longest`` [n, B, L], token indices and attention mask.

        The indices [T] are those of tokens in the flattened B * L positions; the mask is [B, L].
        """
        places = np.arange(longest)
        real = places < texts.lengths[:, None]
        attended = real if texts.attended is None else places < texts.attended[:, None]
        rows = np.zeros((texts.columns.shape[1], real.size), np.int64)
        tokens = np.flatnonzero(real)
        rows[:, tokens] = texts.columns.T
        return rows.reshape(-1, *real.shape), tokens, attended

    def places(self, texts: Tokens) -> Places:
        """Return the indices of the tokens to read [n]; all tokens for the mean."""
        if self.first:
            return texts.offsets[:-1]
        if self.token is None:
            return np.arange(len(texts.ids))
        return np.flatnonzero(texts.ids == self.token)

    def counts(self, texts: Tokens) -> list[int]:
        """Return the number of rows of each text: 1, or the number of its tokens that are read."""
        if self.single:
            return [1] * len(texts)
        counts = texts.lengths
        if self.token is not None:
            counts = np.diff(np.searchsorted(self.places(texts), texts.offsets))
        return counts.tolist()


@dataclass(frozen=True)
class ModelSpec:
    """The model to open, and how to run it."""

    folder: ModelFolder  # the folder of config.json
    compute: Compute = field(default_factory=Compute)
    kind: str = "BertModel"  # class: one of models.heads.ARCHITECTURES, or StaticEmbedding
    reading: Reading = field(default_factory=Reading)
    pooler: bool = False  # True if the pooler of a BertModel is needed


# Takes the model, packed states [T, D] and the number of tokens read per text (1 each if
# `Reading.single`); returns the results, one array per text, as arrays of the library that the
# model computes with, torch or NumPy.
Finish = Callable[[Any, Any, Sequence[int]], Any]

# Results of texts, in their order: [B, D...], or a list of [L, D...] for several vectors per text.
# All are float32 or wider.
Kept = np.ndarray | list[np.ndarray]

# Yields a step per batch, and returns the results of all texts.
Work = Generator[Ran, None, Kept]


# Waits for the results of a batch and returns them.
Arriving = Callable[[], Kept]


class Engine(ABC):
    """A model that is open on a device."""

    backend: Backend = "auto"
    config: BertConfig
    places: tuple[str, ...] = ("cpu",)  # its device, then the other requested devices
    threads = 1
    budget = 0  # maximum tokens of a batch
    depth = 1  # batches in flight: while one runs, the next one is prepared
    # True if vectors are bit-identical in any batch, in any order and with any number of threads.
    same_bits = True

    @abstractmethod
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Start a batch; return a function that waits for its results."""

    def batches(self, texts: Tokens, budget: int) -> Iterator[Places]:
        """Yield the indices of texts, longest first, in batches of at most ``budget`` tokens.

        The size of a batch is its longest text times its number of texts, so memory is bounded with
        padding too. A text longer than the budget is a batch of its own.
        """
        order = np.argsort(-texts.lengths, kind="stable")
        at = 0
        while at < len(order):
            size = max(1, budget // max(1, int(texts.lengths[order[at]])))
            yield order[at : at + size]
            at += size

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the results, for manifests."""


class Runtime:
    """A model that is open on one or several devices, and runs texts in batches.

        texts -> batches -> next free device -> vectors, in the order of the texts

    Batches are formed before a device is chosen, so vectors do not depend on the number or speed of
    devices. A single CPU runs each batch when its results are requested; with GPUs or several
    devices, threads start all batches. ``budget``, the maximum tokens of a batch, shrinks
    when memory runs out.
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
            from concurrent.futures import ThreadPoolExecutor  # imported only if needed

            self.threads = ThreadPoolExecutor(places)

    def run(self, texts: Tokens, finish: Finish) -> Work:
        """Start all batches if there are threads; return a generator that waits for the results."""
        return self._wait(texts, finish, self._begin(texts, finish, np.arange(len(texts))))

    def _begin(self, texts: Tokens, finish: Finish, rows: Places) -> deque[tuple[Places, Arriving]]:
        """Divide texts into batches; return the indices and the waiting function of each."""
        begun: deque[tuple[Places, Arriving]] = deque()
        for part in self.engine.batches(texts.take(rows), self.budget):
            job = partial(self._batch, texts, finish, rows[part])
            begun.append((rows[part], self.threads.submit(job).result if self.threads else job))
        return begun

    def _batch(self, texts: Tokens, finish: Finish, rows: Places) -> Kept:
        """Run a batch on a free device, which is released before the results have arrived."""
        device = self.free.get()
        try:
            arriving = device.begin(texts.take(rows), finish)
        except (RuntimeError, MemoryError) as failed:
            if out_of_memory(failed):
                failed.__traceback__ = None  # its frames hold memory that other batches need
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
        """Halve the batch size after memory ran out with texts of these lengths, and warn.

        Raises BertcliError if a single text is too large.
        """
        where = self.engine.places[0]
        if len(lengths) == 1:
            raise BertcliError(
                f"out of memory on {where} with a batch of {self.budget} tokens",
                f"use a smaller {option('max_length')}, another {option('device')}, or a "
                "smaller model",
            )
        if len(lengths) * int(lengths.max()) <= self.budget:  # False: started before it shrank
            self.budget //= 2
            LOG.warn(f"out of memory on {where}: batches of {self.budget} tokens from here on")


def result_of(work: Work) -> Kept:
    """Run to the end, ignoring the steps, and return the results."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def library_of(array: Any) -> Any:
    """Return the library of an array, torch or NumPy."""
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
