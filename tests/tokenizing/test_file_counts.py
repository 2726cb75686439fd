"""`tokenize --count --per-file` and `--stats --per-file`: a row for each file, and the total."""

import pytest
from front import (
    bad,
    call,
    good,
    jsonl,
)

TEXTS = ["I love NLP!", "", "Ouagadougou \u4eac \U0001f600", "words " * 30]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Files of several sizes and formats; the texts of the large ones are tokenized as arrays."""
    (tmp_path / "a.txt").write_text("\n".join(TEXTS * 700) + "\n", "utf-8")
    rows = [{"text": text, "id": at} for at, text in enumerate(TEXTS * 300)]
    (tmp_path / "b.jsonl").write_text(jsonl(rows))
    (tmp_path / "c.txt").touch()
    (tmp_path / "d.csv").write_text("text,pair\none,two\nthree,\n")
    monkeypatch.chdir(tmp_path)
    return ["a.txt", "b.jsonl", "c.txt", "d.csv"]


@pytest.mark.parametrize("what", ["--count", "--stats"])
def test_a_file_has_the_numbers_that_it_has_alone(files, what):
    *rows, total = good("tokenize", what, "--per-file", "-q", *inputs(files)).rows
    assert [row["file"] for row in rows] == files
    for row in rows:
        name = row.pop("file")
        assert row == expected(what, ["-i", name])
    assert total.pop("file") is None
    assert total == expected(what, inputs(files))


def inputs(files):
    return [argument for name in files for argument in ("-i", name)]


def expected(what, argv):
    found = good("tokenize", what, "-q", *argv)
    if what == "--stats":
        return found.rows[0]
    lengths = [int(line.split()[-1]) for line in found.out.splitlines()]
    return {"texts": len(lengths), "tokens": sum(lengths)}


def test_what_is_read_from_stdin_and_lists(files):
    rows = good("tokenize", "--count", "--per-file", stdin="a\n").rows
    assert rows == [{"file": name, "texts": 1, "tokens": 3} for name in ("stdin", None)]
    rows = good("tokenize", "--count", "--per-file", "--files-from", "-", stdin="d.csv\n").rows
    assert [row["file"] for row in rows] == ["d.csv", None]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_has_whole_numbers_and_the_total_last(files, width):
    for what in ("--count", "--stats"):
        argv = ("tokenize", what, "--per-file", "-q", "-f", "table", *inputs(files))
        lines = good(*argv, COLUMNS=str(width)).out.splitlines()
        assert max(map(len, lines)) <= width
        (total,) = good(*argv[:-8], *argv[-8:], "-f", "jsonl").rows[-1:]
        words = [line.split() for line in lines if line.strip()]
        assert words[-1][1:3] == [f"{total[name]:,}" for name in ("texts", "tokens")]
        assert words[-1][0] == "total"


def test_tables_of_other_tools(files):
    assert good("tokenize", "--count", "--per-file", "-i", "d.csv", "-f", "csv").out == (
        "file,texts,tokens\nd.csv,2,8\n,2,8\n"
    )


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["a"], "--per-file requires --count or --stats"),
        (["--count", "a"], "--per-file cannot be combined with TEXT"),
        (["--count", "-f", "npy", "-i", "d.csv"], "this command cannot write npy"),
        (["--stats", "-f", "csv", "-i", "d.csv"], "this command cannot write csv"),
    ],
)
def test_what_it_does_not_go_with(files, argv, error):
    assert bad("tokenize", "--per-file", *argv, code=2).error == error


def test_without_it_nothing_changes(files):
    assert len(good("tokenize", "--count", "-q", *inputs(files)).out.splitlines()) == 4002
    assert "file" not in call("tokenize", "--stats", "-q", "-i", "d.csv").rows[0]
