"""What stdin is taken for: texts or JSON objects; and words that are also files."""

import json

import pytest
from front import (
    DEADLINE,
    TINY,
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


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_in_pieces_of_any_size(monkeypatch, size):
    monkeypatch.setattr("bertcli.files.streams.CHUNK", size)
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
    assert call("tokenize", "--count", "README.md")[::2] == (0, note)
    assert call("tokenize", "--count", "README.md", "docs", "x", "a").err == note
    assert call("tokenize", "--count", "README.md", "-q").err == ""
    assert call("tokenize", "--count", "docs").err == ""


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
