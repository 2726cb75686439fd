"""The manners of the commands for task heads: formats, files, pipes, errors."""

import csv
import io
import json
import subprocess
import sys

import pyarrow.parquet
import pytest
from front import bad, call, good, start
from task_models import ENTITIES, LENGTH, agree, labels, texts

from bertcli.cli.app import COMMANDS
from bertcli.model.heads import BertForSequenceClassification

pytestmark = pytest.mark.parity

CALLS = {
    "fill-mask": ("BertForMaskedLM", ["a [MASK] and", "[MASK] [MASK]"]),
    "next-sentence": ("BertForNextSentencePrediction", ["one", "two"]),
    "classify": ("BertForSequenceClassification", ["one", "two", "one"]),
    "tag": ("BertForTokenClassification", ["Angela lives in Berlin.", "one"]),
    "answer": ("BertForQuestionAnswering", ["--question", "who?", "--context", "one of them"]),
    "choose": ("BertForMultipleChoice", ["one", "two", "three"]),
}
LISTS = ("predictions", "labels", "entities", "answers", "choices")


def folder_of(models, command):
    name = CALLS[command][0]
    return models(name, **(labels(*ENTITIES) if command == "tag" else {}))


def calling(models, command):
    return [command, *CALLS[command][1], "-m", folder_of(models, command)]


def flat(rows):
    """What a table has for JSON lines: a row for each item."""
    for number, row in enumerate(rows):
        items = next((row[name] for name in LISTS if name in row), [{}])
        single = {key: it for key, it in row.items() if key not in LISTS}
        for item in items:
            yield {"id": number, **single, **item, "truncated": 0}


@pytest.mark.parametrize("command", ["classify", "tag"])
def test_no_label_and_no_entity_is_an_empty_table(models, command, tmp_path):
    """And not the file of an earlier run."""
    none = ["--threshold", 2] if command == "classify" else ["--ignore-labels", "O,PER,MISC"]
    argv = calling(models, command)
    full = [good(*argv, "-f", form).out.partition("\n")[0] for form in ("csv", "tsv")]
    if command == "classify":  # a table of labels has the columns of their JSON objects
        assert full == ["id,label,score,truncated", "id\tlabel\tscore\ttruncated"]
    for form, header in zip(("csv", "tsv"), full, strict=True):
        path = tmp_path / f"out.{form}"
        path.write_text("of an earlier run")
        good(*argv, *none, "-o", path, "--overwrite")
        assert path.read_text() == good(*argv, *none, "-f", form).out == f"{header}\n"
    tables = []
    for name, more in (("none", none), ("some", [])):
        good(*argv, *more, "-o", tmp_path / f"{name}.parquet")
        tables.append(pyarrow.parquet.read_table(tmp_path / f"{name}.parquet"))
    assert tables[0].num_rows == 0 < tables[1].num_rows
    assert tables[0].schema == tables[1].schema


@pytest.mark.parametrize("command", CALLS)
def test_formats_hold_the_same(models, command, tmp_path):
    argv = calling(models, command)
    expected = list(flat(good(*argv).rows))
    written = [{key: str(it) for key, it in row.items()} for row in expected]
    for form, tabs in (("csv", ","), ("tsv", "\t")):
        out = good(*argv, "-f", form).out
        assert list(csv.DictReader(io.StringIO(out), delimiter=tabs)) == written
    path = tmp_path / "out.parquet"
    good(*argv, "-o", path)
    agree(pyarrow.parquet.read_table(path).to_pylist(), expected)
    assert "exists already" in bad(*argv, "-o", path).error
    shown = good(*argv, "-f", "table", COLUMNS="200").out
    assert all(name in shown for name in expected[0] if name not in ("id", "truncated"))
    assert "makes no sense here" in bad(*argv, "-f", "npy", code=2).error


@pytest.mark.parametrize("command", CALLS)
def test_the_default_model_has_no_head(command):
    done = bad(command, *CALLS[command][1])
    assert "needs" in done.error and "heads that are there: pooler" in done.error
    assert "give --model a checkpoint with that head" in done.hint


@pytest.mark.parametrize("command", CALLS)
def test_another_head_is_refused_and_said(models, command):
    for other in CALLS:
        if other != command:
            done = bad(command, *CALLS[command][1], "-m", folder_of(models, other))
            assert "BertFor" in done.error
            assert "give --model" in done.hint or f"bertcli {other} is for this model" in done.hint


def test_the_commands_are_there():
    assert [name for name in CALLS if name not in COMMANDS] == []


def test_records_keep_their_ids_fields_and_order(models, tmp_path):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given = [{"id": n, "text": text, "more": n % 3} for n, text in enumerate(texts(200, 9))]
    path.write_text("".join(json.dumps(line) + "\n" for line in given))
    argv = ["classify", "-i", path, "-m", folder_of(models, "classify"), "--keep-fields", "more"]
    good(*argv, "-q", "-o", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["more"]) for row in rows] == [(r["id"], r["more"]) for r in given]
    alone = call("classify", given[7]["text"], "-m", folder_of(models, "classify")).rows[0]
    agree({key: rows[7][key] for key in alone}, alone)
    piped = "".join(json.dumps(line) + "\n" for line in given)
    same = good(*argv[:1], "-i", "-", "--input-format", "jsonl", *argv[3:], "-q", stdin=piped)
    agree(same.rows, rows)


def test_cut_texts_are_counted(models):
    done = call("classify", "one " * 100, "two", "-m", folder_of(models, "classify"))
    assert [row.get("truncated") for row in done.rows] == [102 - LENGTH, None]
    assert done.err == (
        f"warning: 1 of 2 texts was cut to {LENGTH} tokens; {102 - LENGTH} tokens are gone\n"
    )
    argv = ["classify", "one two three", "-m", folder_of(models, "classify")]
    shorter = call(*argv, "--max-length", 4)
    assert shorter.rows[0]["truncated"] == 1
    wrong = bad(*argv, "--max-length", 65, code=2)
    assert wrong.error == "--max-length 65 is more than the 64 positions of this model"


def test_special_tokens_in_texts_are_said(models):
    argv = ["classify", "a [SEP] b", "-m", folder_of(models, "classify")]
    assert "1 special token stood in the text" in call(*argv).err
    assert good(*argv, "--no-parse-special").rows != call(*argv).rows
    assert good("fill-mask", "a [MASK]", "-m", folder_of(models, "fill-mask")).err == ""


def test_a_record_that_cannot_be_read(models, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\n{"text": "b"}\n')
    argv = ["classify", "-i", path, "-m", folder_of(models, "classify")]
    assert f"{path}:2: the text is a number" in call(*argv).err
    done = call(*argv, "--on-error", "skip")
    assert (done.code, len(done.rows)) == (1, 2)
    empty = call("classify", "-m", folder_of(models, "classify"), stdin="")
    assert (empty.code, empty.err) == (0, "note: no records: the input is empty\n")


def test_results_that_are_not_numbers(models, monkeypatch):
    original = BertForSequenceClassification.logits
    monkeypatch.setattr(
        BertForSequenceClassification, "logits", lambda self, x: original(self, x) * float("inf")
    )
    done = bad("classify", "a", "-m", folder_of(models, "classify"))
    assert done.error == "text 1: its logits hold NaN or infinity"


def test_devices_types_and_threads(models):
    argv = ["classify", "one", "two", "-m", folder_of(models, "classify")]
    assert "device 'cuda:77' is not there" in bad(*argv, "--device", "cuda:77", code=2).error
    half = call(*argv, "--dtype", "bfloat16", "--device", "cpu", "-q").rows
    whole = good(*argv, "--threads", 1, "--offline").rows
    for one, other in zip(half, whole, strict=True):
        assert abs(one["score"] - other["score"]) < 0.1 and one != other


def test_the_first_lines_come_early_and_head_ends_it(models, tmp_path):
    """Of an endless input: 64 records are enough for the first results."""
    argv = ["classify", "-m", str(folder_of(models, "classify"))]
    code = "import itertools\nfor n in itertools.count(): print('text', n)"
    with (
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as endless,
        start(*argv, stdin=endless.stdout) as running,
    ):
        endless.stdout.close()
        assert json.loads(running.stdout.readline())["label"]
        running.stdout.close()
        assert running.wait(60) == 0
        assert running.stderr.read() == b""
        endless.kill()
