"""Input files of commands that compare the vectors of texts, and the model for the vectors."""

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
    given_files,
)
from bertcli.cli.options.groups import INPUT, OptionGroup, argument, option, record
from bertcli.model_folder.files import files_for
from bertcli.records.input import Input
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.retrieval.search import Search


class FileOptions(OptionGroup, panel=INPUT, record_class=Input):
    """Files with the texts to compare."""

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
        """Use the files of --input if no arguments are given."""
        self.files = given_files(self.files, self.input)

    def inputs(self, reader: Reader) -> list[str | Path]:
        """Return the files that the command reads: texts and vectors."""
        return [*reader.source.paths, *filter(None, [self.vectors])]

    def search(self, reader: Reader, model: ModelOptions, compute: ComputeOptions) -> "Search":
        """Return the search over the vectors of these texts, with its model."""
        from bertcli.embedding.options import EmbedOptions
        from bertcli.retrieval.search import Search, SearchOptions

        folder = model.folder(files_for(compute.dtype))
        options = SearchOptions(vectors=self.vectors, skip_empty=False)
        return Search.open(folder, record(EmbedOptions, compute), options, reader)
