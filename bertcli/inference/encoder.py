"""Token ids to vectors: the model, run over batches of a token budget.

A batch is packed, without padding, on a CPU, and on a GPU whose kernel takes that; elsewhere it is
padded, of texts of similar length. In all cases what comes out is packed: the states of all tokens,
one text after the other, `[T, D]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertcli.errors import UsageError
from bertcli.inference.runner import BatchRunner, Finish, Kept, Reading, Tokens
from bertcli.inference.wire import Arriving, Wire
from bertcli.models.attention import Attend, Distance, Varlen, packed, padded, varlen
from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import means
from bertcli.models.heads import BertWithHead

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bertcli.inference.runner import Places

# Packed batches are filled up to a multiple of so many tokens: few sizes, so that the kernels and
# the memory made for one batch serve the next. Else both pile up, to gigabytes.
EVEN = 64
QUERIES = 4  # of a text of which only the first token asks


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
    linear: str = "plain"  # how `models.surgery.prepare` made its linear layers
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
        """Yield all texts: any of similar length make a batch."""
        yield np.arange(len(texts)), budget

    def vectors(self, batch: Tokens, finish: Finish) -> Kept:
        """Run a batch, packed or padded."""
        return self.begin(batch, finish)()

    @torch.inference_mode()
    def begin(self, batch: Tokens, finish: Finish) -> Arriving:
        """Give a batch to the device, and return what waits for its vectors."""
        states, kept = self._states(self._in_company(batch))
        return self.wire.back(finish(self.model, states, kept)[: len(batch)])

    def _in_company(self, batch: Tokens) -> Tokens:
        """Return the batch, with a second text where a product would have a single row.

        That of the only token, or the only [CLS], is added up in another order than several rows:
        vectors would depend on the batch, in their last bits.
        """
        single = len(batch) == 1 and (self.reading.single or len(batch.ids) == 1)
        if not single or self.kernel != "packed":
            return batch
        ids, types, offsets = batch.ids, batch.types, batch.offsets
        extra = {name: np.append(flat, 0) for name, flat in batch.extra.items()}
        end = np.append(offsets, len(ids) + 1)
        return Tokens(np.append(ids, 0), np.append(types, 0), end, extra)

    def _states(self, batch: Tokens) -> tuple[Tensor, list[int]]:
        """Run the model over one batch: what is read off it, packed, and how many of each text."""
        lengths, attended = batch.lengths.tolist(), self.reading.attended(batch)
        if self.kernel == "padded" or not attended.all():
            laid = self._padded(batch, attended)
        else:
            laid = self._packed(batch, lengths)
        only_first, top = self.reading.first, max(self.layers)
        picked = laid.first if only_first else laid.tokens
        wanted: dict[int, Tensor] = {}
        for index, state in enumerate(laid.states):
            if index in self.layers:
                wanted[index] = state[picked].reshape(-1, state.shape[-1])
            if only_first and index == top - 1:
                wanted[top] = self._first(top, state, laid)
            if top in wanted:
                break
        found = combined([wanted[index] for index in self.layers], self.reading.combine)
        if self.reading.token is not None:
            found = found[self.wire.there(np.flatnonzero(batch.ids == self.reading.token))]
        if self.reading.mean:
            found = means(found, lengths)
        return found, self.reading.counts(batch)

    def _first(self, index: int, below: Tensor, laid: BatchLayout) -> Tensor:
        """Run a layer for the first token of each text only, [n, hidden]."""
        encoder, whole = self.bert.encoder, below[laid.real]
        made = encoder.some(index - 1, below[laid.first], laid.asking, whole)
        return made.reshape(-1, made.shape[-1])

    def _packed(self, batch: Tokens, lengths: list[int]) -> BatchLayout:
        total = len(batch.ids)
        idle = -total % EVEN if total > EVEN else 0
        columns = np.zeros((3 + len(batch.extra), total + idle), np.int64)
        first = batch.offsets[:-1]
        at = np.arange(total) - np.repeat(first, batch.lengths)
        columns[:, :total] = np.stack([batch.ids, batch.types, at, *batch.extra.values()])
        ids, types, at, *rest = self.wire.there(columns)
        whole, asking = self._kernels(batch.offsets, lengths, idle)
        states = self.bert.states(
            ids,
            types=types,
            at=at,
            extra=dict(zip(batch.extra, rest, strict=True)),
            kernels=whole,
        )
        return BatchLayout(states, slice(total), slice(total), self.wire.there(first), asking)

    def _kernels(self, offsets: Places, lengths: Sequence[int], idle: int) -> tuple[Attend, Attend]:
        """Return the kernels for packed texts: for all tokens, and for the first of each text.

        After the texts come so many tokens that nobody asked for, each alone.
        """
        direction = self.bert.direction
        if self.varlen is None:
            asking = direction(packed(lengths, padded(at=0), queries=QUERIES))
            return direction(packed([*lengths, *[1] * idle])), repeated(asking)
        ends = np.append(offsets, offsets[-1] + np.arange(1, idle + 1)).astype(np.int32)
        bounds, longest = self.wire.there(ends), max(lengths)
        asking = varlen(bounds[: len(offsets)], longest, self.varlen, queries=1)
        return varlen(bounds, longest, self.varlen), asking

    def _padded(self, batch: Tokens, attended: NDArray[np.bool_]) -> BatchLayout:
        there = np.arange(batch.lengths.max()) < batch.lengths[:, None]
        columns = np.zeros((2 + len(batch.extra), *there.shape), np.int64)
        columns[:, there] = np.stack([batch.ids, batch.types, *batch.extra.values()])
        looked_at = there.copy()
        looked_at[there] = attended
        keep, (ids, types, *rest) = self.wire.there(looked_at), self.wire.there(columns)
        extra, direction = dict(zip(batch.extra, rest, strict=True)), self.bert.direction
        states = self.bert.states(ids, types=types, extra=extra, kernels=direction(padded(keep)))
        every, asking = slice(None), direction(padded(keep, at=0))
        # The mask itself as the index would have to be waited for.
        tokens = tuple(map(self.wire.there, there.nonzero()))
        return BatchLayout(states, every, tokens, (every, slice(1)), asking)

    def free(self) -> None:
        """Give back what is kept for later batches."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def repeated(kernel: Attend) -> Attend:
    """Make the kernel for one query a text of one that takes QUERIES a text: it asks them all.

    A single query is computed in another order by the number of texts and threads.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, distance: Distance, drop: float) -> Tensor:
        return kernel(q.repeat_interleave(QUERIES, 0), k, v, distance, drop)[::QUERIES]

    return attend


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
