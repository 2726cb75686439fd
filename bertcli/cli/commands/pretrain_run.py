"""`bertcli pretrain run`: BertForPreTraining from prepared instances."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from bertcli.cli.commands.training_run import train_task
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions
from bertcli.cli.options.groups import (
    MODEL,
    OUTPUT,
    OptionGroup,
    argument,
    decimal,
    number,
    option,
    record,
)
from bertcli.cli.options.training import (
    DeviceOptions,
    MaxGradNorm,
    SavingOptions,
    Seed,
    WarmupSteps,
    WeightDecay,
    extra_fields,
    extra_option,
    run_folder,
)
from bertcli.errors import UsageError

if TYPE_CHECKING:
    from bertcli.training.loop import Ranks
    from bertcli.training.pretraining import PretrainingTask


Beta = Annotated[float, decimal("Coefficient of AdamW.", high=0.9999)]


class JobOptions(OptionGroup):
    """The instances and the output folder."""

    PANEL: ClassVar = OUTPUT

    data: Annotated[Path, argument("Instances written by bertcli pretrain prepare.", "DIR")]
    output: Annotated[Path, run_folder("CKPT")]


class StartOptions(OptionGroup):
    """The initial weights."""

    PANEL: ClassVar = MODEL

    config: Annotated[
        str | None,
        option(
            "A config.json, or a size: tiny, mini, small, medium, base. A missing vocab_size is "
            "taken from the instances, as are sizes of extra embeddings.",
            "FILE",
        ),
    ] = None
    init: Annotated[
        Path | None,
        option(
            "Start from the weights of this model, instead of --config and random weights.",
            "FOLDER",
        ),
    ] = None
    extra: Annotated[
        list[str] | None,
        extra_option(
            "Use only these extra embeddings of the instances (default: all that prepare --extra "
            "stored)"
        ),
    ] = None

    def __post_init__(self) -> None:
        extra_fields(self.extra)
        if (self.config is None) == (self.init is None):
            raise UsageError(
                "give either --config or --init",
                "--config mini starts from random weights, --init FOLDER from those of a model",
            )


class OptimizerOptions(OptionGroup):
    """The optimizer and its schedule."""

    PANEL: ClassVar = "Training"

    epochs: Annotated[float, decimal("Passes over the instances, unless --steps is given.")] = 3.0
    steps: Annotated[int | None, number("Optimizer steps.")] = None
    batch_size: Annotated[
        int, number("Instances per step, over all processes and accumulation steps.")
    ] = 32
    learning_rate: Annotated[float, decimal("Peak learning rate, after the warm-up.")] = 1e-4
    warmup_steps: WarmupSteps = None
    lr_power: Annotated[float, decimal("Power of the polynomial decay to 0; 1 is linear.")] = 1.0
    weight_decay: WeightDecay = 0.01
    adam_beta1: Beta = 0.9
    adam_beta2: Beta = 0.999
    adam_epsilon: Annotated[float, decimal("Coefficient of AdamW.")] = 1e-6
    max_grad_norm: MaxGradNorm = 1.0
    seed: Seed = 0


class EvaluationOptions(OptionGroup):
    """Evaluation and logging."""

    PANEL: ClassVar = "Evaluation"

    eval_fraction: Annotated[
        float,
        decimal(
            "Fraction of the instances, from the end, to hold out for evaluation; 0: none.",
            high=0.9,
        ),
    ] = 0.05
    eval_dir: Annotated[
        Path | None,
        option("Instances of other texts for evaluation, instead of --eval-fraction.", "DIR"),
    ] = None
    eval_every: Annotated[
        int | None, number("Steps between evaluations (default: only at the end).")
    ] = None
    log_every: Annotated[int, number("Steps between lines of the log.")] = 10


def pretrain_run(
    job: JobOptions,
    start: StartOptions,
    optimizer: OptimizerOptions,
    evaluation: EvaluationOptions,
    saving: SavingOptions,
    where: DeviceOptions,
    messages: ConsoleOptions,
) -> None:
    """Train a BERT on prepared instances: masked words and next sentences.

    The result is a folder that bertcli and transformers both load. --resume continues an
    interrupted run, with the same numbers. Use torchrun for several processes.

    $ bertcli pretrain run instances --config mini -o bert-mini --epochs 10
    $ torchrun --nproc-per-node 2 -m bertcli pretrain run instances --config base -o mine
    """
    console = messages.console()
    from bertcli.training.options import PretrainingJob, RunFolder, TrainingOptions

    options = record(TrainingOptions, optimizer, evaluation, saving, where, dtype=where.precision)
    extra = extra_fields(start.extra)
    pretraining = record(PretrainingJob, job, start, evaluation, extra=extra)
    place = record(RunFolder, job, saving)
    place.refuse_inputs(pretraining.data, pretraining.init, pretraining.eval_dir)

    def opened(ranks: "Ranks", console: Console) -> "PretrainingTask":
        from bertcli.training.pretraining import PretrainingTask

        return PretrainingTask.open(pretraining, options, ranks)

    train_task(opened, place, saving.keep, where, console)
