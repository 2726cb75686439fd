"""Texts whose vectors are compared: their files as options, and what makes their vectors."""

from pathlib import Path
from typing import TYPE_CHECKING

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
from bertcli.model_folder.files import files_for
from bertcli.records.input import Input
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.retrieval.search import Search


class FileOptions(OptionGroup, panel=INPUT, of=Input):
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
        from bertcli.retrieval.search import Search, SearchOptions

        folder = model.folder(files_for(compute.dtype))
        options = SearchOptions(vectors=self.vectors, skip_empty=False)
        return Search.open(folder, record(EmbedOptions, compute), options, reader)
