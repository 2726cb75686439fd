"""The training loop: processes, batches, the objective of a task, AdamW, optimizer steps.

Rows are numbers of training examples, which only the objective reads. A run has one process, or
those that torchrun started: `Ranks`.
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

from bertcli.engines.engine import PackedTokens
from bertcli.engines.torch_engine import devices, dtype_of
from bertcli.errors import BertcliError, UsageError, option
from bertcli.model_folder.files import TOKENIZER_FILES
from bertcli.model_folder.load import Model, load, save
from bertcli.models.attention import packed
from bertcli.models.bert import BertEncoder, BertModel
from bertcli.models.config import BertConfig
from bertcli.tokenizing.run import TokenCounts
from bertcli.training.options import TrainingOptions, batches_of

# --- processes ---


@dataclass(frozen=True)
class Ranks:
    """The rank of this process, the number of processes, and the device."""

    device: torch.device
    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """True for the process that writes files."""
        return self.index == 0

    def sum(self, tensor: Any) -> None:
        """Replace a tensor by its sum over all processes. Raises BertcliError if one has died."""
        if self.count > 1:
            try:
                distributed.all_reduce(tensor)
            except RuntimeError as error:
                raise BertcliError(
                    f"process {self.index} lost its connection to the others: "
                    f"{str(error).splitlines()[0]}",
                    "see the message of the process that ended first",
                ) from None

    def wait(self) -> None:
        """Wait for all processes."""
        self.sum(torch.zeros(1, device=self.device))


@contextmanager
def joined_processes(device_name: str) -> Iterator[Ranks]:
    """Yield the ranks of the processes that torchrun started, or of this process alone.

    With several processes, the devices auto and cuda are one GPU for each process.
    """
    count = int(os.environ.get("WORLD_SIZE", 1))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_device = device_name
    if count > 1 and device_name in ("auto", "cuda"):
        has_gpu = device_name == "cuda" or torch.cuda.is_available()
        local_device = f"cuda:{local_rank}" if has_gpu else "cpu"
    device, *further_devices = devices(local_device)
    if further_devices:
        raise UsageError(
            f"{option('device', device_name)}: each process trains on one device",
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
        ranks.wait()  # a process that exits earlier can crash gloo in the others
    finally:
        distributed.destroy_process_group()


# --- rows ---


@lru_cache(2)
def epoch_order(count: int, seed: int, epoch: int) -> Any:
    """Return the numbers below ``count`` in the random order of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(count)


def rows_of_step(rows: Any, step: int, size: int, seed: int) -> Any:
    """Return the rows of the batch of a step, counted from 0.

    Every epoch is shuffled, and a batch may span epochs. The rows depend on the seed and the step
    alone, so there is no state to save.
    """
    epochs, positions = np.divmod(np.arange(step * size, (step + 1) * size), len(rows))
    numbers = []
    for epoch in range(epochs[0], epochs[-1] + 1):
        order = epoch_order(len(rows), seed, epoch)
        numbers.append(order[positions[epochs == epoch]])
    return rows[np.concatenate(numbers)]


# --- tasks ---


LossSums = Callable[[Any], Sequence[Tensor]]  # positions of a micro-batch -> the sum of each loss


@dataclass(frozen=True)
class Objective(ABC):
    """The losses of a task; their sum is minimised.

    A loss is a sum over the rows of a micro-batch, divided by a count over the rows of the whole
    step, so that a step is the same for any number of micro-batches.
    """

    losses: ClassVar[Sequence[str]] = ("loss",)  # their names in the log

    inputs: Any  # of the model, for all rows: tokens, vectors or instances
    held_out: Any = ()  # rows for evaluation

    def lengths(self, rows: Any) -> Any:
        """Return the number of tokens of each row."""
        return self.inputs.lengths[rows]

    def counts(self, rows: Any) -> Sequence[float]:
        """Return the divisors of the losses of a step: by default the number of rows."""
        return (len(rows),)

    @abstractmethod
    def predict(self, model: Any, rows: Any) -> Any:
        """Return the predictions of a model for rows, as `sums` takes them."""

    @abstractmethod
    def sums(self, predicted: Any, rows: Any) -> Sequence[Tensor]:
        """Return the sum of each loss over rows."""

    def micro_batch_sums(
        self,
        model: Any,
        rows: Any,
        micro_batches: Sequence[Any],
        seeds: Sequence[int],
        ranks: Ranks,
    ) -> LossSums:
        """Return the function that computes the loss sums of a micro-batch.

        ``rows`` are all rows of the step, ``micro_batches`` the positions in ``rows`` of each
        micro-batch of this process, and ``seeds`` the seed of each. Every process calls this.
        """

        def sums(positions: Any) -> Sequence[Tensor]:
            return self.sums(self.predict(model, rows[positions]), rows[positions])

        return sums

    def outputs(self, predicted: Any) -> Any:
        """Return the outputs of a held-out batch for `metrics`, on the CPU."""
        return predicted.float().cpu()

    @abstractmethod
    def metrics(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """Return the metrics other than losses, from the outputs of all held-out batches."""

    def evaluate(
        self, model: Any, batch_size: int, dtype: torch.dtype = torch.float32
    ) -> dict[str, Any]:
        """Return losses and metrics on the held-out rows; every process evaluates all of them.

        The model computes in this dtype, without dropout and gradients; afterwards it is in
        training mode.
        """
        model.eval()
        sums = np.zeros(len(self.losses))
        outputs = []
        with torch.no_grad(), autocast(next(model.parameters()).device, dtype):
            for rows in batches_of(self.held_out, batch_size):
                predicted = self.predict(model, rows)
                sums += [loss.item() for loss in self.sums(predicted, rows)]
                outputs.append(self.outputs(predicted))
        model.train()
        means = (sums / self.counts(self.held_out)).tolist()
        metrics = {"eval_loss": sum(means)}
        for name, mean in zip(self.losses, means, strict=True):
            metrics[f"eval_{name}"] = mean
        return metrics | self.metrics(outputs)


@dataclass(frozen=True, kw_only=True)
class TrainedTask:
    """A task to train: its options, its objective, and the rows to train on.

    ``identity`` has what the results depend on beside the options, files by their sha256.
    ``notes`` are shown to the user before the first step.
    """

    options: TrainingOptions
    objective: Objective
    rows: Any
    identity: dict[str, Any]
    build: Callable[[Path | None], nn.Module]  # returns the initial model, or a checkpoint's
    write_checkpoint: Callable[[Path, Any], None]  # for ``build``
    publish: Callable[[Path, Any], None]  # writes the trained model
    manifest: Mapping[str, Any] | None = None  # of the result, without its metrics
    notes: Sequence[str] = ()
    keeps_best: bool = True  # the result has the weights of the least `eval_loss`, else the last
    tally: TokenCounts = field(default_factory=TokenCounts)  # of the training texts
    max_length: int | None = None  # of a text, in tokens


def copied_model(initial_model: Model, checkpoint: Path | None) -> Any:
    """Return a copy of the initial model, or the model of a checkpoint, if given.

    Weights are copied, because the alignment of mapped memory can change the last bits of results.
    """
    if checkpoint is not None:
        initial_model, _ = load(checkpoint, type(initial_model), dtype=torch.float32)
    return deepcopy(initial_model)


def write_model(folder: Path, model: Model, config: BertConfig, tokenizer: Path) -> None:
    """Write a model and its tokenizer to a folder, for bertcli and transformers."""
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)
    save(model, config, folder)


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """Return the context in which torch computes in this dtype; it does nothing for float32."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def tensor(array: Any, like: Tensor) -> Tensor:
    """Copy an array to the device of another tensor."""
    return torch.from_numpy(array).to(like.device, non_blocking=True)


def hidden_states(bert: BertModel, tokens: PackedTokens) -> Tensor:
    """Return the last hidden states of a batch, [T, hidden].

    Texts are packed on a CPU, which is fastest if neighbours have equal lengths, and padded on a
    GPU.
    """
    weight = next(bert.parameters())
    if weight.is_cpu:
        ids, types, extra_ids = _input_tensors(tokens, tokens.columns.T.astype(np.int64), weight)
        positions = tensor(tokens.positions, weight)
        kernel = bert.direction(packed(tokens.lengths.tolist()))
        return bert.hidden(ids, None, types, positions, extra_ids, kernel)
    columns, indices, attended = tokens.padded(int(tokens.lengths.max()))
    ids, types, extra_ids = _input_tensors(tokens, columns, weight)
    hidden = bert.hidden(ids, tensor(attended, weight), types, None, extra_ids)
    return hidden.flatten(0, 1).index_select(0, tensor(indices, weight))


def _input_tensors(
    tokens: PackedTokens, columns: Any, weight: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return the ids, the token types and the extra ids of a batch on the device of a weight."""
    ids, types, *extra_ids = tensor(columns, weight)
    return ids, types, dict(zip(tokens.extra_embeddings, extra_ids, strict=True))


# --- the optimizer ---


def moments(optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """Return the state of the optimizer: NUMBER.NAME -> tensor, by the number of the weight."""
    return {
        f"{number}.{name}": moment
        for number, state in optimizer.state_dict()["state"].items()
        for name, moment in state.items()
    }


def restore_moments(optimizer: torch.optim.AdamW, stored: Mapping[str, Tensor]) -> None:
    """Restore the state of the optimizer that `moments` returned."""
    restored = optimizer.state_dict()
    for key, moment in stored.items():
        number, _, name = key.partition(".")
        restored["state"].setdefault(int(number), {})[name] = moment
    optimizer.load_state_dict(restored)


# --- steps ---


class Training:
    """A model, its objective and its optimizer; `step` updates the weights once.

    Losses are means over the whole batch. Gradients are divided by the counts of the whole batch
    before they are summed, so that any number of processes and micro-batches gives the same
    weights, up to rounding. Dropout depends on the seed, the step, the process and the micro-batch.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        rows: Any,
        options: TrainingOptions,
        ranks: Ranks,
    ) -> None:
        self.model = model.train()
        self.objective = objective
        self.options = options
        self.ranks = ranks
        self.rows = rows
        self.weights: list[nn.Parameter] = []
        with_decay: list[nn.Parameter] = []
        without_decay: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                weight.grad = torch.zeros_like(weight)  # for processes without rows in a step
                # Source: BERT, appendix A.2, and the optimizer of google-research/bert.
                if name.endswith("bias") or "LayerNorm" in name:
                    without_decay.append(weight)
                else:
                    with_decay.append(weight)
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
        is_float16 = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(ranks.device.type, enabled=is_float16)
        if options.gradient_checkpointing:
            for module in model.modules():
                if isinstance(module, BertEncoder):
                    module.recompute = True

    def step(self, number: int) -> dict[str, float]:
        """Run a step, numbered from 0.

        Return the losses, the learning rate, the norm of the gradients and the number of tokens.
        Raises FloatingPointError if the loss or the norm is not finite.
        """
        objective = self.objective
        ranks = self.ranks
        rows = rows_of_step(self.rows, number, self.options.batch_size, self.options.seed)
        counts = torch.tensor(objective.counts(rows), device=ranks.device)
        lengths = objective.lengths(rows)
        learning_rate = self.options.learning_rate_of(number)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=False)
        micro_batches = self._micro_batches(lengths)
        seeds = [self._seed(number, index) for index in range(len(micro_batches))]
        with autocast(ranks.device, self.dtype):
            loss_sums = objective.micro_batch_sums(self.model, rows, micro_batches, seeds, ranks)
        sums = torch.zeros(len(counts), device=ranks.device)
        for positions, seed in zip(micro_batches, seeds, strict=True):
            torch.manual_seed(seed)
            with autocast(ranks.device, self.dtype):
                micro_sums = torch.stack(list(loss_sums(positions)))
            loss: Tensor = self.scaler.scale((micro_sums / counts).sum())
            loss.backward()
            sums += micro_sums.detach()
        ranks.sum(sums)
        for weight in self.weights:
            ranks.sum(weight.grad)
        self.scaler.unscale_(self.optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self.weights, self.options.max_grad_norm or inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        *losses, norm = torch.cat([sums / counts, grad_norm[None]]).tolist()
        was_skipped = self.scaler.is_enabled() and not isfinite(norm)  # by the gradient scaler
        if not isfinite(sum(losses)) or not (was_skipped or isfinite(norm)):
            raise FloatingPointError(
                f"the loss is {sum(losses)}, and the norm of the gradients {norm}"
            )
        values = dict(zip(objective.losses, losses, strict=True))
        return values | {"lr": learning_rate, "grad_norm": norm, "tokens": int(lengths.sum())}

    def _micro_batches(self, lengths: Any) -> list[Any]:
        """Return the positions of the rows of each micro-batch of this process.

        All micro-batches have about as many tokens; in each, the longest row comes first.
        """
        count = self.ranks.count * self.options.gradient_accumulation_steps
        longest_first = np.argsort(-lengths, kind="stable")
        numbers = range(self.ranks.index, min(count, len(lengths)), self.ranks.count)
        return [longest_first[number::count] for number in numbers]

    def _seed(self, step: int, micro_batch: int) -> int:
        """Return the seed of the dropout in a micro-batch of this process."""
        key = (self.options.seed, step, self.ranks.index, micro_batch)
        return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0])
