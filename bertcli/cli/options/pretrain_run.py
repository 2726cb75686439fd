"""The options of `bertcli pretrain run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from bertcli.cli.options.groups import COMPUTE, MODEL, OUTPUT
from bertcli.errors import UsageError

Beta = Annotated[float, typer.Option(metavar="X", min=0, max=0.9999, help="Coefficient of AdamW.")]


@dataclass(frozen=True)
class JobOptions:
    """What is trained on what."""

    PANEL: ClassVar = OUTPUT

    data: Annotated[
        Path, typer.Argument(metavar="DIR", help="Instances written by bertcli pretrain prepare.")
    ]
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="CKPT",
            help="Folder for the model, checkpoints and log.",
        ),
    ]


@dataclass(frozen=True)
class StartOptions:
    """What the weights are at first."""

    PANEL: ClassVar = MODEL

    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A config.json, or a size: tiny, mini, small, medium, base. A missing "
            "vocab_size is taken from the instances.",
        ),
    ] = None
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Start from the weights of this model, instead of --config and random weights.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini starts from random weights, --init FOLDER from those of a model",
            )


@dataclass(frozen=True)
class OptimizerOptions:
    """How it is trained."""

    PANEL: ClassVar = "Training"

    epochs: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            help="Passes over the instances, unless --steps is given.",
        ),
    ] = 3.0
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Optimizer steps.")] = None
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Instances per step, over all processes and accumulation steps.",
        ),
    ] = 32
    learning_rate: Annotated[
        float, typer.Option(metavar="X", min=0, help="Peak learning rate, after the warm-up.")
    ] = 1e-4
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Steps in which the learning rate rises from 0 (default: a tenth of all steps).",
        ),
    ] = None
    lr_power: Annotated[
        float,
        typer.Option(metavar="X", min=0, help="Power of the polynomial decay to 0; 1 is linear."),
    ] = 1.0
    weight_decay: Annotated[
        float,
        typer.Option(
            metavar="X", min=0, help="Weight decay of AdamW; biases and LayerNorm are excluded."
        ),
    ] = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[
        float, typer.Option(metavar="X", min=0, help="Coefficient of AdamW.")
    ] = 1e-6
    max_grad_norm: Annotated[
        float, typer.Option(metavar="X", min=0, help="Clip gradients to this norm; 0: never.")
    ] = 1.0
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Random seed of initial weights, order of instances and dropout.",
            envvar="BERTCLI_SEED",
        ),
    ] = 0


@dataclass(frozen=True)
class EvaluationOptions:
    """What the model is judged by."""

    PANEL: ClassVar = "Evaluation"

    eval_fraction: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            max=0.9,
            help="Fraction of the instances, from the end, to hold out for evaluation; 0: none.",
        ),
    ] = 0.05
    eval_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Instances of other texts for evaluation, instead of --eval-fraction.",
        ),
    ] = None
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Steps between evaluations (default: only at the end)."
        ),
    ] = None
    log_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps between lines of the log.")
    ] = 10


@dataclass(frozen=True)
class SavingOptions:
    """What is kept of a run."""

    PANEL: ClassVar = OUTPUT

    save_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Steps between checkpoints.")
    ] = 500
    keep: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of checkpoints to keep.")
    ] = 2
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the last checkpoint, if any.")
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start again and replace an existing run.")
    ] = False

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise UsageError("--resume cannot be combined with --overwrite")


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how it is computed."""

    PANEL: ClassVar = COMPUTE

    device: Annotated[
        str,
        typer.Option(
            help="auto (the best available), cpu, cuda, cuda:N, mps or xpu; with torchrun, one "
            "GPU per process.",
            envvar="BERTCLI_DEVICE",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Compute precision (autocast); weights stay float32. auto: float32.",
            envvar="BERTCLI_DTYPE",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="CPU threads (default: all cores).",
            envvar="BERTCLI_THREADS",
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Split each batch into N parts: the same step with less memory.",
        ),
    ] = 1
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing",
            help="Recompute activations in the backward pass: the same step with less memory.",
        ),
    ] = False
