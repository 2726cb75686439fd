"""What stdin is taken for: texts or JSON objects; and words that are also files."""

import json

import pytest
from front import (
    DEADLINE,
    TINY,
    bad,
    call,
    good,
    start,
)

NOTE = "note: stdin begins with a JSON object: read as JSONL (--input-format txt: as text)\n"


def texts(stdin, *argv):
    done = call("tokenize", "--text", *argv, stdin=stdin)
    assert done.code == 0, done
    return [row["text"] for row in done.rows], done.err


@pytest.mark.parametrize("before", ["", "\n", " \t\r\n\n", "\ufeff"])
@pytest.mark.parametrize("first", ['{"text":"a","x":[1]}', ' { "x": 1, "text": "a" } '])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_objects_are_jsonl_and_a_note_says_so(before, first, end):
    assert texts(f"{before}{first}{end}") == (["a"], NOTE)
    if end:
        assert texts(f'{before}{first}{end}{{"text":"b"}}') == (["a", "b"], NOTE)


JSON = "note: stdin begins with JSON: read as JSON (--input-format txt: as text)\n"
SPREAD = [
    '[{"text":"a"},{"text":"b"}]',
    '["a", "b"]\n',
    '[\n  {"text": "a"},\n  {"text": "b"}\n]\n',
    '[ "a",\n"b"]',
    '{\n  "text": "a"\n}\n{\n  "text": "b"\n}\n',
    '{"x": 1,\n"text": "a"}\n\n{"text": "b"}',
    '{"text":"a"}{"text":"b"}',
    '{\r\n"text":"a"}\r\n{"text":"b"}\r\n',
]


@pytest.mark.parametrize("size", [1, 1 << 20])
@pytest.mark.parametrize("before", ["", "\ufeff\n \n"])
@pytest.mark.parametrize("given", SPREAD)
def test_lists_and_objects_over_several_lines_are_json(monkeypatch, given, before, size):
    """As `jq '.[]'` writes them; they were embedded as prose, a text for each line."""
    monkeypatch.setattr("bertcli.io.streams.CHUNK", size)
    assert texts(before + given) == (["a", "b"], JSON)
    assert texts(before + given, "-0") == (["a", "b"], JSON)
    lines = (before + given).removeprefix("\ufeff").splitlines()
    assert texts(before + given, "--input-format", "txt") == (lines, "")
    assert texts((before.removeprefix("\ufeff") + given).encode("utf-16"), "--encoding", "utf-16")[
        0
    ] == ["a", "b"]


@pytest.mark.parametrize("given", SPREAD)
def test_files_of_json_may_hold_the_same(tmp_path, given):
    (tmp_path / "in.json").write_text(given)
    assert [row["text"] for row in good("tokenize", "--text", "-i", tmp_path / "in.json").rows] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    "given",
    ["[1] says so", "[CLS] a", "[101, 102]", "{\nint a;\n}", "[\nfoo\n]", "{", "[", "{a: 1}",
     '"a"', '{"quoted"} text', "[[1]", "[x]"],
)  # fmt: skip
def test_brackets_in_texts_are_texts(given):
    done = call("tokenize", "--text", "-q", stdin=f"{given}\nb\n")
    assert [row["text"] for row in done.rows] == [*given.split("\n"), "b"]


def test_a_list_of_words_is_a_text_that_is_split():
    assert texts('["a","b"]\n["c"]\n', "--pre-split") == ([["a", "b"], ["c"]], "")
    rows = '[{"text": ["a", "b"]}, {"text": ["c"]}]'
    assert texts(rows, "--pre-split") == ([["a", "b"], ["c"]], JSON)


def test_json_that_breaks_off_is_refused_with_its_line():
    broken = '{\n"text": "a"\n}\n{\n"text":\n'
    done = call("tokenize", stdin=broken)
    assert done.code == 1
    assert "error: stdin:6: not valid JSON: Expecting value\nhint: write one object" in done.err
    done = call("tokenize", "--on-error", "skip", "--text", stdin=broken)
    assert (done.code, [row["text"] for row in done.rows]) == (1, ["a"])
    done = call("tokenize", stdin='[{"text": "a"},\n{"text"')
    assert (done.code, done.out) == (1, "")
    assert "error: stdin: not valid JSON: " in done.err


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_in_pieces_of_any_size(monkeypatch, size):
    monkeypatch.setattr("bertcli.io.streams.CHUNK", size)
    whole = '\n{"text":"ä"}\n{"text":"b"}\n'.encode()
    assert texts(whole) == (["ä", "b"], NOTE)
    assert texts("{ä}\nb\n".encode()) == (["{ä}", "b"], "")
    assert texts(b"") == ([], "note: no records: the input is empty\n")


@pytest.mark.parametrize("first", ["{ hello\n", '\n{"text": "hello"}\n'])
def test_a_typed_line_is_answered_before_the_next_one_comes(first):
    with start("tokenize", "--no-token-type-ids") as running:
        running.stdin.write(first.encode())
        running.stdin.flush()
        assert b"7592" in running.stdout.readline()
        _, err = running.communicate(b"", timeout=DEADLINE)
    assert (running.returncode, err.decode()) == (0, NOTE if '"' in first else "")


def test_fields_that_some_input_has(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.csv").write_text("title\nb\n")
    argv = ("tokenize", "--text", "--text-field", "title", "-i", tmp_path)
    assert [row["text"] for row in good(*argv).rows] == ["a", "b"]
    assert texts('{"title":"a"}', "--text-field", "title") == (["a"], NOTE)
    assert texts("a\n", "--keep-fields")[0] == ["a"]


def test_a_field_of_the_environment_is_a_default_only():
    assert good("tokenize", "--count", stdin="a\n", BERTCLI_TEXT_FIELD="title").out == "3\n"


def test_a_text_that_is_also_a_file_is_noted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").touch()
    (tmp_path / "a").touch()
    (tmp_path / "docs").mkdir()
    note = "note: `README.md` is also a file; -i reads it\n"
    assert call("tokenize", "--count", "README.md", "docs", "x", "a").err == note
    assert call("tokenize", "--count", "README.md", "x", "-q").err == ""
    assert call("tokenize", "--count", "a").err == "note: `a` is also a file; -i reads it\n"


@pytest.mark.parametrize(
    ("argv", "name", "message"),
    [
        (["tokenize", "--count"], "docs", "docs is a folder; -i reads it"),
        (["embed"], "docs/", "docs/ is a folder; -i reads it"),
        (["chunk"], "README.md", "README.md is a file; -i reads it"),
        (["classify", "-m", TINY], "a.csv.gz", "a.csv.gz is a file; -i reads it"),
        (["rerank", "query", "-m", TINY], "README.md", "README.md is a file; -i reads it"),
        (["decode"], "ids.npy", "ids.npy is a file; -i reads it"),
        (["similar"], "docs", "docs is a folder; --corpus reads it"),
        (["similar", "--corpus", "docs"], "README.md", "README.md is a file; -i reads it"),
    ],
)
def test_a_file_or_folder_as_the_only_text_is_refused(tmp_path, monkeypatch, argv, name, message):
    monkeypatch.chdir(tmp_path)
    for file in ("README.md", "a.csv.gz", "ids.npy"):
        (tmp_path / file).touch()
    (tmp_path / "docs").mkdir()
    refused = bad(*argv, name, code=2)
    assert refused.error == message
    assert refused.hint.endswith(f"the name itself as a text: printf %s {name} | bertcli ...")


def test_the_name_of_a_file_as_a_text_comes_from_a_pipe_or_with_other_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    assert good("tokenize", "--count", stdin="docs").out == "4\n"
    assert good("tokenize", "--count", "docs", "docs").out == "4\n4\n"
    assert good("tokenize", "--count", "docs", "--pair", "docs").out == "7\n"


def test_pairs_of_sentences_from_a_pipe(models):
    run = ("next-sentence", "-q", "-m", models("BertForNextSentencePrediction"))
    alone = good(*run, "one", "two").rows
    assert good(*run, stdin="one\ttwo\n").rows == alone
    assert good(*run, stdin='{"text":"one","pair":"two"}\n').rows == alone


@pytest.mark.parametrize(
    ("command", "model", "given"),
    [
        ("fill-mask", "BertForMaskedLM", "a [MASK]"),
        ("classify", "BertForSequenceClassification", "a"),
        ("tag", "BertForTokenClassification", "a"),
    ],
)
def test_texts_from_a_pipe(models, command, model, given):
    run = (command, "-q", "-m", models(model))
    alone = good(*run, given).rows
    assert good(*run, stdin=f"{given}\n").rows == alone
    (row,) = good(*run, stdin=json.dumps({"id": 7, "text": given})).rows
    assert row.pop("id") == 7
    alone[0].pop("id", None)
    assert row == alone[0]


def test_queries_and_a_corpus_from_a_pipe(tmp_path):
    run = ("similar", "-m", TINY, "--corpus")
    done = call(*run, "-", "one", stdin='{"text":"one"}\n{"text":"two"}\n')
    assert (done.code, done.err) == (0, NOTE)
    assert done.rows[0]["hits"][0]["text"] == "one"
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    done = call(*run, tmp_path, stdin='{"text":"one"}\n')
    assert (done.code, done.err, done.rows[0]["query"]) == (0, NOTE, "one")
    for option, stdin in (("--text-field", ""), ("--query-field", "one\n")):
        texts = [] if stdin else ["one"]
        refused = call(*run, tmp_path / "a.txt", *texts, option, "title", stdin=stdin)
        assert refused.code == 2
        assert f"error: {option}: the input is read as txt" in refused.err
