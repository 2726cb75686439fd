"""What stdin is taken for: texts, JSON objects, packed bytes; and words that are also files."""

import gzip
import json

import pytest
import zstandard
from front import (
    DEADLINE,
    TINY,
    bad,
    call,
    good,
    process,
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


@pytest.mark.parametrize(
    "text", ["{", "{}x", "{a}", '{"text"', '["a"]', '"a"', "7", "x {}", '{"text":"a"} b', "{NaN}"]
)
def test_other_lines_are_texts(text):
    whole = f'\n{text}\n{{"text":"b"}}\n'
    assert texts(whole) == (["", text, '{"text":"b"}'], "")


def test_the_format_that_is_given_is_taken():
    row = '{"text":"a"}'
    assert texts(row, "--input-format", "txt") == ([row], "")
    assert texts(row, "--input-format", "jsonl") == (["a"], "")
    assert "NUL" in good("tokenize", "--help").out


def test_texts_and_objects_that_end_with_nul():
    assert texts("{\n]\0a\0", "-0") == (["{\n]", "a"], "")
    assert texts('{"text":\n"a"}\0{"text":"b"}\0', "-0") == (["a", "b"], NOTE)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_packed_or_in_pieces_of_any_size(monkeypatch, size, pack):
    monkeypatch.setattr("bertcli.files.streams.CHUNK", size)
    whole = '\n{"text":"ä"}\n{"text":"b"}\n'.encode()
    assert texts(pack(whole)) == (["ä", "b"], NOTE)
    assert texts(pack("{ä}\nb\n".encode())) == (["{ä}", "b"], "")
    assert texts(pack(b"")) == ([], "note: no records: the input is empty\n")


def test_other_encodings():
    whole = '{"text":"ä"}\n'
    assert texts(whole.encode("utf-16"), "--encoding", "utf-16") == (["ä"], NOTE)
    assert texts(whole.encode("latin-1"), "--encoding", "latin-1") == (["ä"], NOTE)
    error = bad("tokenize", stdin=whole.encode("latin-1")).error
    assert error == "stdin:1: byte 9 (0xe4) is not valid utf-8"


def test_a_first_line_that_is_too_large():
    row = json.dumps({"text": "a" * 99})
    done = call("tokenize", "--max-record-bytes", 50, stdin=row)
    assert (done.code, done.out) == (1, "")
    assert "error: stdin:1: the record is larger than 50 bytes\n" in done.err


@pytest.mark.parametrize("first", ["{ hello\n", '\n{"text": "hello"}\n'])
def test_a_typed_line_is_answered_before_the_next_one_comes(first):
    with start("tokenize", "--no-token-type-ids") as running:
        running.stdin.write(first.encode())
        running.stdin.flush()
        assert b"7592" in running.stdout.readline()
        _, err = running.communicate(b"", timeout=DEADLINE)
    assert (running.returncode, err.decode()) == (0, NOTE if '"' in first else "")


def test_what_one_command_pipes_another_reads_as_records():
    """FINDINGS: `tokenize ... | embed` embedded JSON."""
    ids = good("tokenize", "hello").out
    done = call("embed", "-m", TINY, stdin=ids)
    assert (done.code, done.out) == (1, "")
    assert "stdin:1: field 'text' not found" in done.err
    assert "available: input_ids, token_type_ids, attention_mask" in done.err
    (row,) = call("embed", "-m", TINY, stdin=good("tokenize", "--text", "hello").out).rows
    assert row["n_tokens"] == len(call("tokenize", "-m", TINY, "hello").ids[0])


@pytest.mark.parametrize("option", ["--text-field", "--pair-field", "--id-field", "--keep-fields"])
@pytest.mark.parametrize("command", ["tokenize", "embed"])
def test_fields_of_txt_are_refused(tmp_path, option, command):
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    for argv in ([], ["-i", path], ["-i", path, "--input-format", "txt"]):
        done = bad(command, "-m", TINY, option, "title", *argv, stdin="title\na\n", code=2)
        assert done.error == f"{option}: the input is read as txt, which has no fields"
        assert done.hint == "--input-format csv, tsv or jsonl reads fields"


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
    several = "note: `README.md` and 1 more are also files; -i reads them\n"
    assert call("tokenize", "--count", "README.md", "docs", "x", "a").err == several
    assert call("tokenize", "--count", "./docs").err == note.replace("README.md", "./docs")
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


def test_an_empty_pipe():
    done = process("tokenize", stdin=b"")
    assert (done.code, done.out, done.err) == (0, "", "note: no records: the input is empty\n")
