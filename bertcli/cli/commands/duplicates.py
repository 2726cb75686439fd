"""`bertcli duplicates`: texts that say nearly the same."""

from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from bertcli.cli.commands.corpus_vectors import follow_embedding, refuse_pipes, store_vectors
from bertcli.cli.display.console import Console
from bertcli.cli.options.common import ConsoleOptions, LineOutput, ModelOptions
from bertcli.cli.options.embed import ComputeOptions
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, option, record
from bertcli.cli.options.inputs import (
    Delimiter,
    FileFormat,
    IdField,
    MaxRecordBytes,
    SkipEmpty,
    TextField,
    Whole,
    format_of,
)
from bertcli.errors import UsageError, counted
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.tables import TableHeader
from bertcli.files.writers import Write
from bertcli.hub import MODEL_FILES
from bertcli.records.reader import Reader
from bertcli.records.source import Source

if TYPE_CHECKING:
    from bertcli.vectors.duplicates import Duplicates


AT_ONCE = 1 << 15  # rows of a table that are written together


class AlikeOptions(OptionGroup):
    """Which texts are duplicates, and which of them is kept."""

    threshold: Annotated[
        float, option("Minimum cosine similarity of duplicates, above 0 and up to 1.", "SCORE")
    ] = 0.95
    keep: Annotated[Literal["first", "longest"], option("Which text of each group to keep.")] = (
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

    files: Annotated[list[str], argument("Files with texts.", "FILE...")]
    vectors: Annotated[
        Path | None, option("Vectors of the texts: read if the file exists, else written.", "FILE")
    ] = None
    input_format: FileFormat = "auto"
    whole: Whole = False
    delimiter: Delimiter = ","
    skip_empty: SkipEmpty = False
    text_field: TextField = None
    id_field: IdField = None
    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def reader(self, console: Console) -> Reader:
        """Return the reader of the texts. Raises UsageError for what can be read once."""
        changes: dict[str, Any] = {"paths": tuple(self.files), "format": format_of(self)}
        reader = Reader(record(Source, self, **changes), console.warn, console.note)
        refuse_pipes(reader)
        return reader


def duplicates(
    texts: FileOptions,
    alike: AlikeOptions,
    model: ModelOptions,
    compute: ComputeOptions,
    output: LineOutput,
    messages: ConsoleOptions,
) -> None:
    """Find groups of near-duplicate texts, or write a file without the duplicates.

    $ bertcli duplicates reviews.txt --threshold 0.95
    $ bertcli duplicates reviews.txt --keep longest -o fewer.txt
    """
    console = messages.console()
    form = output.form()
    reader = texts.reader(console)
    folder = model.folder(MODEL_FILES)
    from bertcli.embedding.options import EmbedOptions
    from bertcli.vectors.duplicates import Duplicates
    from bertcli.vectors.search import Search, SearchOptions

    options = SearchOptions(vectors=texts.vectors)
    how = record(EmbedOptions, compute)
    search = Search.open(folder, how, options, reader, console)
    reading: list[str | Path] = [*reader.source.paths, *filter(None, [texts.vectors])]
    with nullcontext() if form == "table" else output.open(form, reading, model) as write:
        with TemporaryFile() as file:  # without a name: a kill leaves nothing
            run = Duplicates(search, file, alike.threshold, alike.keep)
            if texts.vectors:
                store_vectors(search, console)
            else:
                follow_embedding(run.embedding(), search, console)
            console.watch(run)
        if write:
            _write(run, form, write)
        else:
            from bertcli.cli.display.search_tables import show_duplicates

            show_duplicates(run)
    if search.by_dot:
        console.note("scores are cosines, though the model compares by dot product")
    groups = counted(len(run.groups), "group")
    if run.records:
        dropped = counted(run.dropped, "duplicate")
        console.note(f"{groups}: {dropped} among {counted(run.records, 'text')}")
    console.close(reader.records, reader)


def _write(run: "Duplicates", form: str, write: Write) -> None:
    """Write groups, or the texts without duplicates."""
    if form == "txt":
        for lines in run.kept():
            write(lines)
    elif form == "jsonl":
        for group in run.groups:
            write([run.fields(group)])
    else:
        rows = run.rows()
        header = {"keep": 0, "keep_id": 0, "row": 0, "id": 0, "score": 0.0, "text": ""}
        write([*islice(rows, AT_ONCE)] or [TableHeader(header)])
        while portion := [*islice(rows, AT_ONCE)]:
            write(portion)
