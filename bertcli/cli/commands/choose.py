"""`bertcli choose`: the continuation that fits a prompt best."""

from bertcli.cli.commands.task_run import open_head, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.task import ChoiceOptions, CutOptions, TaskFileOptions


def choose(
    choices: ChoiceOptions,
    files: TaskFileOptions,
    model: ModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Choose the continuation that fits a prompt best.

    $ bertcli choose 'She opened the door.' 'She went in.' 'It was a fish.' -m M
    $ bertcli choose -i prompts.jsonl -m M

    A record has the fields prompt and choices, a list of texts. "best" counts from 0.
    """
    console = messages.console()
    form, reader = output.form(), choices.reader(files, console)
    head = open_head("BertForMultipleChoice", model, length, compute, console)
    from bertcli.tasks.continuations import ChooseTask

    task = ChooseTask(head, choices.choices_field, choices.given)
    write(task.stream(reader), output, form, model, console)
