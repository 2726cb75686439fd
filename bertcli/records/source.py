"""What the user named: texts, files, their format and the fields to read."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bertcli.errors import InputError, UsageError
from bertcli.files.streams import LARGEST_RECORD, PACKED
from bertcli.files.writers import SUFFIXES, TENSORS

FORMATS = {**SUFFIXES, ".tab": "tsv", ".pq": "parquet"}
QUOTE = "quote globs, so that the shell does not expand them; ** matches folders"
NO_ENCODINGS = ("idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7")


@dataclass(frozen=True)
class Source:
    """Where records come from, named as the options of the command line; None: the default."""

    texts: tuple[str, ...] = ()
    pair: str | None = None
    paths: tuple[str, ...] = ()
    are_pairs: bool = False  # files of two columns without a header (--pairs)
    format: str = "auto"
    text_field: str | None = None
    text_fields: tuple[str, ...] = ()  # instead: the first that is there, kept as well
    pair_field: str | None = None
    id_field: str | None = None
    keep: str | None = None  # names of other fields to keep, separated by commas; "*": all
    null: bool = False
    single: bool = False  # no pairs: a field `pair` is a field like any other
    pre_split: bool = False
    sentences: bool = False  # a text may be a list of sentences
    ids: bool = False  # the records are lists of token ids
    asked: tuple[str, ...] = ()  # options given that name fields
    flags: Mapping[str, str] = field(default_factory=dict)  # a field -> its option's own name
    taken: frozenset[str] = frozenset()  # names of output fields, which no kept field may have
    extra_ids: Mapping[str, int] = field(default_factory=dict)  # fields of ids, and how many each
    on_error: str = "fail"
    encoding: str = "utf-8"
    encoding_errors: str = "strict"
    max_record_bytes: int = LARGEST_RECORD

    def __post_init__(self) -> None:
        if self.texts and self.paths:
            expanded = os.path.isfile(self.texts[0])
            raise UsageError("TEXT cannot be combined with --input", QUOTE if expanded else "")
        if self.paths.count("-") > 1:
            raise UsageError("--input - is given twice, and stdin can be read once")
        if self.pair is not None and len(self.texts) != 1:
            raise UsageError(
                f"--pair needs exactly one text, not {len(self.texts)}",
                "BERT takes one or two sentences; a file of pairs goes to --pairs",
            )
        try:
            if codecs.lookup(self.encoding).name.replace("_", "-") in NO_ENCODINGS:
                raise LookupError
            "".encode(self.encoding)
        except (LookupError, ValueError):  # ValueError: a NUL in the name
            raise UsageError(
                f"unknown --encoding {self.encoding}", "for example utf-8, latin-1, utf-16, gb18030"
            ) from None

    def refuse_fields(self, formats: Iterable[str]) -> None:
        """Raise UsageError when fields were asked for, but all the formats of its paths are txt."""
        if self.asked and {*formats} == {"txt"}:
            raise UsageError(
                f"{', '.join(self.asked)}: the input is read as txt, which has no fields",
                "--input-format csv, tsv or jsonl reads fields",
            )

    def format_of(self, path: str) -> str:
        """Return the format of a file: that of the source, else by the suffix."""
        name = Path(path)
        inner = name.with_suffix("") if name.suffix.lower() in PACKED else name
        found = FORMATS.get(inner.suffix.lower(), "txt") if self.format == "auto" else self.format
        if found == "txt" and self.are_pairs and self.format == "auto":
            found = "tsv"  # a line of text is no pair
        if found in TENSORS and not self.ids:
            raise InputError(f"{path}: {found} holds numbers, not texts")
        return found
