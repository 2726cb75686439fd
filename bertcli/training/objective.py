"""What a run asks of a task, and the loop of its objective: rows, losses, an evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bertcli.models.bert import BertModel
from bertcli.models.forward_passes import encode
from bertcli.training.batches import Columns, TokenBatch
from bertcli.training.options import TrainingOptions
from bertcli.training.ranks import Ranks
from bertcli.training.result import RunSummary

VECTORS = ".vectors"  # what a run that trains a head alone keeps


class StepParts(NamedTuple):
    """The rows of a step, and the parts of them that this process has."""

    rows: Columns
    own: list[Columns]


@dataclass(frozen=True)
class Objective(ABC):
    """What a model is trained for: one loss or several, whose sum is minimised.

    A loss is a sum over the rows of a part, divided by a count over the rows of the whole step, so
    that a step is the same in any number of parts. Columns hold ``lengths``, the tokens of a row.
    """

    losses: ClassVar[Sequence[str]] = ("loss",)  # their names in the log

    data: Any  # gives rows by their numbers: `columns`
    held: Any = ()  # the numbers of rows, or of examples, that no step trains on

    def read(self, rows: Any) -> Columns:
        """Return rows by their numbers."""
        found: Columns = self.data.columns(rows)
        return found

    @abstractmethod
    def counts(self, found: Columns) -> Sequence[float]:
        """Return what each loss of a step is divided by."""

    @abstractmethod
    def sums(self, model: Any, part: Columns, device: torch.device) -> Sequence[Tensor]:
        """Return the sum of each loss over some rows of a step."""

    def joined(
        self, model: Any, step: StepParts, seeds: Sequence[int], ranks: Ranks
    ) -> list[Columns]:
        """Return the parts of this process with what `sums` must know of all other rows: nothing.

        ``seeds`` are those with which `sums` runs on each part. Every process calls this.
        """
        return step.own

    @abstractmethod
    def evaluate(self, model: Any, ranks: Ranks, batch_size: int) -> dict[str, Any]:
        """Return the numbers of a model on the rows held out; all processes share the work."""


@dataclass(frozen=True, kw_only=True)
class TrainedTask(ABC):
    """What a run trains: the numbers of the run, losses, and the numbers of the rows to train on.

    ``notes`` are what a user should know before the first step.
    """

    keeps_best: ClassVar[bool] = True  # the weights with the least `eval_loss`, or the last ones

    options: TrainingOptions
    objective: Objective
    rows: Any
    notes: Sequence[str] = ()

    @property
    def patience(self) -> int:
        """Evaluations without a better one, after which the run ends; 0: it does not."""
        return 0

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What decides the results, beside the numbers of the run; files by their sha256."""

    @abstractmethod
    def model(self, checkpoint: Path | None) -> nn.Module:
        """Build the model, as before the first step or as it is in a checkpoint."""

    @abstractmethod
    def put(self, folder: Path, model: Any) -> None:
        """Write what `model` builds the same model from."""

    def keep(self, folder: Path) -> None:
        """Write what a resumed run need not compute again into the folder of the run: nothing."""
        (folder / VECTORS).unlink(missing_ok=True)  # those of a run of another method

    def publish(self, folder: Path, model: Any, summary: RunSummary) -> None:
        """Write the result, for bertcli and others to load: as `put` does."""
        self.put(folder, model)


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
