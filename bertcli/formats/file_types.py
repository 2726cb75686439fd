"""Detection of files that are not text, by their first bytes, with a hint how to read them.

refuse_not_text(b"%PDF-1.7", "report.pdf", "utf-8")
# InputError: report.pdf: is a PDF; hint: extract its text: pdftotext report.pdf -
"""

from __future__ import annotations

import codecs
import re

from bertcli.errors import LOG, InputError, option

OFFICE = b"[Content_Types].xml"  # the first file in the archive of an Office document
ZIP = b"PK\x03\x04"
ZIP_NAME = slice(30, 30 + len(OFFICE))  # where a zip archive stores the name of its first file

# First bytes -> (type, hint); {} is replaced by the file name.
SIGNATURES = {
    b"%PDF-": ("a PDF", "extract its text: pdftotext {} -"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": (
        "an old Excel or Word file",
        "save it as CSV or as plain text",
    ),
    b"PAR1": ("Parquet", f"give {option('input_format', 'parquet')}"),
    b"\x1f\x8b": ("compressed by gzip", "give it a name that ends in .gz"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "give it a name that ends in .zst"),
    b"BZh": ("compressed by bzip2", "unpack it: bunzip2 {}"),
    b"\xfd7zXZ\0": ("compressed by xz", "unpack it: unxz {}"),
    b"\x93NUMPY": ("a NumPy array", f"bertcli decode and inspect read it, and {option('vectors')}"),
    b"SQLite format 3\0": ("an SQLite database", "export a table: sqlite3 -csv {} 'SELECT ...'"),
    b"\x89PNG": ("a picture", "texts are needed"),
    b"\xff\xd8\xff": ("a picture", "texts are needed"),
    b"GIF8": ("a picture", "texts are needed"),
    b"\x7fELF": ("a program", "texts are needed"),
}
# Longest first: the mark of UTF-32 starts with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
PICKLE = re.compile(rb"\x80[\x02-\x05]")  # protocols 2 to 5
HTML = re.compile(rb"\s*(<!doctype html|<html)\b", re.IGNORECASE)


def refuse_not_text(head: bytes, name: str, encoding: str) -> None:
    """Raise InputError for a file whose first bytes are those of a format other than text.

    A file with a byte order mark is rejected only if it is read as UTF-8. HTML is accepted with a
    note, because its tags are read as text.
    """
    if head.startswith(ZIP):
        file_type, hint = _type_of_archive(head)
        raise _not_text_error(name, file_type, hint)
    for signature, (file_type, hint) in SIGNATURES.items():
        if head.startswith(signature):
            raise _not_text_error(name, file_type, hint)
    if PICKLE.match(head):
        raise _not_text_error(
            name, "a Python pickle", "load it in Python, and write JSONL or Parquet"
        )
    if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
        for byte_order_mark, marked_encoding in BYTE_ORDER_MARKS.items():
            if head.startswith(byte_order_mark):
                raise InputError(
                    f"{name}: is {marked_encoding.upper()} text",
                    f"{option('encoding', marked_encoding)} reads it",
                )
    if HTML.match(head):
        LOG.note(f"{name} looks like HTML: its tags are read as text")


def _type_of_archive(head: bytes) -> tuple[str, str]:
    """Return the type of a zip archive, and a hint."""
    if head[ZIP_NAME] == OFFICE:
        return "an Excel or Word file", "save it as CSV or as plain text"
    return "a zip archive", "unpack it: unzip {}"


def _not_text_error(name: str, file_type: str, hint: str) -> InputError:
    """Return the error for a file of another type; {} in the hint is replaced by its name."""
    return InputError(f"{name}: is {file_type}, not text", hint.replace("{}", name))
