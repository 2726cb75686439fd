"""The options of `bertcli pretrain run`."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertcli.cli.options import MODEL, OUTPUT
from bertcli.errors import UsageError

if TYPE_CHECKING:
    from bertcli.pretrain.jobs import Job

COMPUTE, RECIPE, EVALUATION = "Computation", "Training", "Evaluation"

Beta = Annotated[
    float, typer.Option(metavar="X", min=0, max=0.9999, help="Of AdamW.", rich_help_panel=RECIPE)
]


@dataclass(frozen=True)
class JobOptions:
    """What is trained on what."""

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
            rich_help_panel=OUTPUT,
        ),
    ]
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A config.json, or a size: tiny, mini, small, medium, base. vocab_size is that of "
            "the instances where it is missing.",
            rich_help_panel=MODEL,
        ),
    ] = None
    init: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Begin with the weights of this model, in place of --config and random ones.",
            rich_help_panel=MODEL,
        ),
    ] = None

    def job(self, eval_dir: Path | None, *, resume: bool, overwrite: bool) -> "Job":
        """Return what is to be done; UsageError when that is not one thing."""
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini begins anew, --init FOLDER goes on training a model",
            )
        if resume and overwrite:
            raise UsageError("--resume goes on and --overwrite begins anew", "give one of them")
        from bertcli.pretrain.jobs import Job

        return Job(
            data=self.data,
            output=self.output,
            config=self.config,
            init=self.init,
            eval_data=eval_dir,
            resume=resume,
            overwrite=overwrite,
        )


@dataclass(frozen=True)
class RecipeOptions:
    """How it is trained."""

    epochs: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            help="Go through the instances so often, unless --steps says otherwise.",
            rich_help_panel=RECIPE,
        ),
    ] = 3.0
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Steps of the optimizer.", rich_help_panel=RECIPE),
    ] = None
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Instances of a step, over all processes and parts.",
            rich_help_panel=RECIPE,
        ),
    ] = 32
    learning_rate: Annotated[
        float,
        typer.Option(
            metavar="X", min=0, help="The highest one, after the warm-up.", rich_help_panel=RECIPE
        ),
    ] = 1e-4
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Steps in which it rises from 0 (default: a tenth of all).",
            rich_help_panel=RECIPE,
        ),
    ] = None
    lr_power: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            help="It falls to 0 as a polynomial of this power; 1 is linear.",
            rich_help_panel=RECIPE,
        ),
    ] = 1.0
    weight_decay: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            help="Of AdamW; biases and LayerNorm do not decay.",
            rich_help_panel=RECIPE,
        ),
    ] = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[
        float, typer.Option(metavar="X", min=0, help="Of AdamW.", rich_help_panel=RECIPE)
    ] = 1e-6
    max_grad_norm: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            help="Clip gradients to this norm; 0: never.",
            rich_help_panel=RECIPE,
        ),
    ] = 1.0
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Of the first weights, the order of instances and dropout.",
            envvar="BERTCLI_SEED",
            rich_help_panel=RECIPE,
        ),
    ] = 0

    def values(self) -> dict[str, Any]:
        """Return them by name."""
        return asdict(self)


@dataclass(frozen=True)
class EvaluationOptions:
    """What the model is judged by."""

    eval_fraction: Annotated[
        float,
        typer.Option(
            metavar="X",
            min=0,
            max=0.9,
            help="Share of the instances, the last ones, that are held out; 0: none.",
            rich_help_panel=EVALUATION,
        ),
    ] = 0.05
    eval_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Instances of other texts to judge by, in place of --eval-fraction.",
            rich_help_panel=EVALUATION,
        ),
    ] = None
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Steps between evaluations (default: one at the end).",
            rich_help_panel=EVALUATION,
        ),
    ] = None
    log_every: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Steps between lines of the log.", rich_help_panel=EVALUATION
        ),
    ] = 10

    def values(self) -> dict[str, Any]:
        """Return those that Options has, by name."""
        return {name: value for name, value in asdict(self).items() if name != "eval_dir"}


@dataclass(frozen=True)
class SavingOptions:
    """What is kept of a run."""

    save_every: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Steps between checkpoints.", rich_help_panel=OUTPUT),
    ] = 500
    keep: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="So many checkpoints, the last ones.", rich_help_panel=OUTPUT
        ),
    ] = 2
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the last checkpoint, where there is one.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Begin anew, and replace what is there.", rich_help_panel=OUTPUT
        ),
    ] = False

    def values(self) -> dict[str, Any]:
        """Return those that Options has, by name."""
        return {"save_every": self.save_every, "keep": self.keep}


@dataclass(frozen=True)
class DeviceOptions:
    """Where and how it is computed."""

    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda, cuda:N, mps or xpu; under torchrun a GPU for each process.",
            envvar="BERTCLI_DEVICE",
            rich_help_panel=COMPUTE,
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Of the computation (autocast); weights stay float32, and so does auto.",
            envvar="BERTCLI_DTYPE",
            rich_help_panel=COMPUTE,
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Threads on a CPU (default: every core).",
            envvar="BERTCLI_THREADS",
            rich_help_panel=COMPUTE,
        ),
    ] = None
    gradient_accumulation_steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Compute a batch in so many parts: the same step with less memory.",
            rich_help_panel=COMPUTE,
        ),
    ] = 1
    gradient_checkpointing: Annotated[
        bool,
        typer.Option(
            "--gradient-checkpointing",
            help="Compute layers twice: the same step with less memory.",
            rich_help_panel=COMPUTE,
        ),
    ] = False

    def values(self) -> dict[str, Any]:
        """Return those that Options has, by name."""
        return {
            "dtype": "float32" if self.dtype == "auto" else self.dtype,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "gradient_checkpointing": self.gradient_checkpointing,
        }
