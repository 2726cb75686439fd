"""A model that torch runs, opened once: for vectors and for every task.

`Encoder` runs batches of a token budget. A batch is packed, without padding, on a CPU, and on a GPU
whose kernel takes that; elsewhere it is padded, of texts of similar length. In all cases what comes
out is packed: the states of all tokens, one text after the other, `[T, D]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bertcli.checkpoints.load import load
from bertcli.errors import UsageError
from bertcli.inference.compute import Compute
from bertcli.inference.devices import (
    Wire,
    devices,
    dtype_of,
    put,
    refuse_several,
    slow,
    use_threads,
    varlen_kernel,
)
from bertcli.inference.pool import process_runner
from bertcli.inference.progress import SILENCE, Tell
from bertcli.inference.runner import (
    Arriving,
    Device,
    Finish,
    Reading,
    Runner,
    Tokens,
    batches,
)
from bertcli.inference.runtime import ModelSpec, Runtime
from bertcli.models.attention import Varlen, packed, varlen
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.models.heads import ARCHITECTURES, BertWithHead
from bertcli.tokenizing.ragged import offsets_of
from bertcli.tokenizing.tokenizer import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places

# Packed batches are filled up to a multiple of so many tokens: few sizes, so that the kernels and
# the memory made for one batch serve the next. Else both pile up, to gigabytes.
EVEN = 64


@dataclass
class Encoder(Device):
    """A model on a device, run by this process."""

    model: BertModel | BertWithHead
    reading: Reading
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    varlen: Varlen | None = None  # a kernel for packed texts on a GPU, as `varlen_kernel` finds it

    def __post_init__(self) -> None:
        self.wire, self.where = Wire(self.device), str(self.device)
        self.depth = 2 if self.device.type == "cuda" else 1
        self.layers = self.reading.indices(self.bert.config.depth)
        self.model.eval()

    @property
    def bert(self) -> BertModel:
        """The model without its head."""
        return self.model.bert if isinstance(self.model, BertWithHead) else self.model

    @property
    def kernel(self) -> str:
        """The layout of texts of several lengths in a batch."""
        if self.varlen is not None:
            return "varlen"
        return "packed" if self.device.type == "cpu" else "padded"

    def batches(self, texts: Tokens, budget: int) -> Iterable[Places]:
        """Yield texts of similar length.

        Idle tokens of a DeBERTa attend to the whole row, where padding would change them.
        """
        if self.reading.idle is None or not self.bert.config.structure.blank_padding:
            yield from batches(texts.lengths, budget)
            return
        for length in np.unique(texts.lengths):
            alike = np.flatnonzero(texts.lengths == length)
            yield from (alike[part] for part in batches(texts.lengths[alike], budget))

    @torch.inference_mode()
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Give a batch to the device, and return what waits for its vectors."""
        attended, reading = self.reading.attended(batch), self.reading
        if self.kernel != "padded" and attended.all():
            states, tokens = self._packed(batch)
        else:
            states, tokens = self._padded(batch, attended)
        of_layers = {
            layer: state[tokens]
            for layer, state in enumerate(islice(states, max(self.layers) + 1))
            if layer in self.layers
        }
        x = combined([of_layers[layer] for layer in self.layers], reading.combine)
        if reading.mean:
            x = means(x, batch.lengths.tolist())
        elif reading.first or reading.token is not None:
            x = x[self.wire.there(reading.places(batch))]
        return self.wire.back(finish(self.model, x, reading.counts(batch)))

    def _packed(self, batch: Tokens) -> tuple[Iterator[Tensor], Any]:
        """Return the states of each layer [T, hidden], and the index of the tokens in them."""
        total = len(batch.ids)
        idle = -total % EVEN
        columns = np.zeros((3 + len(batch.extra), total + idle), np.int64)
        at = np.arange(total) - np.repeat(batch.offsets[:-1], batch.lengths)
        columns[:, :total] = np.stack([batch.ids, batch.types, at, *batch.extra.values()])
        ids, types, at, *others = self.wire.there(columns)
        # After the texts come the tokens that nobody asked for, each alone.
        lengths = np.append(batch.lengths, np.ones(idle, np.int64))
        kernel = self.bert.direction(packed(lengths.tolist()))
        if self.varlen is not None:
            ends = offsets_of(lengths).astype(np.int32)
            kernel = varlen(self.wire.there(ends), int(lengths.max()), self.varlen)
        extra = dict(zip(batch.extra, others, strict=True))
        states = self.bert.states(ids, types=types, at=at, extra=extra, kernels=kernel)
        return states, slice(total)

    def _padded(
        self, batch: Tokens, attended: NDArray[np.bool_]
    ) -> tuple[Iterator[Tensor], tuple[Tensor, ...]]:
        """Return the states of each layer [B, L, hidden], and the index of the tokens in them."""
        real = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        columns = np.zeros((2 + len(batch.extra), *real.shape), np.int64)
        columns[:, real] = np.stack([batch.ids, batch.types, *batch.extra.values()])
        looked_at = real.copy()
        looked_at[real] = attended
        keep, (ids, types, *others) = self.wire.there(looked_at), self.wire.there(columns)
        extra = dict(zip(batch.extra, others, strict=True))
        # The mask itself as the index would have to be waited for.
        return self.bert.states(ids, keep, types, extra=extra), tuple(
            map(self.wire.there, real.nonzero())
        )

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


def open_torch(spec: ModelSpec, tokenizer: Tokenizer, tell: Tell = SILENCE) -> Runtime:
    """Load a model, on as many devices as are named.

    Raises ModelError for a folder that is not a whole model of this kind, UsageError for a
    choice that this model or this machine cannot follow.
    """
    compute = spec.compute
    if spec.one_device:
        refuse_several(compute.device, "name one of them")
    threads = use_threads(compute.threads)
    places = devices(compute.device)
    if len({place.type for place in places}) > 1:
        raise UsageError(
            f"--device {compute.device} names devices of several kinds",
            "their results differ in the last digits; name devices of one kind",
        )
    device, names, budget = places[0], tuple(map(str, places)), budget_of(compute, places[0])
    share, runner = max(1, threads // len(places)), None
    if message := slow(dtype_of(compute.dtype), device):
        tell.warn(message)
    if len(places) > 1:
        computes = [replace(compute, threads=share, device=name) for name in names]
        openers = [partial(open_runner, replace(spec, compute=compute)) for compute in computes]
        runner = process_runner([*zip(names, openers, strict=True)], budget)
    try:
        encoder = _loaded(spec, device, tell, elsewhere=runner is not None)
    except BaseException:
        if runner:
            runner.close()
        raise
    facts = {
        "backend": "torch",
        "dtype": str(encoder.bert.embeddings.word_embeddings.weight.dtype)[6:],
        "kernel": encoder.kernel,
        "device": device.type,  # devices of a kind give the same numbers
        # where they compute: the last bits of a sum depend on them
        "threads": share if device.type == "cpu" else None,
        "batch_tokens": budget,
    }
    runner, config = runner or Runner([encoder], budget), encoder.bert.config
    return Runtime(spec, tokenizer, config, runner, names, threads, lambda: facts)


def open_runner(spec: ModelSpec) -> Runner:
    """Load a model in a process of its own, whose parent has checked it and says what is wrong."""
    use_threads(spec.compute.threads)
    (device,) = devices(spec.compute.device)
    return Runner([_loaded(spec, device)], budget_of(spec.compute, device))


def _loaded(
    spec: ModelSpec, device: torch.device, tell: Tell = SILENCE, *, elsewhere: bool = False
) -> Encoder:
    """Read the weights; where other processes run the model, only to see that they can."""
    dtype = dtype_of(spec.compute.dtype)
    model, _ = load(spec.folder, ARCHITECTURES[spec.kind], pooler=spec.pooler, dtype=dtype)
    put(model, torch.device("cpu") if elsewhere else device)
    encoder = Encoder(model, spec.reading, device)
    if device.type == "cuda":
        encoder.varlen = varlen_kernel(encoder.bert, device, tell)
    return encoder


def budget_of(compute: Compute, device: torch.device) -> int:
    """Return the tokens of a batch: few enough for a CPU's cache, or many for a GPU."""
    return compute.batch_tokens or (4096 if device.type == "cpu" else 1 << 16)
