"""`bertcli chunk` through the front door: formats, inputs, ids, refusals."""

import csv
import io
from unittest import mock

import pyarrow.parquet as pq
import pytest
from front import bad, call, good, shell
from terminal import at_terminal

from bertcli.tokenizing.chunks import Chunker

TEXT = "I love NLP! It is unaffable. Café au lait, s’il vous plaît."
ROWS = [
    {"id": 0, "chunk": 0, "start": 0, "end": 12, "text": "I love NLP! ", "n_tokens": 7},
    {"id": 0, "chunk": 1, "start": 12, "end": 29, "text": "It is unaffable. ", "n_tokens": 8},
]


def counted(*texts, **options):
    """Return what `tokenize` counts for each text."""
    return [row["length"] for row in good("tokenize", "--count", "-f", "jsonl", "--", *texts).rows]


def test_a_piece_is_a_line_of_json():
    done = good("chunk", TEXT, "", "--max-length", 10, "--at", "sentence")
    assert done.rows[:2] == ROWS
    assert done.out.splitlines()[0] == (
        '{"id":0,"chunk":0,"start":0,"end":12,"text":"I love NLP! ","n_tokens":7}'
    )
    assert done.rows[-1] == dict(id=1, chunk=0, start=0, end=0, text="", n_tokens=2)
    assert [row["n_tokens"] for row in done.rows] == counted(*(row["text"] for row in done.rows))


def test_the_limit_is_that_of_the_model():
    rows = good("chunk", "word " * 1000).rows
    assert [row["n_tokens"] for row in rows] == [256, 256, 256, 240]
    done = call("chunk", "word " * 1000, "--max-length", 300)
    assert done.err == ("warning: --max-length 300 is more than the model's limit of 256 tokens\n")
    assert done.rows[0]["n_tokens"] == 300


def test_ids_and_fields_go_along(tmp_path):
    docs = tmp_path / "docs.jsonl"
    docs.write_text(
        '{"id":"a","text":"one two three","n":[1]}\n{"text":"four","n":null}\n', "utf-8"
    )
    done = call("chunk", "-i", docs, "--max-length", 4, "--keep-fields")
    assert done.rows == [
        dict(id="a", chunk=0, start=0, end=8, text="one two ", n_tokens=4, n=[1]),
        dict(id="a", chunk=1, start=8, end=13, text="three", n_tokens=3, n=[1]),
        dict(id=1, chunk=0, start=0, end=4, text="four", n_tokens=3, n=None),
    ]
    assert done.err.startswith("warning: 1 record has no id; the row number is used")
    docs.write_text('{"text":"a","start":1}\n')
    failed = bad("chunk", "-i", docs, "--keep-fields")
    assert failed.error == (
        f"{docs}:1: field 'start' cannot be kept, as the output has a field of that name"
    )
    docs.write_text('{"text":"a","pair":"b"}\n')  # no pairs here: a field like any other
    assert good("chunk", "-i", docs, "--keep-fields").rows[0]["pair"] == "b"


def test_formats(tmp_path):
    argv = ("chunk", TEXT, "--max-length", 10, "--at", "sentence")
    expected = good(*argv).rows
    table = list(csv.DictReader(io.StringIO(good(*argv, "-f", "csv").out)))
    assert [{**row, **{n: int(row[n]) for n in row if n != "text"}} for row in table] == expected
    assert good(*argv, "-f", "tsv").out.splitlines()[1].split("\t")[4] == "I love NLP! "
    good(*argv, "-o", tmp_path / "c.parquet")
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == expected
    good(*argv, "-o", tmp_path / "c.jsonl.gz")
    assert good("chunk", "-i", tmp_path / "c.jsonl.gz").rows[0]["text"] == ROWS[0]["text"]
    for form in ("npy", "npz", "safetensors"):
        assert bad(*argv, "-f", form, code=2).error == f"this command cannot write {form}"


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet", "jsonl", "txt"])
def test_an_empty_input(form, tmp_path):
    out = tmp_path / f"out.{form}"
    done = call("chunk", "-o", out, stdin="")
    assert (done.code, done.err) == (0, "note: no records: the input is empty\n")
    if form in ("csv", "tsv"):
        assert out.read_text().split() in (["id,chunk,start,end,text,n_tokens"], [*ROWS[0]])
    elif form == "parquet":
        assert pq.read_schema(out).names == [*ROWS[0]]
    else:
        assert out.read_bytes() == b""


def test_txt_is_the_pieces_alone():
    given = "one two three\n\nfour\n"
    assert good("chunk", "-f", "txt", "--max-length", 4, stdin=given).out == (
        "one two \nthree\n\nfour\n"
    )
    first = good("chunk", "-f", "txt", "--max-length", 4, "--first", stdin=given)
    assert first.out == "one two \n\nfour\n"
    whole = good("chunk", "-0", "-f", "txt", "--max-length", 4, stdin=given)
    assert whole.out == "one two \0three\n\nfour\n\0"
    failed = bad("chunk", "-f", "txt", "a\nb")
    assert failed.error == "text 1: a chunk holds a line feed, which ends it"
    assert failed.hint == "-0 ends chunks with NUL, --format jsonl holds any text"
    failed = bad("chunk", "-f", "txt", "-0", "-i", "-", "--input-format", "jsonl",
                 stdin='{"text":"a\\u0000b"}')  # fmt: skip
    assert failed.error == "stdin:1: a chunk holds a NUL, which ends it"
    failed = bad("chunk", "-f", "txt", "--keep-fields", "n", code=2, stdin="a")
    assert failed.error == "txt holds the chunks alone, not the fields of --keep-fields"


def test_on_error(tmp_path):
    argv = ("chunk", "a 한 b", "fine", "--max-length", 4)
    failed = bad(*argv)
    assert failed.error == "text 1: character 2 ('\\ud55c') alone has more than 4 tokens"
    assert failed.hint == "increase --max-length, or use --on-error skip"
    done = call(*argv, "--on-error", "skip")
    assert (done.code, [row["text"] for row in done.rows]) == (1, ["fine"])
    assert done.rows[0]["id"] == 1
    assert "warning: 1 record was skipped\n" in done.err


def test_special_tokens_in_the_text_are_told():
    done = call("chunk", "a [SEP] b", "--max-length", 4)
    assert [row["text"] for row in done.rows] == ["a [SEP] ", "b"]
    assert done.err.startswith("warning: special tokens in the input were parsed as special tokens")
    rows = good("chunk", "a [SEP] b", "--max-length", 4, "--no-parse-special").rows
    assert [row["text"] for row in rows] == ["a [", "SEP] ", "b"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--max-length", 2), "--max-length 2 leaves no room for text"),
        (("--max-length", 0), "invalid value for --max-length: "),
        (("--max-length", 9, "--overlap", 7), "--overlap 7 must be less than the 7 tokens"),
        (("--at", "page"), "invalid value for --at: "),
        (("--overlap", -1), "invalid value for --overlap: "),
    ],
)
def test_wrong_usage(argv, message):
    assert bad("chunk", "a", *argv, code=2).error.startswith(message)


def test_hints_say_how_much_room_there_is():
    assert bad("chunk", "a", "--max-length", 2, code=2).hint == "increase it: special tokens take 2"
    failed = bad("chunk", "a", "--max-length", 9, "--overlap", 7, code=2)
    assert failed.hint == "--max-length 9 without special tokens is 7"


def test_a_table_on_a_terminal():
    code, screen = at_terminal("chunk", TEXT, "--max-length", 10, "--at", "sentence")
    assert code == 0
    assert b"I love NLP!" in screen and b"n_tokens" in screen


def test_a_closed_pipe_is_no_error(tmp_path):
    (tmp_path / "in.txt").write_text("some words here\n" * 50_000)
    done = shell("bertcli chunk -i in.txt -f txt | head -1", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, "some words here\n", "")


def test_an_interrupt_leaves_nothing(tmp_path):
    out = tmp_path / "out.jsonl"
    with mock.patch.object(Chunker, "counts", side_effect=[[0], KeyboardInterrupt]):
        done = call("chunk", "a", "-o", out)
    assert (done.code, done.out, list(tmp_path.iterdir())) == (130, "", [])
