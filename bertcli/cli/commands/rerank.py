"""`bertcli rerank`: texts sorted by how relevant they are to a query."""

from contextlib import nullcontext
from typing import Annotated

from bertcli.cli.commands.task_run import open_labels, report
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions, ModelOptions, RowOutput
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import OptionGroup, argument, number
from bertcli.cli.options.inputs import TextField, reader_of
from bertcli.cli.options.task import CutOptions, TaskFileOptions
from bertcli.files.tables import TableHeader
from bertcli.records.reader import Reader


class RankedOptions(OptionGroup):
    """A query, and texts to sort."""

    query: Annotated[str, argument("Text to search for.", "QUERY")]
    texts: Annotated[
        list[str] | None, argument("Texts to sort (default: read --input or stdin).", "TEXT...")
    ] = None
    top_k: Annotated[
        int | None, number("Number of texts to return, best first (default: all).", "--top-k", "-k")
    ] = None
    text_field: TextField = None

    def reader(self, files: TaskFileOptions, console: Console) -> Reader:
        """Return the reader of the texts: arguments, files or stdin."""
        source = files.text_source(self)
        return reader_of(source, console, (self.query, *source.texts))


def rerank(
    asked: RankedOptions,
    files: TaskFileOptions,
    model: ModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: RowOutput,
    messages: ConsoleOptions,
) -> None:
    """Rank texts by relevance to a query with a cross-encoder.

    $ bertcli rerank 'late delivery' -i reviews.txt --top-k 5 -m CROSS_ENCODER
    $ bertcli rerank 'late delivery' 'It came on time.' 'It never came.' -m CROSS_ENCODER
    """
    console = messages.console()
    form = output.form()
    reader = asked.reader(files, console)
    head = open_labels("rerank", model, length, compute, console)
    from bertcli.tasks.classify import BLANK_HIT, Ranking, RerankTask, ranked_row

    stream, ranking = RerankTask(head, asked.query).stream(reader), Ranking(asked.top_k)
    reader.reserve(frozenset((*BLANK_HIT, "truncated")))
    inputs = reader.source.inputs
    with nullcontext() if form == "table" else output.open(form, inputs, model) as write:
        for window in console.track(
            stream, reader, beside_output=False, truncated=lambda: stream.tally.truncated
        ):
            ranking.add(window)
        if write:
            rows = [ranked_row(result, flat=form != "jsonl") for result in ranking.best()]
            write(rows or [TableHeader({**BLANK_HIT, "truncated": 0})])
        else:
            from bertcli.cli.display.search_tables import show_ranking

            show_ranking(ranking.best())
    report(stream, console, numbered=form not in ("table", "jsonl"))
