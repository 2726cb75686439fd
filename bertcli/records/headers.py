"""Notes about table headers that are read as texts or as pairs.

    note_table("id,text", "1,good")   # note: stdin looks like CSV; --input-format csv ...

They do not change how the input is read: a header among texts is a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from bertcli.errors import LOG, option
from bertcli.formats.delimited import cells_in

# Common column names in data sets, in lower case.
COMMON_COLUMNS = {
    "id", "text", "body", "title", "content", "sentence", "document", "review", "comment",
    "message", "description", "abstract", "headline", "tweet", "post", "utterance", "question",
    "label",
}  # fmt: skip
PAIR_COLUMNS = {
    "text", "pair", "text1", "text2", "text_a", "text_b", "sentence", "sentence1", "sentence2",
    "sentence_a", "sentence_b", "premise", "hypothesis", "query", "passage", "document",
    "question", "question1", "question2", "answer", "context", "anchor", "positive", "negative",
    "candidate", "reference", "source", "target", "left", "right", "first", "second",
}  # fmt: skip
DELIMITERS = (",", "\t", ";")
COLUMN_NAME = re.compile(r"[^\W\d]([\w .-]{0,38}\w)?")  # "review_text", "Review Text"


def note_table(first: str, second: str) -> None:
    """Write a note if the first two texts from stdin look like a table.

    The first line must consist of column names, one of them common; the second must have as many
    columns, or a quoted cell that continues on the next line.
    """
    for delimiter in DELIMITERS:
        names = cells_in(first, delimiter)
        if not _are_names(names) or COMMON_COLUMNS.isdisjoint(map(str.lower, names)):
            continue
        if len(cells_in(second, delimiter)) != len(names) and second.count('"') % 2 == 0:
            continue
        file_format = "tsv" if delimiter == "\t" else "csv"
        options = option("input_format", file_format)
        if delimiter == ";":
            options += f" {option('delimiter')} ';'"
        LOG.note(f"stdin looks like {file_format.upper()}; {options} reads its columns")
        return


def note_header(where: str, cells: Sequence[str], file_format: str) -> None:
    """Write a note if the first line of a file of pairs looks like a header."""
    names = [cell.strip().lower() for cell in cells]
    if len({*names}) != 2 or not PAIR_COLUMNS.issuperset(names):
        return
    first, second = cells
    fields = f"{option('text_field', first)} {option('pair_field', second)}"
    options = f"{option('input')} FILE {option('input_format', file_format)} {fields}"
    LOG.note(
        f"{where}: read as a pair, but {first!r} and {second!r} look like a header, and "
        f"a file of {option('pairs')} with two columns has none; {options} reads it"
    )


def _are_names(cells: Sequence[str]) -> bool:
    """Return True for two or more different words without surrounding spaces."""
    is_table = 2 <= len(cells) == len({*cells})
    return is_table and all(map(COLUMN_NAME.fullmatch, cells))
