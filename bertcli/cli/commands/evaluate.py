"""`bertcli evaluate`: how good a model is on examples."""

from typing import TYPE_CHECKING

from bertcli.cli.commands.tasks import CutOptions
from bertcli.cli.commands.train import ExampleOptions
from bertcli.cli.display.console import Console, truncated
from bertcli.cli.options.common import (
    PROMPT,
    PROMPT_NAME,
    ComputeOptions,
    ConsoleOptions,
    ModelOptions,
    ReportOutput,
)
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, flag, option, record
from bertcli.errors import UsageError
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.evaluation.report import Judged


class JudgedOptions(OptionGroup, panel=INPUT):
    """The examples, or a search with its judgements."""

    file = argument("Examples, with the same fields as for train.", "FILE")
    queries = option("Queries with _id and text (BEIR).", "FILE")
    corpus = option("Texts to search, with _id and text.", "FILE")
    qrels = option("Relevance judgements (BEIR or TREC).", "FILE")
    compare = option("Also evaluate another model, and the difference.", "MODEL")
    prompt = PROMPT
    prompt_name = PROMPT_NAME
    json = flag("As --format jsonl.", hidden=True)

    def __post_init__(self) -> None:
        search = (self.queries, self.corpus, self.qrels)
        if any(search) and (not all(search) or self.file):
            raise UsageError(
                "--queries, --corpus and --qrels belong together, without FILE", "give all three"
            )
        if not any(search) and not self.file:
            raise UsageError("nothing to evaluate", "give FILE, or --queries, --corpus and --qrels")


def evaluate(
    judged: JudgedOptions,
    examples: ExampleOptions,
    model: ModelOptions,
    length: CutOptions,
    compute: ComputeOptions,
    output: ReportOutput,
    messages: ConsoleOptions,
) -> None:
    """Evaluate a model on labelled examples: metrics with 95 % confidence intervals.

    The fields of the examples decide the metrics: accuracy and F1 of labels, correlations of
    scores, F1 of entities and answers. Queries, texts and judgements give those of a search, with
    the model's prompts for queries and documents.

    $ bertcli evaluate test.jsonl -m sentiment
    $ bertcli evaluate test.jsonl -m sentiment --compare other
    $ bertcli evaluate --queries queries.jsonl --corpus corpus.jsonl --qrels test.tsv
    """
    console = messages.console()
    form = "jsonl" if judged.json else output.form()

    models = [model, *([model.changed(model=judged.compare)] if judged.compare else [])]
    files = [path for path in (judged.file, judged.queries, judged.corpus) if path]
    readers = [Reader(examples.source(path), console.warn) for path in files]
    from bertcli.embedding.options import EmbedOptions
    from bertcli.evaluation.report import Judge
    from bertcli.tasks.head import Settings

    settings = record(Settings, length, compute)
    options = record(EmbedOptions, judged, length, compute)
    judges = [Judge(named.folder(MODEL_FILES), settings, options, console) for named in models]
    reading = [path for reader in readers for path in reader.source.paths]
    reading += [judged.qrels] if judged.qrels else []
    with output.open(form, reading, *models, view="tables.evaluation_view") as write:
        if judged.file:
            from bertcli.records.examples import read_examples

            extra = sorted({field for judge in judges for field in judge.extra_fields})
            rows = read_examples(readers[0], examples.task, extra, examples.fields)
            report = _report([judge.judge(rows) for judge in judges], len(rows), console)
        else:
            from bertcli.evaluation.retrieval import SearchTest

            queries, corpus = readers
            search = SearchTest.read(queries, corpus, judged.qrels or "")
            console.note(search.note)
            results = [search.judge(judge) for judge in judges]
            report = _report(results, len(search.queries), console)
        write([report])
    for judge in judges:
        console.warn(truncated(judge.tally, judge.max_length))
    for reader in readers:
        console.close(reader.records, reader)


def _report(results: "list[Judged]", count: int, console: Console) -> dict[str, object]:
    from bertcli.evaluation.report import doubts, report

    for warning in doubts(results, count):
        console.warn(warning)
    return report(results[0], count, *results[1:])
