"""The training loop: a task with its objective, AdamW, and one optimizer step after another.

Rows are numbers: what stands in them is the objective's. The processes of a run are its `Ranks`:
one alone, or those that torchrun started.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from bertcli.engines.engine import Reading, Tokens
from bertcli.engines.torch_engine import devices, dtype_of
from bertcli.errors import BertcliError, UsageError, option
from bertcli.model_folder.files import TOKENIZER_FILES
from bertcli.model_folder.load import Model, load, save
from bertcli.models.attention import packed
from bertcli.models.bert import BertEncoder, BertModel
from bertcli.models.config import BertConfig
from bertcli.tokenizing.run import TokenCounts
from bertcli.training.options import TrainingOptions, in_batches

# --- processes ---


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of processes, and the device."""

    device: torch.device
    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes for all."""
        return self.index == 0

    def sum(self, tensor: Any) -> None:
        """Replace a tensor by the sum over all processes; BertcliError when one of them died."""
        if self.count > 1:
            try:
                distributed.all_reduce(tensor)
            except RuntimeError as lost:
                raise BertcliError(
                    f"process {self.index} lost its connection to the others: "
                    f"{str(lost).splitlines()[0]}",
                    "see the message of the process that ended first",
                ) from None

    def wait(self) -> None:
        """Wait for all processes."""
        self.sum(torch.zeros(1, device=self.device))


@contextmanager
def joined(name: str) -> Iterator[Ranks]:
    """Join the processes that torchrun started; without torchrun there is one.

    `name` is a device; with several processes auto and cuda are each one's own GPU.
    """
    count, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    own = name
    if count > 1 and name in ("auto", "cuda"):
        own = f"cuda:{local}" if name == "cuda" or torch.cuda.is_available() else "cpu"
    device, *others = devices(own)
    if others:
        raise UsageError(
            f"{option('device', name)}: each process trains on one device",
            "start one process per GPU: torchrun --nproc-per-node 2 -m bertcli ...",
        )
    if count == 1:
        yield Ranks(device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        ranks = Ranks(device, distributed.get_rank(), count)
        yield ranks
        ranks.wait()  # one that leaves earlier can take down gloo's threads in the others
    finally:
        distributed.destroy_process_group()


# --- rows ---


@lru_cache(2)
def epoch_order(count: int, seed: int, epoch: int) -> Any:
    """Return the numbers below ``count`` in the order of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def batch_of(rows: Any, step: int, size: int, seed: int) -> Any:
    """Return the rows of a step, counted from 0.

    Each epoch is shuffled on its own, and batches may span two epochs: a function of the seed and
    the step alone, so there is no state to save.
    """
    epochs, places = np.divmod(np.arange(step * size, (step + 1) * size), len(rows))
    inside = [
        epoch_order(len(rows), seed, epoch)[places[epochs == epoch]]
        for epoch in range(epochs[0], epochs[-1] + 1)
    ]
    return rows[np.concatenate(inside)]


# --- what a run asks of a task ---


Sums = Callable[[Any], Sequence[Tensor]]  # runs the model for a part; the sum of each loss


@dataclass(frozen=True)
class Objective(ABC):
    """What a model is trained for: one loss or several, whose sum is minimised.

    A loss is a sum over the rows of a part, divided by a count over the rows of the whole step, so
    that a step is the same in any number of parts.
    """

    losses: ClassVar[Sequence[str]] = ("loss",)  # their names in the log

    data: Any
    held: Any = ()  # the numbers of rows that no step trains on

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of each row."""
        return self.data.lengths[rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return what each loss of a step is divided by: the number of rows."""
        return (len(rows),)

    @abstractmethod
    def predict(self, model: Any, rows: Any) -> Any:
        """Return what a model makes of rows, as `sums` takes it."""

    @abstractmethod
    def sums(self, predicted: Any, rows: Any) -> Sequence[Tensor]:
        """Return the sum of each loss over rows."""

    def parts(
        self, model: Any, rows: Any, own: Sequence[Any], seeds: Sequence[int], ranks: Ranks
    ) -> Sums:
        """Return what gives the sums of a part of a step.

        ``rows`` are those of the step, ``own`` the places in it of the parts of this process, and
        ``seeds`` those with which the sums are computed. Every process calls this.
        """

        def sums(places: Any) -> Sequence[Tensor]:
            return self.sums(self.predict(model, rows[places]), rows[places])

        return sums

    def outputs(self, predicted: Any) -> Any:
        """Return what `metrics` gets of each batch held out, on the CPU."""
        return predicted.float().cpu()

    @abstractmethod
    def metrics(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the numbers of a model, beside its losses, from its outputs for all batches."""

    def evaluate(
        self, model: Any, batch_size: int, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Return the numbers of a model on the rows held out; every process does it all.

        It computes without dropout and gradients, in this precision, and is then in training.
        """
        model.eval()
        sums, outputs = np.zeros(len(self.losses)), []
        with torch.no_grad(), autocast(next(model.parameters()).device, dtype):
            for rows in in_batches(self.held, batch_size):
                predicted = self.predict(model, rows)
                sums += [loss.item() for loss in self.sums(predicted, rows)]
                outputs.append(self.outputs(predicted))
        model.train()
        means = (sums / self.counts(self.held)).tolist()
        named = {f"eval_{name}": mean for name, mean in zip(self.losses, means, strict=True)}
        return {"eval_loss": sum(means), **named, **self.metrics(outputs)}


@dataclass(frozen=True, kw_only=True)
class TrainedTask:
    """What a run trains: the numbers of the run, losses, and the numbers of the rows to train on.

    ``identity`` is what decides the results, beside the numbers of the run; files by their sha256.
    ``notes`` are what a user should know before the first step.
    """

    options: TrainingOptions
    objective: Objective
    rows: Any
    identity: dict[str, Any]
    build: Callable[[Path | None], nn.Module]  # as before the first step, or from a checkpoint
    put: Callable[[Path, Any], None]  # writes what ``build`` builds the same model from
    publish: Callable[[Path, Any], None]  # writes the result, for others to load
    manifest: Mapping[str, Any] | None = None  # of the result, but for its metrics
    notes: Sequence[str] = ()
    keeps_best: bool = True  # the weights with the least `eval_loss`, or the last ones
    tally: TokenCounts = field(default_factory=TokenCounts)  # of the texts
    max_length: int | None = None  # tokens of a text


def rebuilt(start: Model, checkpoint: Path | None) -> Any:
    """Return a model as it begins, or as it is in a checkpoint of it.

    Weights are copied, not mapped, whose address can change last bits.
    """
    if checkpoint is not None:
        start, _ = load(checkpoint, type(start), dtype=torch.float32)
    return deepcopy(start)


def put_model(folder: Path, model: Model, config: BertConfig, tokenizer: Path) -> None:
    """Write a model with its tokenizer, for bertcli and transformers."""
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    save(model, config, folder)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return what computes in this precision; in float32 as without it."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def tensor(array: Any, beside: Tensor) -> Tensor:
    """Return an array on the device of another tensor."""
    return torch.from_numpy(array).to(beside.device, non_blocking=True)


def states(bert: BertModel, tokens: Tokens) -> Tensor:
    """Return the last hidden states of a batch, [T, hidden].

    A GPU pads them; a CPU gets them one after the other, and is fastest where those of equal length
    are neighbours.
    """
    weight, keep, at, kernel = next(bert.parameters()), None, None, None
    if weight.is_cpu:
        columns, at = tokens.columns.T.astype(np.int64), tensor(tokens.places, weight)
        kernel = bert.direction(packed(tokens.lengths.tolist()))
    else:
        columns, places, attended = Reading().padded(tokens, int(tokens.lengths.max()))
        keep, real = tensor(attended, weight), tensor(places, weight)
    ids, types, *others = tensor(columns, weight)
    extra = dict(zip(tokens.extra, others, strict=True))
    hidden = bert.hidden(ids, keep, types, at, extra, kernel)
    return hidden if kernel else hidden.flatten(0, 1).index_select(0, real)


# --- weights and their optimizer ---


def moments(optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return the moments of the optimizer, by the number of the weight and their name."""
    return {
        f"{number}.{name}": moment
        for number, state in optimizer.state_dict()["state"].items()
        for name, moment in state.items()
    }


def restore_moments(optimizer: torch.optim.AdamW, stored: Mapping[str, Tensor]) -> None:
    """Restore what `moments` returned."""
    restored = optimizer.state_dict()
    for key, moment in stored.items():
        number, _, name = key.partition(".")
        restored["state"].setdefault(int(number), {})[name] = moment
    optimizer.load_state_dict(restored)


# --- steps ---


class Training:
    """A model, its optimizer and its objective: `step` moves the weights once.

    Losses are means over the whole batch, whoever computes which part of it. Every process sums
    gradients that are already divided by the counts of the whole batch, so that any number of
    processes and of parts gives the same weights, up to rounding. Dropout is seeded by the seed,
    the step, the process and the part.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        rows: Any,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self.model, self.objective = model.train(), objective
        self.options, self.ranks = options, ranks
        self.rows = rows
        self.weights: list[nn.Parameter] = []
        with_decay: list[nn.Parameter] = []
        without_decay: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight)  # also where a process has no rows for it
                # Source: BERT, appendix A.2, and the optimizer of google-research/bert.
                no_decay = name.endswith("bias") or "LayerNorm" in name
                (without_decay if no_decay else with_decay).append(weight)
                self.weights.append(weight)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": with_decay, "weight_decay": options.weight_decay},
                {"params": without_decay, "weight_decay": 0.0},
            ],
            lr=options.learning_rate,
            betas=(options.adam_beta1, options.adam_beta2),
            eps=options.adam_epsilon,
            fused=self.weights[0].device.type in ("cpu", "cuda"),
        )
        self.dtype = dtype_of(options.dtype)
        half = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=half)
        if options.gradient_checkpointing:
            for part in model.modules():
                if isinstance(part, BertEncoder):
                    part.recompute = True

    def step(self, number: int) -> dict[str, float]:
        """Run a step, numbered from 0; FloatingPointError when its loss is not finite.

        Return the losses, the learning rate, the norm of the gradients and the number of tokens.
        """
        objective, ranks = self.objective, self.ranks
        rows = batch_of(self.rows, number, self.options.batch_size, self.options.seed)
        counts = torch.tensor(objective.counts(rows), device=ranks.device)
        lengths = objective.lengths(rows)
        rate = self.options.rate(number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=False)
        pieces = ranks.count * self.options.gradient_accumulation_steps
        # The parts have about as many tokens each, and in each the longest row comes first.
        longest_first = np.argsort(-lengths, kind="stable")
        parts = range(ranks.index, min(pieces, len(rows)), ranks.count)
        own = [longest_first[part::pieces] for part in parts]
        keys = ((self.options.seed, number, ranks.index, part) for part in range(len(own)))
        seeds = [int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0]) for key in keys]
        with autocast(ranks.device, self.dtype):
            sums_of = objective.parts(self.model, rows, own, seeds, ranks)
        sums = torch.zeros(len(counts), device=ranks.device)
        for places, seed in zip(own, seeds, strict=True):
            torch.manual_seed(seed)
            with autocast(ranks.device, self.dtype):
                of_part = torch.stack([*sums_of(places)])
            loss: Tensor = self.scaler.scale((of_part / counts).sum())
            loss.backward()
            sums += of_part.detach()
        ranks.sum(sums)
        for weight in self.weights:
            ranks.sum(weight.grad)
        self.scaler.unscale_(self.optimizer)
        clipped = nn.utils.clip_grad_norm_(self.weights, self.options.max_grad_norm or inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        *losses, norm = torch.cat([sums / counts, clipped[None]]).tolist()
        skipped = self.scaler.is_enabled() and not isfinite(norm)
        if not isfinite(sum(losses) + (0 if skipped else norm)):
            raise FloatingPointError(
                f"the loss is {sum(losses)}, and the norm of the gradients {norm}"
            )
        named = dict(zip(objective.losses, losses, strict=True))
        return {**named, "lr": rate, "grad_norm": norm, "tokens": int(lengths.sum())}
