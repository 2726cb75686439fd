"""`bertcli fill-mask`: predictions for masked words."""

from typing import Annotated

from bertcli.cli.commands.task_run import open_head, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import OptionGroup, option
from bertcli.cli.options.inputs import InputOptions
from bertcli.cli.options.task import MaskOptions, TopK
from bertcli.errors import UsageError


class WordOptions(OptionGroup):
    """The words predicted."""

    top_k: TopK = 5
    targets: Annotated[str | None, option("Score only these words.", "W1,W2,...")] = None

    @property
    def words(self) -> tuple[str, ...]:
        """The words to compare; none are all. Raises UsageError when --targets names none."""
        words = tuple(word.strip() for word in (self.targets or "").split(",") if word.strip())
        if self.targets is not None and not words:
            raise UsageError("--targets names no word", "for example --targets saw,heard")
        return words


def fill_mask(
    source: InputOptions,
    model: ModelOptions,
    words: WordOptions,
    length: MaskOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Predict the words at [MASK].

    $ bertcli fill-mask 'Paris is the [MASK] of France.' -m bert-base-uncased
    $ bertcli fill-mask 'He [MASK] her.' --targets saw,heard -m bert-base-uncased
    """
    console = messages.console()
    form, reader = output.form(), source.reader(console)
    head = open_head("BertForMaskedLM", model, length, compute, console)
    from bertcli.tasks.fill_mask import FillMaskTask

    task = FillMaskTask(head, words.top_k, words.words)
    write(task.stream(reader), output, form, model, console)
