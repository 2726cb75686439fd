"""Options of a training run: folders, numbers and learning rates. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertcli.errors import UsageError
from bertcli.files.paths import refuse_inputs
from bertcli.records.examples import USUAL, FieldNames


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to `peak`, then a polynomial decay to zero at `steps`; power 1 is linear.

    Source: BERT, appendix A.2; the values are those of transformers'
    get_polynomial_decay_schedule_with_warmup with lr_end 0.
    """

    peak: float
    warmup_steps: int
    steps: int
    power: float = 1.0

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: the first of a warm-up is 0."""
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if step >= self.steps:
            return 0.0
        left = 1 - (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return float(self.peak * left**self.power)


# What a resumed run may change: results stay the same, except for rounding and dropout.
FREE = (
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
)


@dataclass(frozen=True)
class TrainingOptions:
    """The numbers of a run; names and meanings are those of transformers' TrainingArguments.

    Batch sizes are global: over all processes and all parts that gradients are summed over.
    """

    steps: int | None = None
    epochs: float = 3.0  # used only without steps
    batch_size: int = 32
    learning_rate: float = 1e-4
    warmup_steps: int | None = None  # a tenth of the steps
    lr_power: float = 1.0
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0  # 0 never clips
    seed: int = 0
    dtype: str = "float32"  # of the computation; weights are always float32
    eval_fraction: float = 0.05
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    log_every: int = 10
    eval_every: int | None = None  # at the end alone
    save_every: int = 500
    keep: int = 2

    def numbers(self) -> dict[str, Any]:
        """Return the options that decide the results, which a resumed run must not change."""
        return {name: value for name, value in asdict(self).items() if name not in FREE}

    def schedule(self, rows: int) -> Schedule:
        """Return the learning rates for this number of rows; UsageError without steps."""
        steps = ceil(self.epochs * rows / self.batch_size) if self.steps is None else self.steps
        if not steps:
            raise UsageError("no steps to train", "increase --steps or --epochs")
        warmup = steps // 10 if self.warmup_steps is None else self.warmup_steps
        if warmup >= steps:
            raise UsageError(
                f"--warmup-steps {warmup} leaves none of the {steps} steps for the decay",
                "decrease it, or increase --steps or --epochs",
            )
        return Schedule(self.learning_rate, warmup, steps, self.lr_power)


@dataclass(frozen=True)
class FineTuningJob:
    """What to learn from which examples, beginning with which model."""

    file: str
    base: str = ""  # the model, as it was named
    task: str | None = None  # None: as the fields say
    fields: FieldNames = USUAL
    frozen: bool | None = None  # train a head alone; None: by the number of examples
    extra: Mapping[str, str] = field(default_factory=dict)  # embedding -> field with its ids
    layers: int | None = None  # train from this layer up; None: everything
    eval: str | None = None
    eval_fraction: float = 0.1
    patience: int | None = None
    max_length: int | None = None
    class_weights: Literal["balanced"] | None = None
    label_smoothing: float = 0.0
    epochs: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    eval_every: int | None = None  # None: after each epoch
    log_every: int | None = None

    def settled(self, options: TrainingOptions, rows: int, *, frozen: bool) -> TrainingOptions:
        """Return the numbers of the run, with defaults for what was not given."""
        usual = FROZEN if frozen else FULL
        size, steps = self.batch_size or usual.batch_size, options.steps
        if frozen and steps is None and self.epochs is None:
            steps = max(ceil(usual.epochs * rows / size), LEAST_STEPS)
        settled = replace(
            options,
            steps=steps,
            epochs=usual.epochs if self.epochs is None else self.epochs,
            batch_size=size,
            learning_rate=usual.learning_rate if self.learning_rate is None else self.learning_rate,
            eval_fraction=self.eval_fraction,
            log_every=self.log_every or usual.log_every,
        )
        often = max(ceil(rows / size), settled.schedule(rows).steps // MOST_EVALUATIONS)
        return replace(settled, eval_every=self.eval_every or often)


class Usual(NamedTuple):
    """The numbers of a run where none are given."""

    epochs: float
    batch_size: int
    learning_rate: float
    log_every: int


FULL = Usual(epochs=3, batch_size=32, learning_rate=5e-5, log_every=10)
FROZEN = Usual(epochs=30, batch_size=64, learning_rate=1e-3, log_every=100)
LEAST_STEPS = 1000  # of a head alone, however few the examples
MOST_EVALUATIONS = 50  # unless asked for
# Labelled examples up to which a head alone is trained, unless --full says otherwise: the most at
# which full training was not measurably better. See benchmarks/README.md.
FEW = 1000


@dataclass(frozen=True)
class PretrainingJob:
    """What to train, and on which instances."""

    data: Path
    config: str | None = None  # a file, or a name of pretraining.SIZES
    init: Path | None = None  # a model folder to start from, instead of a config
    eval_dir: Path | None = None  # instead of eval_fraction
    extra: Mapping[str, str] = field(default_factory=dict)  # embedding -> field; empty: all


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and what to do with what is there."""

    output: Path
    resume: bool = False
    overwrite: bool = False

    def refuse_inputs(self, *named: str | Path | None) -> None:
        """Raise OutputError when a file or folder to read is in this one, which a run clears."""
        inputs: list[str | Path] = [path for path in named if path]
        inputs += [file for path in inputs if os.path.isdir(path) for file in Path(path).rglob("*")]
        refuse_inputs(inputs, [self.output, *self.output.rglob("*")])


@dataclass(frozen=True)
class PrepareOptions:
    """How instances are made; the defaults are those of the BERT paper."""

    max_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    dupe_factor: int = 5
    whole_word: bool = False
    seed: int = 0
