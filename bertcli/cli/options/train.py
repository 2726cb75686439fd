"""The options of `bertcli train`."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from bertcli.cli.options.extra import extra_fields, extra_option
from bertcli.cli.options.groups import INPUT, LAYOUT, OptionGroup, flag, number
from bertcli.cli.options.training import MaxGradNorm, WarmupSteps, WeightDecay, run_folder
from bertcli.errors import UsageError
from bertcli.training.options import FEW


class TrainJobOptions(OptionGroup):
    """The file of examples and the output folder."""

    PANEL: ClassVar = INPUT

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Examples: jsonl, csv, tsv or parquet with fields such as text and label.",
        ),
    ]
    output: Annotated[Path, run_folder("DIR")]


class MethodOptions(OptionGroup):
    """Which weights are trained, and on what loss."""

    PANEL: ClassVar = "Training"

    frozen: Annotated[
        bool | None,
        flag(
            "--frozen/--full",
            "Train a head alone over vectors computed once, or all weights (default: frozen for "
            f"up to {FEW:,} labelled examples).",
        ),
    ] = None
    extra: Annotated[
        list[str] | None,
        extra_option(
            "Train all weights, and an embedding NAME of the ids in a field: a list with one per "
            "word or token, or a number for the whole text"
        ),
    ] = None
    layers: Annotated[int | None, number("Train from layer N up (default: everything).", low=0)] = (
        None
    )
    class_weights: Annotated[
        Literal["balanced"] | None,
        typer.Option(help="balanced: rare labels count as much as common ones."),
    ] = None
    label_smoothing: Annotated[
        float, number("Share of each label given to the others.", low=0, high=0.99, metavar="X")
    ] = 0.0
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=3,
            help="Truncate texts to N tokens (default: the model's limit).",
            rich_help_panel=LAYOUT,
            envvar="BERTCLI_MAX_LENGTH",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.extra and self.frozen:
            raise UsageError("--extra cannot be combined with --frozen")
        extra_fields(self.extra)


class StepOptions(OptionGroup):
    """The optimizer and its schedule."""

    PANEL: ClassVar = "Training"

    epochs: Annotated[
        float | None,
        number(
            "Passes over the examples (default: 3; frozen: 30, or 1,000 steps).", low=0, metavar="X"
        ),
    ] = None
    steps: Annotated[int | None, number("Optimizer steps, instead of --epochs.")] = None
    batch_size: Annotated[int | None, number("Examples per step (default: 32; frozen: 64).")] = None
    learning_rate: Annotated[
        float | None,
        number(
            "Peak learning rate, after the warm-up (default: 5e-5; frozen: 1e-3).",
            low=0,
            metavar="X",
        ),
    ] = None
    warmup_steps: WarmupSteps = None
    weight_decay: WeightDecay = 0.01
    max_grad_norm: MaxGradNorm = 1.0
    seed: Annotated[
        int,
        number(
            "Random seed of the head, the order of examples, dropout and the held-out part.",
            low=0,
            envvar="BERTCLI_SEED",
        ),
    ] = 0


class HeldOutOptions(OptionGroup):
    """Evaluation, and the choice of the weights to keep."""

    PANEL: ClassVar = "Evaluation"

    eval: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Examples to evaluate on, instead of --eval-fraction."),
    ] = None
    eval_fraction: Annotated[
        float,
        number(
            "Fraction of the examples to hold out, equal texts together; 0: none.",
            low=0,
            high=0.9,
            metavar="X",
        ),
    ] = 0.1
    eval_every: Annotated[int | None, number("Steps between evaluations (default: an epoch).")] = (
        None
    )
    patience: Annotated[int | None, number("Stop after N evaluations without a better one.")] = None
    log_every: Annotated[
        int | None, number("Steps between lines of the log (default: 10; frozen: 100).")
    ] = None
