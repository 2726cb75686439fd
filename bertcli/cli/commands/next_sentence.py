"""`bertcli next-sentence`: whether one sentence follows another."""

from bertcli.cli.commands.task_run import open_head, write
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.inputs import InputOptions, source_paths
from bertcli.cli.options.task import CutOptions
from bertcli.errors import UsageError


def next_sentence(
    source: InputOptions,
    model: ModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Score how likely the second of two sentences is to follow the first.

    $ bertcli next-sentence 'How old are you?' 'I am six.' -m bert-base-uncased
    $ bertcli next-sentence --pairs pairs.tsv -m bert-base-uncased
    """
    console = messages.console()
    form, reader = output.form(), paired(source).reader(console)
    head = open_head("BertForNextSentencePrediction", model, length, compute, console)
    from bertcli.tasks.continuations import NextSentenceTask

    write(NextSentenceTask(head).stream(reader), output, form, model, console)


def paired(source: InputOptions) -> InputOptions:
    """Return the options with the second of two texts as the pair of the first; stdin has pairs."""
    texts, pair = source.texts or [], source.pair or []
    named = (*texts, *pair, source.input, source.pairs, source.files_from)
    if source.input_format == "auto" and not any(named):
        (stdin,) = source_paths(None, given=False)
        return source.changed(pairs=stdin)
    if not texts or pair:
        return source
    if len(texts) != 2:
        raise UsageError(
            f"next-sentence takes two sentences, not {len(texts)}",
            "quote each of them; a file of pairs goes to --pairs",
        )
    return source.changed(texts=texts[:1], pair=texts[1:])
