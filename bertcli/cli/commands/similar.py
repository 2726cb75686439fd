"""`bertcli similar`: the texts of a corpus most similar to a query."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import truncated
from bertcli.cli.options.common import ROWS, ConsoleOptions, ModelOptions, OutputOptions
from bertcli.cli.options.embed import BackendOptions, ComputeOptions
from bertcli.cli.options.groups import INPUT, record
from bertcli.cli.options.inputs import IdField, InputFormat, MaxRecordBytes, TextField
from bertcli.errors import UsageError
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.tables import TableHeader
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.records.source import Source

WINDOWS = "; bertcli embed --on-truncate window -o FILE encodes all of them, for --vectors FILE"


@dataclass(frozen=True)
class QueryOptions:
    """The query."""

    queries: Annotated[list[str], typer.Argument(metavar="QUERY...", help="Text to search for.")]
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", metavar="N", min=1, help="Results per query.")
    ] = 10
    query_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text to put before each query (default: the model's prompt 'query').",
        ),
    ] = None


@dataclass(frozen=True)
class CorpusOptions:
    """The corpus to search."""

    PANEL: ClassVar = INPUT

    corpus: Annotated[
        list[str],
        typer.Option(metavar="FILE", help="File of texts to search, repeatable; - is stdin."),
    ]
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of the corpus: read if the file exists, else written.",
        ),
    ] = None
    input_format: Annotated[InputFormat, typer.Option(help="auto: by the suffix.")] = "auto"
    text_field: TextField = None
    id_field: IdField = None
    corpus_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Text to put before each text of the corpus (default: the model's prompt "
            "'document').",
        ),
    ] = None

    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def check(self) -> None:
        """Raise UsageError when the texts must be read twice, but cannot be."""
        if self.vectors is not None and not self.vectors.exists() and "-" in self.corpus:
            raise UsageError(
                "--vectors cannot be written for a corpus from stdin: it is read twice",
                "give a file, or write the vectors with bertcli embed -o",
            )

    def reader(self, console: Console) -> Reader:
        """Return the reader of the texts."""
        source = record(Source, self, paths=tuple(self.corpus), format=self.input_format)
        return Reader(source, console.warn)


def similar(
    query: QueryOptions,
    corpus: CorpusOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    backend: BackendOptions,
    output: OutputOptions,
    messages: ConsoleOptions,
) -> None:
    """Find the texts of a corpus most similar to a query, by cosine.

    [bold]bertcli similar "late delivery" --corpus reviews.txt --top-k 3[/bold]

    [bold]bertcli similar "late delivery" --corpus reviews.txt --vectors reviews.npy[/bold]
    """
    console = messages.console()
    form = output.form(ROWS)
    reader = corpus.reader(console)
    corpus.check()
    folder = model.folder(MODEL_FILES)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.vectors.search import Search, SearchOptions

    options = record(SearchOptions, query, corpus)
    how = record(EmbedOptions, compute, backend)
    search = Search.open(folder, how, options, reader, console.warn)
    console.note(search.embedder.runtime.note)
    console.follow(search)
    console.warn(truncated(search.tally, search.embedder.max_length, WINDOWS))
    if form == "table":
        from bertcli.cli.display.tables import show_matches

        show_matches(search.rows())
    else:
        reading: list[str | Path] = [*corpus.corpus]
        reading += [corpus.vectors] if corpus.vectors else []
        with output.open(form, reading) as write:
            write(search.rows() or ([TableHeader(search.header())] if form != "jsonl" else []))
    console.close(search.nearest.rows, reader, numbered=True)
