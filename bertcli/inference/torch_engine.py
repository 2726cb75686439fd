"""A model that torch runs, opened once: for vectors, for every task, and for attention maps.

`Encoder` runs batches of a token budget. A batch is packed, without padding, on a CPU, and on a GPU
whose kernel takes that; elsewhere it is padded, of texts of similar length. In all cases what comes
out is packed: the states of all tokens, one text after the other, `[T, D]`.

A GPU always has work: batches wait for it in a queue (`DeviceQueue`), across windows of texts:

    texts -> batches -> two at the device, one of them running -> vectors, in the order of the texts

While it runs, this process tokenizes what comes next and writes what came before. What is in a
batch does not depend on how fast anybody is, so neither do the vectors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertcli.checkpoints.comparison import LoadReport
from bertcli.checkpoints.load import load
from bertcli.errors import UsageError, out_of_memory
from bertcli.inference.compute import Compute
from bertcli.inference.devices import (
    Arriving,
    Wire,
    devices,
    dtype_of,
    put,
    refuse_several,
    slow,
    use_threads,
    varlen_kernel,
)
from bertcli.inference.pool import ProcessPool
from bertcli.inference.progress import SILENCE, Ran, Tell
from bertcli.inference.runner import (
    BatchRunner,
    DistinctTexts,
    Finish,
    Kept,
    PendingBatch,
    Reading,
    Runner,
    Tokens,
    Work,
)
from bertcli.inference.runtime import ModelSpec, Runtime
from bertcli.models.attention import Attend, Varlen, packed, padded, varlen
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.models.heads import ARCHITECTURES, BertWithHead
from bertcli.models.surgery import fuse_qkv
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places

# Packed batches are filled up to a multiple of so many tokens: few sizes, so that the kernels and
# the memory made for one batch serve the next. Else both pile up, to gigabytes.
EVEN = 64


class BatchLayout(NamedTuple):
    """A batch in the layout of the device."""

    states: Iterator[Tensor]  # of each layer: [T, hidden] or [B, L, hidden]
    real: Any  # the index of what the batch was not filled up with
    tokens: Any  # the index of all tokens in them
    first: Any  # the index of the first token of each text
    asking: Attend  # the kernel for these first tokens as the queries


@dataclass
class Encoder(BatchRunner):
    """A model on a device, run by this process. ``budget`` shrinks when memory runs out."""

    model: BertModel | BertWithHead
    reading: Reading
    budget: int  # tokens of a batch
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    varlen: Varlen | None = None  # a kernel for packed texts on a GPU, as `varlen_kernel` finds it

    def __post_init__(self) -> None:
        self.wire = Wire(self.device)
        self.layers = self.reading.indices(self.bert.config.depth)
        self.model.eval()

    @property
    def bert(self) -> BertModel:
        """The model without its head."""
        return self.model.bert if isinstance(self.model, BertWithHead) else self.model

    @property
    def where(self) -> str:
        """The device, for messages."""
        return str(self.device)

    @property
    def threads(self) -> int:
        """The threads of one operation."""
        return torch.get_num_threads()

    @property
    def kernel(self) -> str:
        """The layout of texts of several lengths in a batch."""
        if self.varlen is not None:
            return "varlen"
        return "packed" if self.device.type == "cpu" else "padded"

    def groups(self, texts: Tokens, budget: int) -> Iterator[tuple[Places, int]]:
        """Yield all texts: any of similar length make a batch.

        Idle tokens of a DeBERTa attend to the whole row, where padding would change them.
        """
        if self.reading.idle is None or not self.bert.config.structure.blank_padding:
            yield np.arange(len(texts)), budget
            return
        for length in np.unique(texts.lengths):
            yield np.flatnonzero(texts.lengths == length), budget

    def vectors(self, batch: Tokens, finish: Finish) -> Kept:
        """Run a batch, packed or padded."""
        return self.begin(batch, finish)()

    @torch.inference_mode()
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Give a batch to the device, and return what waits for its vectors."""
        states, counts = self._states(batch)
        return self.wire.back(finish(self.model, states, counts))

    def _states(self, batch: Tokens) -> tuple[Tensor, list[int]]:
        """Run the model over one batch: what is read off it, packed, and how many of each text."""
        lengths, attended = batch.lengths.tolist(), self.reading.attended(batch)
        if self.kernel == "padded" or not attended.all():
            laid = self._padded(batch, attended)
        else:
            laid = self._packed(batch, lengths)
        only_first, top = self.reading.first, max(self.layers)
        picked = laid.first if only_first else laid.tokens
        of_layers: dict[int, Tensor] = {}
        for index, state in enumerate(laid.states):
            if index in self.layers:
                of_layers[index] = state[picked].reshape(-1, state.shape[-1])
            if only_first and index == top - 1:
                of_layers[top] = self._first(top, state, laid)
            if top in of_layers:
                break
        states = combined([of_layers[index] for index in self.layers], self.reading.combine)
        if self.reading.token is not None:
            states = states[self.wire.there(np.flatnonzero(batch.ids == self.reading.token))]
        if self.reading.mean:
            states = means(states, lengths)
        return states, self.reading.counts(batch)

    def _first(self, index: int, below: Tensor, laid: BatchLayout) -> Tensor:
        """Run a layer for the first token of each text only, [n, hidden]."""
        encoder, whole = self.bert.encoder, below[laid.real]
        last = encoder.some(index - 1, below[laid.first], laid.asking, whole)
        return last.reshape(-1, last.shape[-1])

    def _packed(self, batch: Tokens, lengths: list[int]) -> BatchLayout:
        total = len(batch.ids)
        idle = -total % EVEN if total > EVEN else 0
        columns = np.zeros((3 + len(batch.extra), total + idle), np.int64)
        first = batch.offsets[:-1]
        at = np.arange(total) - np.repeat(first, batch.lengths)
        columns[:, :total] = np.stack([batch.ids, batch.types, at, *batch.extra.values()])
        ids, types, at, *others = self.wire.there(columns)
        whole, asking = self._kernels(batch.offsets, lengths, idle)
        states = self.bert.states(
            ids,
            types=types,
            at=at,
            extra=dict(zip(batch.extra, others, strict=True)),
            kernels=whole,
        )
        return BatchLayout(states, slice(total), slice(total), self.wire.there(first), asking)

    def _kernels(self, offsets: Places, lengths: Sequence[int], idle: int) -> tuple[Attend, Attend]:
        """Return the kernels for packed texts: for all tokens, and for the first of each text.

        After the texts come so many tokens that nobody asked for, each alone.
        """
        direction = self.bert.direction
        if self.varlen is None:
            asking = direction(packed(lengths, padded(at=0), queries=1))
            return direction(packed([*lengths, *[1] * idle])), asking
        ends = np.append(offsets, offsets[-1] + np.arange(1, idle + 1)).astype(np.int32)
        bounds, longest = self.wire.there(ends), max(lengths)
        asking = varlen(bounds[: len(offsets)], longest, self.varlen, queries=1)
        return varlen(bounds, longest, self.varlen), asking

    def _padded(self, batch: Tokens, attended: NDArray[np.bool_]) -> BatchLayout:
        real = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        columns = np.zeros((2 + len(batch.extra), *real.shape), np.int64)
        columns[:, real] = np.stack([batch.ids, batch.types, *batch.extra.values()])
        looked_at = real.copy()
        looked_at[real] = attended
        keep, (ids, types, *others) = self.wire.there(looked_at), self.wire.there(columns)
        extra, direction = dict(zip(batch.extra, others, strict=True)), self.bert.direction
        states = self.bert.states(ids, keep, types, extra=extra)
        every, asking = slice(None), direction(padded(keep, at=0))
        # The mask itself as the index would have to be waited for.
        tokens = tuple(map(self.wire.there, real.nonzero()))
        return BatchLayout(states, every, tokens, (every, slice(1)), asking)

    def free(self) -> None:
        """Give back what is kept for later batches."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def combined(states: Sequence[Tensor], how: str) -> Tensor:
    """Combine the states [..., D] of layers: [..., D], concatenated or [..., k, D]."""
    match how:
        case "mean":
            return torch.stack(list(states)).mean(0) if len(states) > 1 else states[0]
        case "sum":
            return torch.stack(list(states)).sum(0)
        case "concat":
            return torch.cat(list(states), -1)
        case "stack":
            return torch.stack(list(states), -2)
        case unknown:
            raise UsageError(f"unknown --layer-combine {unknown!r}")


DEPTH = 2  # batches that are at the device: one runs, one is there when it is done


class DeviceQueue:
    """A runner that begins the batches of later texts while those of earlier ones run."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.waiting: deque[PendingBatch] = deque()
        self.held: deque[tuple[PendingBatch, Arriving]] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is work once what the device holds is done."""
        return bool(self.waiting)

    @property
    def threads(self) -> int:
        """The threads of one operation."""
        return self.encoder.threads

    def run(self, texts: Tokens, finish: Finish, budget: int | None = None) -> Work:
        """Begin batches now, as many as may be at the device; what is returned waits for all."""
        distinct, budget = DistinctTexts(texts), budget or self.encoder.budget
        self.waiting.extend(distinct.divided(distinct.rows, finish, budget))
        self._hand_out()
        return self._wait(distinct)

    def _wait(self, distinct: DistinctTexts) -> Work:
        while distinct.left:
            self._hand_out()
            if not self.held:  # not even alone
                yield Ran(warning=self.encoder.shrink(len(self.waiting[0].rows)))
                self._divide()
                continue
            done, arriving = self.held.popleft()
            vectors = arriving()
            self._hand_out()
            yield done.take(vectors)
        return distinct.kept

    def _hand_out(self) -> None:
        """Begin batches; one that does not fit into memory waits until there is more."""
        while self.waiting and len(self.held) < DEPTH:
            first = self.waiting.popleft()
            try:
                arriving = self.encoder.begin(first.batch, first.finish)
            except (RuntimeError, MemoryError) as failed:
                if not out_of_memory(failed):
                    raise
                self.waiting.appendleft(first)
                return
            self.held.append((first, arriving))

    def _divide(self) -> None:
        """Make what waits fit the budget, which has shrunk."""
        before = [*self.waiting]
        self.waiting.clear()
        for _, rows, finish, distinct in before:
            distinct.left -= 1
            self.waiting.extend(distinct.divided(rows, finish, self.encoder.budget))


@dataclass(frozen=True)
class TorchRuntime(Runtime):
    """A model that torch runs. ``runner`` is its encoder, or a pool of processes with one each.

    The weights in ``encoder`` are not kept where other processes run the model.
    """

    encoder: Encoder
    report: LoadReport  # what the files hold, also beyond the model

    @classmethod
    def open(cls, spec: ModelSpec, tokenizer: Tokenizer, tell: Tell = SILENCE) -> TorchRuntime:
        """Load a model, on as many devices as are named.

        Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
        choice that this model or this machine cannot follow.
        """
        if spec.one_device:
            refuse_several(spec.compute.device, "name one of them")
        threads = use_threads(spec.compute.threads)
        places = _of_one_kind(spec.compute.device)
        if message := slow(dtype_of(spec.compute.dtype), places[0]):
            tell.warn(message)
        pool = None
        if len(places) > 1:
            pool = _pool(spec, places, max(1, threads // len(places)))
        try:
            encoder, report = _loaded(spec, places[0], tell, elsewhere=bool(pool))
        except BaseException:
            if pool:
                pool.close()
            raise
        names, config = tuple(map(str, places)), encoder.bert.config
        return cls(
            spec, tokenizer, config, pool or _runner(encoder), names, threads, encoder, report
        )

    @property
    def facts(self) -> dict[str, Any]:
        """What decides the numbers of this runner, for manifests."""
        encoder, here = self.encoder, self.encoder.device.type == "cpu"
        dtype = encoder.bert.embeddings.word_embeddings.weight.dtype
        return {
            "backend": "torch",
            "dtype": str(dtype)[6:],
            "kernel": encoder.kernel,
            "device": encoder.device.type,  # devices of a kind give the same numbers
            # where they compute: the last bits of a sum depend on them
            "threads": self.runner.threads if here else None,
            "batch_tokens": encoder.budget,
        }


def open_runner(spec: ModelSpec) -> Runner:
    """Load a model in a process of a pool, whose parent has checked it and says what is wrong."""
    use_threads(spec.compute.threads)
    return _runner(_loaded(spec, devices(spec.compute.device)[0])[0])


def _runner(encoder: Encoder) -> Runner:
    return DeviceQueue(encoder) if encoder.device.type == "cuda" else encoder


def _loaded(
    spec: ModelSpec, device: torch.device, tell: Tell = SILENCE, *, elsewhere: bool = False
) -> tuple[Encoder, LoadReport]:
    """Read the weights; where other processes run the model, only to see that they can."""
    dtype = dtype_of(spec.compute.dtype)
    model, report = load(spec.folder, ARCHITECTURES[spec.kind], pooler=spec.pooler, dtype=dtype)
    put(model, torch.device("cpu") if elsewhere else device)
    encoder = Encoder(model, spec.reading, budget_of(spec.compute, device), device)
    if device.type == "cuda":
        encoder.varlen = varlen_kernel(encoder.bert, device, tell)
    if device.type != "cpu":
        fuse_qkv(encoder.bert)
    if elsewhere:
        del encoder.bert.encoder.layer[:]
        model.to("meta")
    return encoder, report


def _pool(spec: ModelSpec, places: Sequence[torch.device], threads: int) -> ProcessPool:
    """Start a process per device, each with so many threads."""
    computes = [replace(spec.compute, device=str(place), threads=threads) for place in places]
    openers = [partial(open_runner, replace(spec, compute=compute)) for compute in computes]
    names = [compute.device for compute in computes]
    return ProcessPool(names, openers, threads, budget_of(spec.compute, places[0]))


def _of_one_kind(names: str) -> tuple[torch.device, ...]:
    """Return the devices that are named. Raises UsageError for devices of several kinds."""
    places = tuple(devices(names))
    if len({place.type for place in places}) > 1:
        raise UsageError(
            f"--device {names} names devices of several kinds",
            "their results differ in the last digits; name devices of one kind",
        )
    return places


def budget_of(compute: Compute, device: torch.device) -> int:
    """Return the tokens of a batch: few enough for a CPU's cache, or many for a GPU."""
    return compute.batch_tokens or (4096 if device.type == "cpu" else 1 << 16)
