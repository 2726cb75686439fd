"""Interfaces of engines, which run a model, and their inputs. Nothing here needs torch.

An engine takes texts as `PackedTokens`. A run yields a step per batch and returns a vector per
text, or the vectors of its tokens. Letters: `B` texts, `T` tokens of all texts.
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
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertcli.engines.compute import Backend, Compute
from bertcli.errors import LOG, BertcliError, UsageError, option, out_of_memory
from bertcli.formats.row_offsets import offsets_of, spans
from bertcli.io.progress import BatchDone
from bertcli.model_folder.folder import ModelFolder
from bertcli.models.config import BertConfig
from bertcli.tokenizing.batch import EXTRA, Encoded, TokenBatch
from bertcli.tokenizing.extra_columns import ExtraColumns

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from numpy.typing import NDArray

    from bertcli.tokenizing.tokenizer import Tokenizer

    Indices = NDArray[np.int64]

MODEL_COLUMNS = ("input_ids", "token_type_ids")  # columns that every model takes


@dataclass(frozen=True, eq=False)
class PackedTokens:
    """The input of a model: the ids of many texts, concatenated without padding.

    Unlike a `TokenBatch`, it has no records and no columns of Python objects: only what a model
    reads, in one array. So texts can be sorted by length and divided into batches by NumPy alone,
    also for training, whose texts come from a file of ids.
    """

    columns: NDArray[np.uint32]  # [T, n]: token ids, token types, ids of each extra embedding
    offsets: Indices  # [B + 1]
    extra_embeddings: Sequence[str] = ()  # names, in the order of their columns
    # [B]: number of tokens per text, from the first, that are attended to; None: all tokens.
    attended: Indices | None = None
    # [B]: position of the token whose state is read in each text, for `StateSelection.one_given`.
    read: Indices | None = None

    @classmethod
    def of(cls, rows: Sequence[Encoded]) -> PackedTokens:
        """Return encoded texts, with only the columns that the model needs."""
        batch = TokenBatch.of(rows, MODEL_COLUMNS)
        extra_columns = [name for name in batch.columns if name.startswith(EXTRA)]
        columns = [
            np.asarray(batch.columns[name], np.uint32) for name in (*MODEL_COLUMNS, *extra_columns)
        ]
        names = [name.removeprefix(EXTRA) for name in extra_columns]
        return cls(np.stack(columns, 1), np.asarray(batch.offsets, np.int64), names)

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The token ids [T]."""
        return self.columns[:, 0]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Indices:
        """The number of tokens of each text [B]."""
        return np.diff(self.offsets)

    @property
    def positions(self) -> Indices:
        """The position of each token in its text [T]."""
        return np.arange(len(self.ids)) - np.repeat(self.offsets[:-1], self.lengths)

    def take(self, rows: Indices) -> PackedTokens:
        """Return the texts with these indices [n], in this order."""
        starts = self.offsets[rows]
        lengths = self.lengths[rows]
        attended = None if self.attended is None else self.attended[rows]
        read = None if self.read is None else self.read[rows]
        columns = spans(self.columns, starts, lengths)
        return PackedTokens(columns, offsets_of(lengths), self.extra_embeddings, attended, read)

    @property
    def all_attended(self) -> bool:
        """True if all tokens of every text are attended to."""
        return self.attended is None or np.array_equal(self.attended, self.lengths)

    def padded(self, length: int) -> tuple[Indices, Indices, NDArray[np.bool_]]:
        """Return columns padded to ``length`` [n, B, L], token indices [T], attention mask [B, L].

        The indices are those of the tokens in the flattened B * L positions.
        """
        positions = np.arange(length)
        is_token = positions < self.lengths[:, None]
        mask = is_token if self.attended is None else positions < self.attended[:, None]
        columns = np.zeros((self.columns.shape[1], is_token.size), np.int64)
        token_indices = np.flatnonzero(is_token)
        columns[:, token_indices] = self.columns.T
        return columns.reshape(-1, *is_token.shape), token_indices, mask


@dataclass(frozen=True)
class StateSelection:
    """Which hidden states of a model are read: layers, their combination, and tokens."""

    layers: tuple[int, ...] = (-1,)  # 0 is the embedding output, -1 the last layer
    combine: str = "mean"
    first_token: bool = False  # only the first token of each text, [CLS]
    token_mean: bool = False  # only the mean of each text's tokens
    token_id: int | None = None  # only tokens with this id, such as [MASK]
    one_given: bool = False  # only one token of each text, at `PackedTokens.read`

    @property
    def one_row_per_text(self) -> bool:
        """True if each text has a single row."""
        return self.first_token or self.token_mean or self.one_given

    @property
    def all_tokens(self) -> bool:
        """True if the states of all tokens are read."""
        return not (self.first_token or self.one_given) and self.token_id is None

    def layer_indices(self, depth: int) -> list[int]:
        """Return the layers as indices from 0 (the embedding output) to ``depth``.

        Raises UsageError for a layer that the model does not have.
        """
        indices = [layer if layer >= 0 else depth + 1 + layer for layer in self.layers]
        for layer, index in zip(self.layers, indices, strict=True):
            if not 0 <= index <= depth:
                raise UsageError(
                    f"layer {layer} not found ({option('layers')})",
                    f"this model has layers 0 to {depth}; -1 is the last",
                )
        return indices

    def token_indices(self, tokens: PackedTokens) -> Indices:
        """Return the indices of the tokens to read [n]; all tokens for the mean."""
        if self.all_tokens:
            return np.arange(len(tokens.ids))
        if self.first_token:
            return tokens.offsets[:-1]
        if tokens.read is not None:
            return tokens.offsets[:-1] + tokens.read
        return np.flatnonzero(tokens.ids == self.token_id)

    def row_counts(self, tokens: PackedTokens) -> list[int]:
        """Return the number of rows of each text: 1, or the number of its tokens that are read."""
        if self.one_row_per_text:
            return [1] * len(tokens)
        counts = tokens.lengths
        if self.token_id is not None:
            counts = np.diff(np.searchsorted(self.token_indices(tokens), tokens.offsets))
        return counts.tolist()


@dataclass(frozen=True)
class ModelSpec:
    """The model to open, and how to run it."""

    folder: ModelFolder  # the folder of config.json
    compute: Compute = field(default_factory=Compute)
    architecture: str = "BertModel"  # one of models.heads.ARCHITECTURES, STATIC or TERM_TABLE
    selection: StateSelection = field(default_factory=StateSelection)
    pooler: bool = False  # True if the pooler of a BertModel is needed


# Reduces the states of texts, for example to vectors or to scores. Takes the model, packed states
# [T, D] and the number of states per text (1 each if `StateSelection.one_row_per_text`); returns
# one array per text, of the library that the model computes with, torch or NumPy.
Reduction = Callable[[Any, Any, Sequence[int]], Any]

# Outputs of texts, in their order: [B, D...], or a list of [L, D...] for several vectors per text.
# All are float32 or wider.
Outputs = np.ndarray | list[np.ndarray]


@dataclass(frozen=True, eq=False)
class ReductionByText:
    """A reduction that needs a number of each text, such as the id of the token to score."""

    function: Callable[[Any, Any, Indices], Any]  # model, packed states, numbers of their texts
    numbers: Indices  # [B]: of all texts of a run

    def of_texts(self, rows: Indices) -> Reduction:
        """Return the reduction of a batch with these texts."""
        numbers = self.numbers[rows]
        return lambda model, states, lengths: self.function(model, states, numbers)


# A run of a model: yields a step per batch, and returns the outputs of all texts.
ModelRun = Generator[BatchDone, None, Outputs]

# Waits for the outputs of a batch that was started, and returns them.
WaitForOutputs = Callable[[], Outputs]


class PendingBatch(NamedTuple):
    """A batch whose outputs have not been requested yet."""

    rows: Indices
    budget: int  # maximum tokens when it was formed
    wait: WaitForOutputs
    future: Future[Outputs] | None  # of a thread; None if `wait` runs the batch


class Engine(ABC):
    """A model that is open on a device."""

    backend: Backend = "auto"
    config: BertConfig
    devices: tuple[str, ...] = ("cpu",)  # its device, then the other requested devices
    threads = 1
    budget = 0  # maximum tokens of a batch
    depth = 1  # batches in flight: while one runs, the next one is prepared
    # True if vectors are bit-identical in any batch, in any order and with any number of threads.
    same_bits = True

    @abstractmethod
    def start(self, batch: PackedTokens, reduction: Reduction) -> WaitForOutputs:
        """Start a batch; return a function that waits for its outputs."""

    def batches(self, tokens: PackedTokens, budget: int) -> Iterator[Indices]:
        """Yield the indices of texts, longest first, in batches of at most ``budget`` tokens.

        The size of a batch is its longest text times its number of texts, so memory is bounded with
        padding too. A text longer than the budget is a batch of its own.
        """
        order = np.argsort(-tokens.lengths, kind="stable")
        start = 0
        while start < len(order):
            longest = int(tokens.lengths[order[start]])
            size = max(1, budget // max(1, longest))
            yield order[start : start + size]
            start += size

    def parallel_engines(self) -> list[Engine]:
        """Return further engines with the same model, which run batches at the same time."""
        return []

    def compiled_for_parallel(self) -> Engine:
        """Return an engine with the same model that has all possible `parallel_engines`."""
        return self

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return the facts that determine the outputs, for manifests."""


class Runtime:
    """A model that is open on one or several devices, and runs texts in batches.

        texts -> batches -> next free device -> vectors, in the order of the texts

    Batches are formed before a device is chosen, so vectors do not depend on the number or speed of
    devices. A single engine of a CPU runs each batch when its outputs are requested; with GPUs or
    several engines, threads start all batches. ``budget``, the maximum tokens of a batch, shrinks
    when memory runs out.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, engines: Sequence[Engine]) -> None:
        """Create a runtime; ``engines`` are the same model, open on each device or more often."""
        self.spec = spec
        self.tokenizer = tokenizer
        self.engine = engines[0]
        self.config = self.engine.config
        self.budget = self.engine.budget
        self.extra_columns = ExtraColumns(self.config.fields_of_extra, self.config.extra_embeddings)
        self.engines = len(engines)
        self.free_engines: SimpleQueue[Engine] = SimpleQueue()
        for engine in engines:
            self.free_engines.put(engine)
        self.threads: ThreadPoolExecutor | None = None
        batches_in_flight = sum(engine.depth for engine in engines)
        if batches_in_flight > 1:
            from concurrent.futures import ThreadPoolExecutor  # imported only if needed

            self.threads = ThreadPoolExecutor(batches_in_flight)

    def run(self, tokens: PackedTokens, reduction: Reduction | ReductionByText) -> ModelRun:
        """Start all batches if there are threads; return a generator that waits for the outputs."""
        pending = self._start(tokens, reduction, np.arange(len(tokens)))
        return self._wait(tokens, reduction, pending)

    def _start(
        self, tokens: PackedTokens, reduction: Reduction | ReductionByText, rows: Indices
    ) -> deque[PendingBatch]:
        """Divide texts into batches, and start them if there are threads."""
        pending: deque[PendingBatch] = deque()
        tokens_of_rows = tokens.take(rows)
        budget = self._batch_budget(tokens_of_rows)
        for batch in self.engine.batches(tokens_of_rows, budget):
            run_batch = partial(self._run_batch, tokens, reduction, rows[batch])
            future = self.threads.submit(run_batch) if self.threads else None
            wait = future.result if future else run_batch
            pending.append(PendingBatch(rows[batch], budget, wait, future))
        return pending

    def _batch_budget(self, tokens: PackedTokens) -> int:
        """Return the maximum tokens of a batch of these texts.

        Few texts are divided among all engines, if this does not change their vectors. Half a text
        more than an equal share leaves the batch nearest to it.
        """
        if self.engines == 1 or not self.engine.same_bits or not len(tokens):
            return self.budget
        share = len(tokens.ids) // self.engines + int(tokens.lengths.max()) // 2
        return max(1, min(self.budget, share))

    def _run_batch(
        self, tokens: PackedTokens, reduction: Reduction | ReductionByText, rows: Indices
    ) -> Outputs:
        """Run a batch on a free device, which is released before the outputs have arrived."""
        if isinstance(reduction, ReductionByText):
            reduction = reduction.of_texts(rows)
        engine = self.free_engines.get()
        try:
            wait = engine.start(tokens.take(rows), reduction)
        except (RuntimeError, MemoryError) as failed:
            if out_of_memory(failed):
                failed.__traceback__ = None  # its frames hold memory that other batches need
            raise failed
        finally:
            self.free_engines.put(engine)
        return wait()

    def _wait(
        self,
        tokens: PackedTokens,
        reduction: Reduction | ReductionByText,
        pending: deque[PendingBatch],
    ) -> ModelRun:
        """Wait for the pending batches; return the outputs in the order of the texts.

        A batch for which memory runs out is divided into smaller ones. If the run ends early, the
        batches that wait for a thread are cancelled.
        """
        batches = []
        outputs = []
        try:
            while pending:
                rows, budget, wait, _ = pending.popleft()
                try:
                    outputs.append(wait())
                except (RuntimeError, MemoryError) as failed:
                    if not out_of_memory(failed):
                        raise
                    self._shrink_budget(budget, tokens.lengths[rows])
                    pending.extendleft(reversed(self._start(tokens, reduction, rows)))
                    continue
                batches.append(rows)
                yield BatchDone(len(rows), int(tokens.lengths[rows].sum()))
        finally:
            for batch in pending:
                if batch.future is not None:
                    batch.future.cancel()
        if not batches:
            return []
        order = np.argsort(np.concatenate(batches))
        if isinstance(outputs[0], np.ndarray):
            return np.concatenate(outputs).take(order, 0)
        of_texts = [*chain.from_iterable(outputs)]
        return [of_texts[index] for index in order]

    def _shrink_budget(self, budget: int, lengths: Indices) -> None:
        """Halve the batch size after memory ran out, until the batch is too large, and warn.

        ``budget`` was the maximum when the batch was formed, ``lengths`` are those of its texts.
        Raises BertcliError if a single text is too large.
        """
        device = self.engine.devices[0]
        if len(lengths) == 1:
            raise BertcliError(
                f"out of memory on {device} with a batch of {self.budget} tokens",
                f"use a smaller {option('max_length')}, another {option('device')}, or a "
                "smaller model",
            )
        if budget <= self.budget:  # False: the batch was formed before it shrank
            while self.budget >= int(lengths.sum()):
                self.budget //= 2
            LOG.warn(f"out of memory on {device}: batches of {self.budget} tokens from here on")


class AdaptiveRuntime(Runtime):
    """A runtime that runs few texts on all threads, and others in batches at the same time.

    Texts are few if there are fewer than engines. A thread compiles the model for several batches
    once runs of several texts had more tokens than a batch. The model is then in memory twice.
    Until it is compiled, batches run one after another, and always if the engine has no
    `parallel_engines`.
    """

    opening: Future[Runtime | None] | None = None  # of `parallel_runtime`, once it was started
    tokens_of_several = 0  # tokens of runs of several texts, until `opening`

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer, engines: Sequence[Engine]) -> None:
        """Create a runtime of one engine."""
        super().__init__(spec, tokenizer, engines)
        self.before_opening = Lock()  # runs may come from several threads

    def run(self, tokens: PackedTokens, reduction: Reduction | ReductionByText) -> ModelRun:
        """Run batches at the same time if there are texts for all engines; see the class."""
        parallel = self.parallel_runtime
        if parallel is not None:  # if memory ran out in one of them, both have smaller batches
            self.budget = min(self.budget, parallel.budget)
            parallel.budget = self.budget
            if len(tokens) >= parallel.engines:
                return parallel.run(tokens, reduction)
        if len(tokens) > 1:
            with self.before_opening:
                self.tokens_of_several += len(tokens.ids)
                if self.opening is None and self.tokens_of_several > self.budget:
                    self._start_opening()
        return super().run(tokens, reduction)

    @property
    def parallel_runtime(self) -> Runtime | None:
        """The runtime of the parallel engines, once it is open.

        None before, and if there are no such engines or they cannot be opened.
        """
        if self.opening is None or not self.opening.done():
            return None
        return self.opening.result()

    def _start_opening(self) -> None:
        """Start a thread that opens the parallel runtime and ends."""
        from concurrent.futures import ThreadPoolExecutor  # imported only if needed

        thread = ThreadPoolExecutor(1)
        self.opening = thread.submit(self._open_parallel)
        thread.shutdown(wait=False)

    def _open_parallel(self) -> Runtime | None:
        """Return a runtime of several engines, or None with a warning if they cannot be opened."""
        try:
            engine = self.engine.compiled_for_parallel()
            engines = [engine, *engine.parallel_engines()]
        except (RuntimeError, MemoryError, OSError, BertcliError) as failed:
            reason = "too little memory"
            if not out_of_memory(failed):
                error = failed.marked if isinstance(failed, BertcliError) else str(failed).strip()
                reason = (error or type(failed).__name__).splitlines()[-1]
            LOG.warn(f"batches run one after another: {reason}")
            return None
        if len(engines) == 1:
            return None
        return Runtime(self.spec, self.tokenizer, engines)


def result_of(run: ModelRun) -> Outputs:
    """Execute a run, ignoring its steps, and return the outputs."""
    while True:
        try:
            next(run)
        except StopIteration as end:
            return end.value


def library_of(array: Any) -> Any:
    """Return the library of an array, torch or NumPy."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def combine_layers(layers: Sequence[Any], how: str) -> Any:
    """Combine the states [..., D] of layers: [..., D], concatenated or [..., k, D].

    ``how`` is "mean", "sum", "concat" or "stack".
    """
    if len(layers) == 1 and how != "stack":
        return layers[0]
    library = library_of(layers[0])
    if how == "concat":
        return library.concat(layers, -1)
    stacked = library.stack(layers, -2)
    if how == "stack":
        return stacked
    if how == "sum":
        return stacked.sum(-2)
    return stacked.mean(-2)
