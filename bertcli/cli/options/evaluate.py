"""The options of `bertcli evaluate`."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from bertcli.cli.options.groups import INPUT, flag
from bertcli.cli.options.inputs import Encoding, EncodingErrors, InputFormat, OnError
from bertcli.cli.options.train import Task, checked_task
from bertcli.errors import UsageError
from bertcli.records.examples import examples_source
from bertcli.records.source import Source


@dataclass(frozen=True)
class JudgedOptions:
    """The examples, or a search with its judgements."""

    PANEL: ClassVar = INPUT

    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Examples, with the fields of train; or --queries and so on."
        ),
    ] = None
    task: Task = None
    queries: Annotated[
        str | None, typer.Option(metavar="FILE", help="Queries with _id and text (BEIR).")
    ] = None
    corpus: Annotated[
        str | None, typer.Option(metavar="FILE", help="Texts to search, with _id and text.")
    ] = None
    qrels: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Which texts answer which query (BEIR or TREC)."),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Evaluate another model too, and the difference."),
    ] = None
    json: Annotated[bool, flag("--json", "JSON on a terminal too.")] = False
    input_format: Annotated[InputFormat, typer.Option(help="auto: by the suffix.")] = "auto"
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"

    def __post_init__(self) -> None:
        checked_task(self.task)
        search = (self.queries, self.corpus, self.qrels)
        if any(search) and (not all(search) or self.file):
            raise UsageError(
                "--queries, --corpus and --qrels belong together, without FILE", "give all three"
            )
        if not any(search) and not self.file:
            raise UsageError("nothing to evaluate", "give FILE, or --queries, --corpus and --qrels")

    def source(self, path: str) -> Source:
        """Return the source of a file of examples or texts."""
        return examples_source(
            path,
            format=self.input_format,
            on_error=self.on_error,
            encoding=self.encoding,
            encoding_errors=self.encoding_errors,
        )
