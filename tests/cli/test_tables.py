"""Tables for people: whole figures at any width, and the first rows of many."""

import json
import re

import pytest
from front import (
    TINY,
    bad,
    good,
    jsonl,
)
from rich.cells import cell_len
from terminal import at_terminal

LONG = "The quick brown fox jumps over the lazy dog and says something about it"
FIVE = [f"{LONG} {number}" for number in range(5)]
TEN = [f"{number} {LONG} \u6771\u4eac" for number in range(10)]
FIGURE = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?")
WIDTHS = (60, 80, 120)
COMMANDS = [
    ("tokenize", LONG),
    ("tokenize", "--stats", *TEN),
    ("chunk", "--max-length", "12", LONG),
    ("tokenize", "--from-tokens", "love", "##p"),
    ("embed", *FIVE),
    ("embed", *TEN),
    ("embed", "--layers", "0,-1", "--layer-combine", "stack", *FIVE),
    ("embed", "--token-vectors", LONG),
    ("embed", "--word-vectors", "mean", LONG, "--pair", LONG),
]


def drawn(width, *argv):
    """Return the lines of a table in a terminal of this width, after a check that they fit."""
    done = good(*argv, "-q", "-m", TINY, "-f", "table", COLUMNS=str(width))
    lines = done.out.splitlines()
    assert [line for line in lines if cell_len(line) > width] == []
    return lines


@pytest.mark.parametrize("argv", COMMANDS, ids=lambda argv: " ".join(argv)[:30])
def test_a_figure_is_whole_or_not_there(argv):
    """The figures of a narrow table are some of those of a very wide one."""
    wide = {*FIGURE.findall("\n".join(drawn(400, *argv)))}
    wide |= {figure.replace("0.", ".", 1) for figure in wide}
    wide |= {figure.lstrip("0") for figure in wide}
    for width in WIDTHS:
        lines = drawn(width, *argv)
        assert [line for line in lines if re.search(r"\d\u2026", line.replace(LONG[:4], ""))] == []
        text = "\n".join(line.split("\u2026")[-1] for line in lines)
        assert {*FIGURE.findall(text)} <= wide, width


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_and_lengths_are_there_at_every_width(width):
    text = "\n".join(drawn(width, "embed", *TEN))
    rows = good("embed", "-q", "-m", TINY, *TEN, "-f", "jsonl").rows
    for row in rows:
        norm = sum(value * value for value in row["embedding"]) ** 0.5
        assert f"{norm:.3f}" in text or f"{norm - 5e-4:.3f}" in text
        assert f" {row['n_tokens']} " in text


@pytest.mark.parametrize("command", ["embed", "tokenize", "chunk"])
def test_many_texts_are_counted(tmp_path, command):
    file = tmp_path / "many.txt"
    file.write_text("".join(f"word {number}\n" for number in range(2345)))
    lines = drawn(80, command, "-i", file)
    assert any(line.startswith("... 2,3") and "more; -f jsonl for all" in line for line in lines)
    assert sum("word " in line for line in lines) <= 80
    if command == "embed":
        assert "... 2,305 more; -f jsonl for all" in [line.rstrip() for line in lines]
        assert any(line.startswith("shape 2,345 x 32") for line in lines)


@pytest.mark.parametrize("more", [[], ["--token-vectors"]])
def test_the_tokens_of_a_long_text_are_counted(more):
    lines = drawn(80, *(["embed", *more] if more else ["tokenize"]), "love " * 60)
    assert sum(bool(re.match(r" +\d+ .* love ", line)) for line in lines) == 39
    assert any("... 22 more tokens; -f jsonl for all" in line for line in lines)


def test_a_table_where_the_number_of_columns_is_given_as_zero():
    out = good("tokenize", "hi", "-f", "table", COLUMNS="0").out
    assert "7632" in out and out == good("tokenize", "hi", "-f", "table", COLUMNS="100").out


@pytest.mark.parametrize("width", WIDTHS)
def test_hits_are_text_without_marks_of_breaks_and_ids_leave_it_room(tmp_path, width):
    path = tmp_path / "notes.jsonl"
    rows = [{"id": f"notes/{'long/' * 9}{name}", "text": f"{name}\tis\r\nhere"} for name in "ab"]
    path.write_text(jsonl(rows))
    lines = drawn(width, "similar", "a", "--corpus", path)
    assert "\ufffd" not in "\n".join(lines)
    first, second = (
        next(n for n, line in enumerate(lines) if f"{x} is here" in line) for x in "ab"
    )
    gap = lines[min(first, second) + 1 : max(first, second)]
    assert [line for line in gap if not line.strip()]  # a gap between hits
    if width > 60:  # else no line has room for the id
        assert sum(rows[0]["id"] in line or rows[1]["id"] in line for line in lines) == 2


NOTE = "The committee met to review the budget. Nobody objected to the printer. "
LONG_NOTE = f"{NOTE * 5}Anna decided to ship the release in March. {NOTE * 5}"


@pytest.fixture
def notes(tmp_path):
    path = tmp_path / "notes.jsonl"
    days = ("01", "02", "12")
    path.write_text(
        jsonl({"id": f"notes/meeting-2024-03-{day}.md:1", "text": LONG_NOTE} for day in days)
    )
    return path


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("more", [[], ["--hybrid"], ["--lexical"]])
def test_hits_have_ids_to_copy_and_the_passage_that_matches(notes, width, more):
    lines = drawn(width, "similar", "when do we ship the release?", "--corpus", notes, *more)
    text = "\n".join(lines)
    assert all(f"notes/meeting-2024-03-{day}.md:1" in text for day in ("01", "02", "12"))
    assert text.count("release") == 1 + 3  # that of the query, and one of each hit
    assert text.count("Anna decided") == 3
    assert len(lines) < 3 * 10


def test_the_beginning_is_shown_of_a_text_without_words_of_the_query(notes):
    assert "\u2026" in "".join(lines := drawn(120, "similar", "zebra", "--corpus", notes))
    assert "The committee met to review" in next(line for line in lines if "-03-01.md:1" in line)


def test_rows_that_are_ids_are_shown_once_and_figures_have_separators(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"word {number}\n" for number in range(1200)))
    lines = drawn(80, "similar", "word 1150", "--corpus", path, "--lexical", "--top-k", "1")
    assert "row" not in lines[2].split() and " 1150 " in lines[4]
    records = [{"id": f"n{number}", "text": f"word {number}"} for number in range(1200)]
    path.with_suffix(".jsonl").write_text(jsonl(records))
    argv = ("similar", "word 1150", "--corpus", path.with_suffix(".jsonl"), "--lexical", "-k", "1")
    assert drawn(80, *argv)[4].split()[1:3] == ["1,150", "n1150"]


def test_scores_have_as_many_digits_everywhere(tmp_path, models):
    a = tmp_path / "a.npy"
    b = tmp_path / "b.npy"
    good("embed", "-q", "-m", TINY, *FIVE, "-o", a)
    good("embed", "-q", "-m", TINY, *FIVE, "-o", b, "--dtype", "bfloat16")
    compared = good("compare", a, b).out
    head = models("BertForSequenceClassification", num_labels=1)
    ranked = good("rerank", "-q", "a fox", *FIVE, "-m", head).out
    floats = re.findall(r"\d\.\d+", compared + ranked)
    assert floats and max(len(figure.strip("0.")) for figure in floats) <= 10


def test_what_is_typed_at_the_prompt_is_answered_in_lines(tmp_path):
    path = tmp_path / "notes.jsonl"
    text = "One line.\nAnother\twith a tab. " + "And more of it. " * 20
    path.write_text(json.dumps({"text": text}) + "\n")
    typed = [(b"query> ", b"tea\n"), (b"query> ", b"\x04")]
    argv = ("similar", "--corpus", path, "-m", TINY)
    code, seen = at_terminal(*argv, stdin=None, typed=typed, columns=100)
    assert code == 0 and "\ufffd" not in seen.decode()
    assert "One line. Another with a tab." in seen.decode().split("query> ")[1]


KEPT = ("--keep-fields", "stars,title")


@pytest.mark.parametrize(
    "argv",
    [
        ("tokenize", "-i"),
        ("embed", "-i"),
        ("similar", "late", "--corpus"),
        ("chunk", "-i"),
    ],
)
def test_kept_fields_are_in_tables(tmp_path, argv):
    path = tmp_path / "reviews.jsonl"
    row = {"text": "It came late.", "stars": 4321, "title": f"Never {LONG}", "other": "unseen"}
    path.write_text(jsonl([row]))
    for width in WIDTHS:
        lines = "\n".join(drawn(width, *argv, path, *KEPT))
        assert re.search(r"4,?321|too narrow for .*stars", lines)
        assert "Never" in lines or re.search(r"too narrow for .*title", lines)
        assert "unseen" not in lines


def test_counts_of_tokens_are_a_table_with_the_texts():
    lines = drawn(120, "tokenize", "--count", "hello", LONG)
    assert [line.split() for line in lines if "hello" in line] == [["hello", "6"]]
    assert any(LONG in line for line in lines)


def test_groups_of_duplicates_are_a_table_on_stdout_beside_a_file(tmp_path):
    texts, out = tmp_path / "t.txt", tmp_path / "kept.csv"
    texts.write_text("the cat\na dog\nthe cat\n")
    lines = drawn(80, "duplicates", texts, "-o", out)
    assert any("kept" in line and "the cat" in line for line in lines)
    assert out.read_text() == "text\nthe cat\na dog\n"
    argv = ("duplicates", texts, "-m", TINY, "-f", "table", "--groups", tmp_path / "g.csv")
    assert bad(*argv, code=2).error.startswith("--format table is for stdout")
