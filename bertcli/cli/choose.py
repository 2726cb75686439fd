"""`bertcli choose`: which of several continuations fits a prompt best."""

from bertcli.cli.embed_options import ComputeOptions
from bertcli.cli.options import ROWS, ConsoleOptions, ModelOptions, OutputOptions
from bertcli.cli.task_options import ChoiceOptions, CutOptions, TaskFileOptions
from bertcli.cli.task_run import open_head, write


def choose(
    choices: ChoiceOptions,
    files: TaskFileOptions,
    model: ModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: OutputOptions,
    messages: ConsoleOptions,
) -> None:
    """Tell which of several continuations fits a prompt best.

    [bold]bertcli choose "She opened the door." "She went in." "It was a fish." --model M[/bold]

    [bold]bertcli choose -i prompts.jsonl --model M[/bold]

    A record has the fields prompt and choices, a list of texts. "best" counts from 0.
    """
    console = messages.console()
    form, reader = output.form(ROWS), choices.reader(files, console)
    head = open_head("BertForMultipleChoice", model, length, compute, console)
    from bertcli.tasks.choose import Choice

    task = Choice(head, choices.choices_field, choices.given)
    write(task.stream(reader), output, form, console)
