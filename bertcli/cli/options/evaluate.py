"""The options of `bertcli evaluate`."""

from typing import Annotated, ClassVar

import typer

from bertcli.cli.options.groups import INPUT, OptionGroup, flag
from bertcli.errors import UsageError


class JudgedOptions(OptionGroup):
    """The examples, or a search with its judgements."""

    PANEL: ClassVar = INPUT

    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE", help="Examples, with the fields of train; or --queries and so on."
        ),
    ] = None
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

    def __post_init__(self) -> None:
        search = (self.queries, self.corpus, self.qrels)
        if any(search) and (not all(search) or self.file):
            raise UsageError(
                "--queries, --corpus and --qrels belong together, without FILE", "give all three"
            )
        if not any(search) and not self.file:
            raise UsageError("nothing to evaluate", "give FILE, or --queries, --corpus and --qrels")
