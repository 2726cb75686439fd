"""Files that are no text are named for what they are, with the way to read them."""

import io
import pickle
import zipfile

import numpy as np
import pytest
from front import TINY, bad, call, good, process

COUNT = ("tokenize", "--count", "-m", TINY, "-i")


def archive(*names):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        for name in names:
            packed.writestr(name, "x")
    return data.getvalue()


def array():
    data = io.BytesIO()
    np.save(data, np.arange(3))
    return data.getvalue()


DOCUMENT = archive("[Content_Types].xml", "xl/workbook.xml")
OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99)
FILES = {
    "book.xlsx": (
        archive("[Content_Types].xml", "xl/workbook.xml"),
        "an Excel or Word file",
        "CSV",
    ),
    "old.xls": (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99),
        "an old Excel or Word file",
        "CSV",
    ),
    "report.pdf": (b"%PDF-1.7\n%\xe2\xe3", "a PDF", "pdftotext report.pdf -"),
    "texts.zip": (archive("a.txt"), "a zip archive", "unzip texts.zip"),
    "model.pkl": (pickle.dumps({"a": [1, 2]}), "a Python pickle", "JSONL or Parquet"),
    "wide.txt": ("i love nlp\n".encode("utf-16"), "UTF-16 text", "--encoding utf-16"),
    "wider.csv": ("text\nlove\n".encode("utf-32"), "UTF-32 text", "--encoding utf-32"),
    "table.txt": (b"PAR1" + bytes(20), "Parquet", "--input-format parquet"),
    "packed.txt": (b"\x1f\x8b\x08" + bytes(20), "compressed by gzip", ".gz"),
    "ids.txt": (array(), "a NumPy array", "decode"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_text(name, tmp_path, monkeypatch):
    content, what, how = FILES[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text("love\n")
    monkeypatch.chdir(tmp_path)
    done = bad(*COUNT, name)
    end = "" if name.startswith("wide") else ", not text"
    assert done.error == f"{name}: is {what}{end}"
    assert how in done.hint
    assert "replace" not in done.hint  # which would make rubbish of it
    done = call(*COUNT, name, "-i", "good.txt", "--on-error", "skip")
    assert (done.code, done.out) == (1, "3\n")
    assert f"{name}: is {what}" in done.err


def test_an_encoding_that_is_given_is_believed(tmp_path):
    (tmp_path / "wide.txt").write_bytes("love\n".encode("utf-16"))
    assert good(*COUNT, tmp_path / "wide.txt", "--encoding", "utf-16").out == "3\n"


def test_html_is_read_with_a_note(tmp_path):
    (tmp_path / "page.html").write_text("<!DOCTYPE html>\n<p>love</p>\n")
    done = call(*COUNT, tmp_path / "page.html")
    assert done.code == 0
    assert "page.html looks like HTML: its tags are read as text" in done.err


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"%PDF-1.4\n1 0 obj\n", "a PDF"),
        (archive("[Content_Types].xml"), "an Excel or Word file"),
    ],
)
def test_stdin_that_is_no_text_is_refused(data, what):
    done = process("tokenize", "--count", "-m", TINY, stdin=data)
    assert (done.code, done.error) == (1, f"stdin: is {what}, not text")
    assert "-i FILE" in done.hint


def test_text_in_utf_16_on_stdin_is_named_with_its_encoding():
    text = "love\n".encode("utf-16")
    done = process("tokenize", "--count", "-m", TINY, stdin=text)
    assert (done.code, done.error) == (1, "stdin: is UTF-16 text")
    assert done.hint == "--encoding utf-16 reads it"
    assert good("tokenize", "--count", "-m", TINY, "--encoding", "utf-16", stdin=text).out == "3\n"
