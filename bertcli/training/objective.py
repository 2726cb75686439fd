"""What the loop asks of a task: rows of a step, and the losses of a part of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import encode
from bertcli.training.batches import Columns, TokenBatch
from bertcli.training.ranks import Ranks


class Objective(Protocol):
    """What a model is trained for: one loss or several, whose sum is minimised.

    A loss is a sum over the rows of a part, divided by a count over the rows of the whole step, so
    that a step is the same in any number of parts. Columns hold ``lengths``, the tokens of a row.
    """

    @property
    def losses(self) -> Sequence[str]:
        """The names of the losses in the log."""

    def read(self, rows: Any) -> Columns:
        """Return rows by their numbers."""

    def counts(self, found: Columns) -> Sequence[float]:
        """Return what each loss of a step is divided by."""

    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of each loss over some rows of a step."""


class StepParts(NamedTuple):
    """The rows of a step, and the parts of them that this process has."""

    rows: Columns
    own: Sequence[Columns]


@runtime_checkable
class JointObjective(Objective, Protocol):
    """An objective where the loss of a row depends on the other rows of its step."""

    def joined(
        self, model: Any, step: StepParts, seeds: Sequence[int], ranks: Ranks
    ) -> list[Columns]:
        """Return the parts of this process with what `sums` must know of all other rows.

        ``seeds`` are those with which `sums` runs on each part. Every process calls this.
        """


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return what computes in this precision; in float32 as without it."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


@contextmanager
def evaluating(model: nn.Module, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Compute without dropout and gradients, in this precision; then the model is in training."""
    model.eval()
    with torch.no_grad(), autocast(device, dtype):
        yield
    model.train()


def tensor(array: Any, device: torch.device) -> Tensor:
    """Return an array on a device."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def states(bert: BertModel, tokens: TokenBatch, device: torch.device) -> Tensor:
    """Return the last hidden states of a batch, [T, hidden]; padded: [B * width, hidden]."""
    ids, types = tensor(tokens.ids, device), tensor(tokens.types, device)
    extra = {name: tensor(column, device) for name, column in tokens.extra.items()}
    if not tokens.width:
        return encode(bert, ids, tokens.lengths.tolist(), types, extra)
    keep = torch.arange(tokens.width, device=device) < tensor(tokens.lengths, device)[:, None]
    extra = {name: column.view(keep.shape) for name, column in extra.items()}
    hidden: Tensor = bert(ids.view(keep.shape), keep, types.view(keep.shape), extra=extra)
    return hidden.flatten(0, 1)
