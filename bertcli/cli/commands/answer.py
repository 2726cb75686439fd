"""`bertcli answer`: the answer to a question in a context."""

from typing import Annotated

from bertcli.cli.commands.task_run import open_head, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import OptionGroup, flag, number
from bertcli.cli.options.task import QuestionOptions, StrideOptions, TaskFileOptions, TopK


class AnswerOptions(OptionGroup):
    """The answers returned."""

    top_k: TopK = 1
    max_answer_length: Annotated[int, number("Maximum tokens of an answer.")] = 15
    no_answer: Annotated[
        bool, flag("--no-answer", "Allow an empty answer if the context contains none.")
    ] = False


def answer(
    asked: QuestionOptions,
    answers: AnswerOptions,
    files: TaskFileOptions,
    model: ModelOptions,
    length: StrideOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Find the answer to a question in a context; long contexts are split into windows.

    $ bertcli answer --question 'Who?' --context 'He said so.' -m M
    $ bertcli answer -i questions.jsonl --no-answer -m M
    $ bertcli answer --question 'Who?' -i contexts.txt -m M

    A record of JSONL, CSV or Parquet has the fields question and context, and optionally id.
    """
    console = messages.console()
    form, reader = output.form(), asked.reader(files, console)
    head = open_head("BertForQuestionAnswering", model, length, compute, console)
    from bertcli.tasks.answer import AnswerTask, Choosing

    choosing = Choosing(answers.top_k, answers.max_answer_length, answers.no_answer)
    fixed = (None, None) if asked.both else (asked.question, asked.context)
    write(AnswerTask(head, choosing, *fixed).stream(reader), output, form, model, console)
