"""`bertcli similar`: the texts of a corpus that are nearest to a query."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import truncated
from bertcli.cli.options.common import ROWS, ConsoleOptions, ModelOptions, OutputOptions
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import INPUT, record
from bertcli.cli.options.inputs import IdField, InputFormat, MaxRecordBytes, TextField
from bertcli.errors import UsageError
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.tables import TableHeader
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.records.source import Source

if TYPE_CHECKING:
    from bertcli.embedding.embedder import Embedder
    from bertcli.vectors.search import Search

WINDOWS = "; bertcli embed --on-truncate window -o FILE encodes all of them, for --vectors FILE"


@dataclass(frozen=True)
class QueryOptions:
    """What is looked for."""

    queries: Annotated[
        list[str], typer.Argument(metavar="QUERY...", help="What the texts shall be like.")
    ]
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", metavar="N", min=1, help="So many texts a query.")
    ] = 10
    query_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Put before each query (default: the model's prompt 'query')."
        ),
    ] = None


@dataclass(frozen=True)
class CorpusOptions:
    """Where it is looked for."""

    PANEL: ClassVar = INPUT

    corpus: Annotated[
        list[str],
        typer.Option(
            metavar="FILE", help="Texts to search, more than once if need be; - is stdin."
        ),
    ]
    vectors: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Vectors of the corpus: reused when the file is there, else written.",
        ),
    ] = None
    input_format: Annotated[InputFormat, typer.Option(help="auto: by the suffix.")] = "auto"
    text_field: TextField = None
    id_field: IdField = None
    corpus_prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Put before each text (default: the model's prompt 'document')."
        ),
    ] = None

    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def check(self, *, reuse: bool) -> None:
        """Raise UsageError when the texts are to be read twice, and cannot be."""
        if self.vectors is not None and not reuse and "-" in self.corpus:
            raise UsageError(
                "--vectors needs a corpus that can be read again, and stdin cannot",
                "name a file, or write the vectors with bertcli embed -o",
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
    output: OutputOptions,
    messages: ConsoleOptions,
) -> None:
    """Find the texts of a corpus that are nearest to a query, by cosine.

    [bold]bertcli similar "late delivery" --corpus reviews.txt --top-k 3[/bold]

    [bold]bertcli similar "late delivery" --corpus reviews.txt --vectors reviews.npy[/bold]
    """
    console = messages.console()
    form = output.form(ROWS)
    reader = corpus.reader(console)
    reuse = corpus.vectors is not None and corpus.vectors.exists()
    corpus.check(reuse=reuse)
    embedder = _open(model, corpus, compute, console, reuse=reuse)
    search = _searched(embedder, query, corpus, reader, console, reuse=reuse)
    if form == "table":
        from bertcli.cli.display.tables import show_matches

        show_matches(search.rows())
    else:
        reading: list[str | Path] = [*corpus.corpus]
        reading += [corpus.vectors] if corpus.vectors else []
        with output.open(form, reading) as write:
            write(search.rows() or ([TableHeader(search.header())] if form != "jsonl" else []))
    console.close(search.nearest.rows, reader, numbered=True)


def _open(
    model: ModelOptions,
    corpus: CorpusOptions,
    compute: ComputeOptions,
    console: Console,
    *,
    reuse: bool,
) -> "Embedder":
    """Return the embedder of the corpus; torch is imported here."""
    folder = model.folder(MODEL_FILES)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.embedding.several_devices import open_embedder
    from bertcli.inference.devices import use_threads
    from bertcli.vectors.search import options_of

    use_threads(compute.threads)
    options = record(EmbedOptions, compute)
    if reuse:
        options = options_of(str(corpus.vectors), folder, options)
    return open_embedder(folder, options, console.warn)


def _searched(
    embedder: "Embedder",
    query: QueryOptions,
    corpus: CorpusOptions,
    reader: Reader,
    console: Console,
    *,
    reuse: bool,
) -> "Search":
    """Send the queries through the corpus, whose vectors are read, or computed (and written)."""
    from bertcli.vectors.search import DOCUMENT, Search, prompted, writing

    telling = prompted(embedder, DOCUMENT, corpus.corpus_prompt)
    if corpus.vectors is not None and not reuse:
        made = writing(telling, corpus.reader(console), corpus.vectors)
        for _ in console.track(made, made.reader, beside_output=False):
            pass
        console.warn(truncated(made.tally, telling.max_length, WINDOWS))
    search = Search(embedder, query.queries, query.top_k, query.query_prompt)
    if corpus.vectors is not None:
        search.stored(str(corpus.vectors), reader)
        return search
    run = telling.run(reader)
    for _ in console.track(search.corpus(telling.embed(run)), reader, beside_output=False):
        pass
    console.warn(truncated(run.tally, telling.max_length, WINDOWS))
    return search
