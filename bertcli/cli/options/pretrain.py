"""The options that the commands of `bertcli pretrain` share."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, ClassVar

from bertcli.cli.display.console import Console
from bertcli.cli.options.groups import INPUT, OUTPUT, OptionGroup, argument, flag, option, record
from bertcli.cli.options.inputs import (
    Encoding,
    EncodingErrors,
    InputFormat,
    MaxRecordBytes,
    OnError,
    TextField,
    fields_asked,
    reader_of,
    source_paths,
)
from bertcli.errors import UsageError
from bertcli.files.streams import LARGEST_RECORD
from bertcli.files.typed_json import is_text
from bertcli.records.reader import Reader
from bertcli.records.source import Source


class PretrainCorpusOptions(OptionGroup):
    """The corpus: files, format and encoding."""

    PANEL: ClassVar = INPUT

    corpus: Annotated[
        list[str] | None,
        argument(
            "Files, folders or quoted globs (default, and -: stdin). .gz and .zst are "
            "decompressed.",
            "CORPUS...",
        ),
    ] = None
    input_format: Annotated[
        InputFormat,
        option(
            "auto: by the suffix; stdin is txt, or JSONL if it begins with an object. A record of "
            "another format than txt is a document: text with one sentence per line, or a list of "
            "sentences."
        ),
    ] = "auto"
    text_field: TextField = None
    on_error: OnError = "fail"
    encoding: Encoding = "utf-8"
    encoding_errors: EncodingErrors = "strict"
    max_record_bytes: MaxRecordBytes = LARGEST_RECORD

    def reader(self, console: Console, extra: Collection[str] = ()) -> Reader:
        """Return the reader of the corpus, and of fields with ids of ``extra`` embeddings."""
        source = record(
            Source,
            self,
            paths=source_paths(self.corpus, given=False),
            format=self.input_format,
            sentences=True,
            single=True,
            keep=",".join(dict.fromkeys(extra)) or None,
            flags=dict.fromkeys(extra, "--extra"),
            asked=(*fields_asked(self, "text_field"), *(("--extra",) if extra else ())),
        )
        return reader_of(source, console)


class FolderOptions(OptionGroup):
    """The output folder."""

    PANEL: ClassVar = OUTPUT

    output: Annotated[
        Path, option("Output folder. Written completely or not at all.", "DIR", "--output", "-o")
    ]
    overwrite: Annotated[bool, flag("--overwrite", "Replace a folder that this command wrote.")] = (
        False
    )

    def __post_init__(self) -> None:
        """Refuse a name that tokenizers could not open afterwards."""
        if not is_text(str(self.output)):
            raise UsageError(f"--output {str(self.output)!r} is not UTF-8", "choose another name")
