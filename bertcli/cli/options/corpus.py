"""Texts whose vectors are compared: their files as options, and what makes their vectors."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bertcli.cli.display.console import Console
from bertcli.cli.options.common import (
    DELIMITER,
    FILES,
    FORMAT_OF_FILES,
    ID_FIELD,
    JOIN,
    MAX_RECORD_BYTES,
    SKIP_EMPTY,
    TEXT_FIELD,
    WHOLE,
    ComputeOptions,
    ModelOptions,
    files_given,
)
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, option, record
from bertcli.errors import UsageError, counted
from bertcli.files.streams import can_be_reread
from bertcli.hub import files_for
from bertcli.records.reader import Reader
from bertcli.records.source import Source

if TYPE_CHECKING:
    from bertcli.vectors.embed_run import EmbedRun
    from bertcli.vectors.file_run import FileRun
    from bertcli.vectors.search import Search


class FileOptions(OptionGroup, panel=INPUT, of=Source):
    """The texts to compare."""

    files: list[str] | None = argument("Files with texts.", "FILE...")
    input = FILES
    vectors: Path | None = option(
        "Vectors of the texts: read if the file exists, else written.", "FILE"
    )
    input_format = FORMAT_OF_FILES
    whole = WHOLE
    delimiter = DELIMITER
    skip_empty = SKIP_EMPTY
    text_field = TEXT_FIELD
    join = JOIN
    id_field = ID_FIELD
    max_record_bytes = MAX_RECORD_BYTES

    def __post_init__(self) -> None:
        """Take the files of --input where no arguments are given."""
        self.files = files_given(self.files, self.input)

    def inputs(self, reader: Reader) -> list[str | Path]:
        """Return the files that are read."""
        return [*reader.source.paths, *filter(None, [self.vectors])]

    def search(self, reader: Reader, model: ModelOptions, compute: ComputeOptions) -> "Search":
        """Open the model of the vectors of these texts."""
        from bertcli.embedding.options import EmbedOptions
        from bertcli.vectors.search import Search, SearchOptions

        folder = model.folder(files_for(compute.dtype))
        options = SearchOptions(vectors=self.vectors, skip_empty=False)
        return Search.open(folder, record(EmbedOptions, compute), options, reader)


def refuse_pipes(texts: Reader) -> None:
    """Raise UsageError for texts that cannot be read twice."""
    for path in texts.source.paths:
        if not can_be_reread(path):
            name = "stdin" if path == "-" else path
            raise UsageError(f"{name}: cannot be read twice, as is needed here", "give a file")


@contextmanager
def stored_vectors(search: "Search", console: Console) -> Iterator["Search"]:
    """Yield the search once the vectors of its corpus are stored, for a while if need be.

    They are computed with a progress bar, unless they are there.
    """
    if search.reader:
        refuse_pipes(search.reader)
    if search.options.index is not None:
        if search.reader:
            _follow_indexing(search, console)
        yield search
        return
    if search.options.vectors is not None:
        if not search.stored:
            follow_embedding(search.writing(), search, console)
        yield search
        return
    from bertcli.vectors.search import TemporaryVectors

    with closing(TemporaryVectors(search)) as search.temporary:
        follow_embedding(search.temporary, search, console)
        yield search


def _follow_indexing(search: "Search", console: Console) -> None:
    """Update the index of a corpus with a progress bar, and say what has changed."""
    from bertcli.vectors.search_index import open_index

    update = search.indexing()
    if update.is_current:
        update.settle()
        return
    run = update.run()
    console.follow(run)
    console.truncated(run.tally, search.embedder.max_length)
    if run.reader.records:
        console.close(run.reader)
    search.index = open_index(update.path)
    if search.index is not None:
        console.note(update.summary(search.index))


def follow_embedding(run: "FileRun | EmbedRun", search: "Search", console: Console) -> None:
    """Compute the vectors of a corpus with a progress bar, and say whether they are kept."""
    console.follow(run)
    console.truncated(run.tally, search.embedder.max_length)
    if file := search.options.vectors:
        console.note(
            f"vectors of {counted(run.tally.records, 'text')} kept in {file} for the next search"
        )
