"""The options of `bertcli pretrain run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from bertcli.cli.options.groups import COMPUTE, MODEL, OUTPUT
from bertcli.errors import UsageError

Beta = Annotated[float, typer.Option(metavar="X", min=0, max=0.9999, help="Of AdamW.")]


@dataclass(frozen=True)
class JobOptions:
    """What is trained on what."""

    PANEL: ClassVar = OUTPUT

    data: Annotated[
        Path, typer.Argument(metavar="DIR", help="Instances that bertcli pretrain prepare wrote.")
    ]
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="CKPT",
            help="Folder for the model, the checkpoints and the log.",
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
            help="A config.json, or a size: tiny, mini, small, medium, base. vocab_size is that of "
            "the instances where it is missing.",
        ),
    ] = None
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Begin with the weights of this model, in place of --config and random ones.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini begins anew, --init FOLDER goes on training a model",
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
            help="Go through the instances so often, unless --steps says otherwise.",
        ),
    ] = 3.0
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Steps of the optimizer.")
    ] = None
    batch_size: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Instances of a step, over all processes and parts."),
    ] = 32
    learning_rate: Annotated[
        float, typer.Option(metavar="X", min=0, help="The highest one, after the warm-up.")
    ] = 1e-4
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Steps in which it rises from 0 (default: a tenth of all)."
        ),
    ] = None
    lr_power: Annotated[
        float,
        typer.Option(
            metavar="X", min=0, help="It falls to 0 as a polynomial of this power; 1 is linear."
        ),
    ] = 1.0
    weight_decay: Annotated[
        float, typer.Option(metavar="X", min=0, help="Of AdamW; biases and LayerNorm do not decay.")
    ] = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[float, typer.Option(metavar="X", min=0, help="Of AdamW.")] = 1e-6
    max_grad_norm: Annotated[
        float, typer.Option(metavar="X", min=0, help="Clip gradients to this norm; 0: never.")
    ] = 1.0
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of the first weights, the order of instances and dropout.",
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
            help="Share of the instances, the last ones, that are held out; 0: none.",
        ),
    ] = 0.05
    eval_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Instances of other texts to judge by, in place of --eval-fraction."
        ),
    ] = None
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Steps between evaluations (default: one at the end)."
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
        int, typer.Option(metavar="N", min=1, help="So many checkpoints, the last ones.")
    ] = 2
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, where there is one.")
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, and replace what is there.")
    ] = False

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise UsageError("--resume goes on and --overwrite begins anew", "give one of them")


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how it is computed."""

    PANEL: ClassVar = COMPUTE

    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:N, mps or xpu; under torchrun a GPU for each process.",
            envvar="BERTCLI_DEVICE",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Of the computation (autocast); weights stay float32, and so does auto.",
            envvar="BERTCLI_DTYPE",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Threads on a CPU (default: every core).",
            envvar="BERTCLI_THREADS",
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Compute a batch in so many parts: the same step with less memory.",
        ),
    ] = 1
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing", help="Compute layers twice: the same step with less memory."
        ),
    ] = False
