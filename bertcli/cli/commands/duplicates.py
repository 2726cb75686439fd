"""`bertcli duplicates`: texts that say nearly the same."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from bertcli.cli.commands.corpus_vectors import stored_vectors
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ROWS, ConsoleOptions, LineOutput, ModelOptions
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, option, record
from bertcli.cli.options.inputs import FileFormat, IdField, MaxRecordBytes, TextField
from bertcli.errors import UsageError, counted
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.tables import TableHeader
from bertcli.files.writers import Write
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.records.source import Source

if TYPE_CHECKING:
    from bertcli.vectors.duplicates import Duplicates


class AlikeOptions(OptionGroup):
    """Which texts are duplicates, and which of them is kept."""

    threshold: Annotated[
        float, option("Least cosine of two duplicates, above 0 and up to 1.", "SCORE")
    ] = 0.95
    keep: Annotated[Literal["first", "longest"], option("Text of each group that is kept.")] = (
        "first"
    )

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(
                f"--threshold {self.threshold:g} is not above 0 and up to 1", "for example 0.95"
            )


class FileOptions(OptionGroup):
    """The texts to compare."""

    PANEL: ClassVar = INPUT

    files: Annotated[list[str], argument("Files of texts.", "FILE...")]
    vectors: Annotated[
        Path | None, option("Vectors of the texts: read if the file exists, else written.", "FILE")
    ] = None
    input_format: FileFormat = "auto"
    text_field: TextField = None
    id_field: IdField = None
    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def reader(self, console: Console) -> Reader:
        """Return the reader of the texts. Raises UsageError for stdin, which is read once."""
        if "-" in self.files:
            raise UsageError("duplicates cannot read stdin, as it reads twice", "give a file")
        changes: dict[str, Any] = {"paths": tuple(self.files), "format": self.input_format}
        return Reader(record(Source, self, **changes), console.warn)


def duplicates(
    texts: FileOptions,
    alike: AlikeOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: LineOutput,
    messages: ConsoleOptions,
) -> None:
    """Find groups of texts that say nearly the same, or write a file without them.

    $ bertcli duplicates reviews.txt --threshold 0.95
    $ bertcli duplicates reviews.txt --keep longest -o fewer.txt
    """
    console = messages.console()
    form = output.form((*ROWS, "txt"))
    reader = texts.reader(console)
    folder = model.folder(MODEL_FILES)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.vectors.duplicates import Duplicates
    from bertcli.vectors.search import Search, SearchOptions

    options = SearchOptions(vectors=texts.vectors)
    how = record(EmbedOptions, compute)
    search = Search.open(folder, how, options, reader, console)
    reading: list[str | Path] = [*texts.files, *filter(None, [texts.vectors])]
    with nullcontext() if form == "table" else output.open(form, reading, model) as write:
        with stored_vectors(search, console) as search:
            run = Duplicates(search, alike.threshold, alike.keep)
            console.watch(run)
        if write:
            _write(run, form, write)
        else:
            from bertcli.cli.display.search_tables import show_duplicates

            show_duplicates(run)
    dropped = counted(len(run.dropped), "duplicate")
    groups = counted(len(run.groups), "group")
    if run.records:
        console.note(f"{groups}: {dropped} among {counted(run.records, 'text')}")
    console.close(reader.records, reader)


def _write(run: "Duplicates", form: str, write: Write) -> None:
    """Write groups, or the texts without duplicates."""
    if form == "txt":
        for lines in run.kept():
            write(lines)
    elif form == "jsonl":
        write([run.fields(group) for group in run.groups])
    else:
        rows = [row for group in run.groups for row in run.rows(group)]
        header = {"keep": 0, "keep_id": 0, "row": 0, "id": 0, "score": 0.0, "text": ""}
        write(rows or [TableHeader(header)])
