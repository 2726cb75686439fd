"""Headers of tables that are read as texts or as pairs, with a note that says so."""

import pytest
from front import bad, call, good, start

READS = "reads its columns\n"


def counts(stdin, *argv):
    done = call("tokenize", "--count", *argv, stdin=stdin)
    assert done.code == 0, done
    return len(done.out.splitlines()), done.err


@pytest.mark.parametrize(
    ("table", "how"),
    [
        ("id,text\n1,good\n2,bad\n", "CSV; --input-format csv"),
        ("Review Text,stars\ngood,1\n", ""),
        ("title,body\nSun,warm\n", "CSV; --input-format csv"),
        ('\ufefftext,label\r\n"well, well",1\r\n', "CSV; --input-format csv"),
        ('text,label\n"of two\nlines",1\n', "CSV; --input-format csv"),
        ("id\ttext\n1\tgood\n", "TSV; --input-format tsv"),
        ("id;text\n1;good\n", "CSV; --input-format csv --delimiter ';'"),
    ],
)
def test_a_table_on_stdin_is_read_as_text_with_a_note(table, how):
    lines, err = counts(table)
    assert lines == table.count("\n")
    assert err == (f"note: stdin looks like {how} {READS}" if how else "")
    assert counts(table, "--input-format", "txt")[1] == ""


def test_the_note_names_what_reads_the_table():
    table = "id;body\n1;one\n"
    assert "--input-format csv --delimiter ';'" in counts(table)[1]
    given = ("--input-format", "csv", "--delimiter", ";", "--text-field", "body")
    assert good("tokenize", "--count", *given, stdin=table).out == "1\t3\n"


@pytest.mark.parametrize(
    "prose",
    [
        "text, body and title\nHello, you\n",
        "Dear Sir,text\nno comma here\n",
        "id,text\n",
        "id,text\nA sentence, with two, commas, in it\n",
        "title\nbody\n",
        "Hello, world\nGood, bye\n",
        "text,text\na,b\n",
        '{"id":1} text,id\n1,2\n',
        "text,1984\na,b\n",
    ],
)
def test_prose_on_stdin_has_no_note(prose):
    assert counts(prose) == (prose.count("\n"), "")


def test_a_header_that_is_typed_is_a_text_at_once():
    """Nothing waits for the second line, which decides whether there is a note."""
    with start("tokenize", "--count") as running:
        running.stdin.write(b"id,text\n")
        running.stdin.flush()
        assert running.stdout.readline() == b"5\n"
        out, err = running.communicate(b"1,good\n")
    assert out == b"5\n"
    assert err.decode() == f"note: stdin looks like CSV; --input-format csv {READS}"


PAIRS = ["text\tpair", "sentence1\tsentence2", "Premise\tHypothesis", "query\tpassage"]


@pytest.mark.parametrize("header", PAIRS)
def test_a_header_of_pairs_is_a_pair_with_a_note(tmp_path, header):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{header}\none\ttwo\n", "utf-8")
    lines, err = counts("", "--pairs", path)
    first, second = header.split("\t")
    how = f"--input FILE --input-format tsv --text-field {first} --pair-field {second} reads it\n"
    assert lines == 2
    assert err.count("\n") == 1
    assert err.startswith(f"note: {path}:1: read as a pair, but {first!r} and {second!r} look like")
    assert err.endswith(how)
    assert counts(f"one\ttwo\n{header}\n", "--pairs", "-") == (2, "")
    given = ("-i", path, "--text-field", first, "--pair-field", second)
    assert good("tokenize", "--count", *given).out == "5\n"


def test_a_first_pair_that_cannot_be_read_is_skipped_as_others():
    done = call("tokenize", "--count", "--pairs", "-", "--on-error", "skip", stdin=b"\xff\na\tb\n")
    assert (done.code, done.out) == (1, "5\n")
    assert bad("tokenize", "--count", "--pairs", "-", stdin="a\nb\tc\n").error == (
        "stdin:1: 1 column, but a pair has two"
    )
