"""Options of a training run, and its learning rates. Imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil, inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bertcli.engines.compute import refuse_unknown_devices
from bertcli.errors import UsageError, option
from bertcli.keywords import refuse_outside
from bertcli.tasks.learning import DEFAULT_NAMES, FieldNames

INDEX = "instances.json"  # name in a folder of training instances

# Options that a resumed run may change: they affect results only by rounding and dropout.
CHANGEABLE_ON_RESUME = (
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "log_every",
    "eval_every",
    "save_every",
    "keep",
)


MINIMUMS = {  # minimum values of integer options
    "steps": 1,
    "batch_size": 1,
    "warmup_steps": 0,
    "seed": 0,
    "gradient_accumulation_steps": 1,
    "log_every": 1,
    "eval_every": 1,
    "patience": 1,
    "save_every": 1,
    "keep": 1,
}
MAXIMUMS = {  # maximum values of decimal options; all minimums are 0
    "epochs": inf,
    "learning_rate": inf,
    "lr_power": inf,
    "weight_decay": inf,
    "adam_beta1": 0.9999,
    "adam_beta2": 0.9999,
    "adam_epsilon": inf,
    "max_grad_norm": inf,
    "eval_fraction": 0.9,
}


@dataclass(frozen=True)
class TrainingOptions:
    """The numeric options of a run, named as in transformers' TrainingArguments.

    Batch sizes are global: over all processes and all accumulated gradients.
    """

    steps: int | None = None  # set by `with_steps`
    epochs: float = 3.0  # used only without steps
    batch_size: int = 32
    learning_rate: float = 1e-4
    warmup_steps: int | None = None  # default: a tenth of the steps
    lr_power: float = 1.0
    weight_decay: float = 0.01
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-6
    max_grad_norm: float = 1.0  # 0 disables clipping
    seed: int = 0
    dtype: str = "float32"  # of the computation; weights are always float32
    eval_fraction: float = 0.05
    gradient_accumulation_steps: int = 1
    gradient_checkpointing: bool = False
    log_every: int = 10
    eval_every: int | None = None  # default: only at the end
    patience: int | None = None  # evaluations without improvement after which the run ends
    save_every: int = 500
    keep: int = 2

    def __post_init__(self) -> None:
        """Raise UsageError for values that are out of range."""
        refuse_outside(self, MINIMUMS, MAXIMUMS)

    def fixed_options(self) -> dict[str, Any]:
        """Return the options that determine the results, which a resumed run must not change."""
        return {
            name: value for name, value in asdict(self).items() if name not in CHANGEABLE_ON_RESUME
        }

    def with_steps(self, rows: int) -> TrainingOptions:
        """Return a copy with the steps for this number of rows. Raises UsageError for 0 steps."""
        steps = ceil(self.epochs * rows / self.batch_size) if self.steps is None else self.steps
        if not steps:
            raise UsageError(
                "no steps to train", f"increase {option('steps')} or {option('epochs')}"
            )
        warmup = steps // 10 if self.warmup_steps is None else self.warmup_steps
        if warmup >= steps:
            raise UsageError(
                f"{option('warmup_steps', warmup)} leaves none of the {steps} steps for the decay",
                f"decrease it, or increase {option('steps')} or {option('epochs')}",
            )
        return replace(self, steps=steps, warmup_steps=warmup)

    def learning_rate_of(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0. The first warm-up step has rate 0.

        A linear warm-up is followed by a polynomial decay to zero; power 1 is linear. Source: BERT,
        appendix A.2. The values equal those of transformers'
        get_polynomial_decay_schedule_with_warmup with lr_end 0.
        """
        steps = self.steps or 0
        warmup = self.warmup_steps or 0
        if step < warmup:
            return self.learning_rate * step / warmup
        remaining = max((steps - step) / (steps - warmup), 0.0)  # share of the decay, from 1 to 0
        return float(self.learning_rate * remaining**self.lr_power)


Task: TypeAlias = Literal["classify", "multilabel", "regress", "tag", "answer", "embed"]


@dataclass(frozen=True)
class FineTuningJob:
    """The model to start from, the examples, and what to train."""

    file: str
    base: str = ""  # the model, as the user named it
    task: Task | None = None  # None: inferred from the fields
    fields: FieldNames = DEFAULT_NAMES
    frozen: bool | None = None  # train only a head; None: depends on the number of examples
    extra: Mapping[str, str] = field(default_factory=dict)  # extra embedding -> field of its ids
    layers: int | None = None  # first layer to train; None: all weights are trained
    eval: str | None = None
    eval_fraction: float = 0.1
    max_length: int | None = None
    class_weights: Literal["balanced"] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        refuse_outside(
            self,
            {"layers": 0, "max_length": 3},
            {"eval_fraction": 0.9, "label_smoothing": 0.99},
        )


FULL_DEFAULTS = {"learning_rate": 5e-5}
FROZEN_DEFAULTS = {"epochs": 30, "batch_size": 64, "learning_rate": 1e-3, "log_every": 100}
MIN_FROZEN_STEPS = 1000  # minimum steps of a head on a frozen model, if steps are not given
MAX_EVALUATIONS = 50  # maximum evaluations, if eval_every is not given


def fine_tuning_options(options: Mapping[str, Any], rows: int, *, frozen: bool) -> TrainingOptions:
    """Return the options of a fine-tuning run, with defaults for missing or None values."""
    names = {field.name for field in fields(TrainingOptions)}
    given = {name: options[name] for name in names & options.keys() if options[name] is not None}
    defaults = FROZEN_DEFAULTS if frozen else FULL_DEFAULTS
    training_options = TrainingOptions(**{**defaults, **given})
    if frozen and given.keys().isdisjoint(("steps", "epochs")):
        steps = max(
            ceil(training_options.epochs * rows / training_options.batch_size), MIN_FROZEN_STEPS
        )
        training_options = replace(training_options, steps=steps)
    training_options = training_options.with_steps(rows)
    steps = training_options.steps or 0
    interval = max(ceil(rows / training_options.batch_size), steps // MAX_EVALUATIONS)
    return replace(training_options, eval_every=training_options.eval_every or interval)


@dataclass(frozen=True)
class TrainingDevice:
    """Device and precision of the computation of a training run; weights stay float32."""

    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a device of an unknown type."""
        refuse_unknown_devices(self.device)


# Maximum number of labelled examples for which only a head is trained by default: up to here, full
# training was not measurably better. See benchmarks/README.md.
MAX_FROZEN_EXAMPLES = 1000


@dataclass(frozen=True)
class PretrainingJob:
    """The model to pretrain, and the training instances."""

    data: Path
    config: str | None = None  # a file, or a key of pretraining.SIZES
    init: Path | None = None  # a model folder to start from, instead of a config
    eval_dir: Path | None = None  # instances for evaluation, instead of eval_fraction
    extra: Mapping[str, str] = field(default_factory=dict)  # embedding -> field; empty: all


@dataclass(frozen=True)
class PrepareOptions:
    """Options for making training instances. The defaults are those of the BERT paper."""

    max_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20
    dupe_factor: int = 5
    whole_word: bool = False
    seed: int = 0


def batches_of(rows: Any, size: int) -> Iterator[Any]:
    """Yield rows in batches of this size; the last one may be smaller."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
