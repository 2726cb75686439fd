"""What tokenize writes of many records, as arrays, and of few, one by one: the same bytes."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from front import (
    TINY,
    call,
    environment,
    good,
    jsonl,
)
from pyarrow.parquet import read_table

import bertcli
from bertcli.io import streams
from bertcli.tokenizing import encode_block, ragged
from bertcli.tokenizing import run as runs
from bertcli.tokenizing.tokenizer import Tokenizer

TEXTS = [text.replace("\n", "").replace("\r", "") for text in hostile.composed(21, 300)]
TEXTS += ["", " ", "[MASK]", "word " * 700]


@pytest.fixture(scope="module")
def default(default_folder):
    return Tokenizer.load(default_folder)


def test_ids_are_those_of_tokenizers(default, monkeypatch):
    """Every line through the command: blocks, line ends and all."""
    monkeypatch.setattr(ragged, "NANOTOKEN_CHARACTERS", 1000)
    texts = TEXTS * 5
    right = [encoding.ids for encoding in default.core.encode_batch(texts)]
    for end in ("\n", "\r\n"):
        done = call("tokenize", stdin="\ufeff" + "".join(text + end for text in texts))
        assert done.code == 0
        assert done.ids == right


FORMS = ["jsonl", "csv", "tsv", "parquet", "npy", "npz", "safetensors"]


@pytest.mark.parametrize("form", FORMS)
def test_every_format(tmp_path, monkeypatch, form):
    """Files of many records are those of few, from lines and from records with fields."""
    rows = [{"id": at, "text": text, "label": at % 3} for at, text in enumerate(TEXTS)]
    (tmp_path / "x.jsonl").write_text(jsonl(rows), "utf-8")
    (tmp_path / "x.txt").write_text("\n".join(TEXTS), "utf-8")
    options = ["--max-length=9", "--truncation=true", "--length", "--special-tokens-mask"]
    options += ["--padding=max_length"]
    for name, kept in (("x.txt", []), ("x.jsonl", ["--keep-fields=label"])):
        if kept and form in FORMS[-3:]:
            continue
        found = []
        for few in (0, 10**6):
            monkeypatch.setattr(encode_block, "FEW_RECORDS", few)
            out = tmp_path / f"{name}{few}.{form}"
            done = call("tokenize", "-i", tmp_path / name, *options, *kept, "-o", out)
            table = form == "parquet"  # whose row groups are larger where there are many
            found.append((done, read_table(out) if table else out.read_bytes()))
        assert found[0] == found[1]
        assert found[0][0].code == 0


def test_arrays_go_to_parquet_without_pandas(tmp_path):
    """Where it is installed, pyarrow imports it to look at whatever `pyarrow.array` is given."""
    (tmp_path / "x.txt").write_text("\n".join(TEXTS), "utf-8")
    code = "import sys; from bertcli.cli.app import main; code = main(sys.argv[1:]);"
    code += " sys.exit(code or 'pandas' in sys.modules)"
    argv = ["tokenize", "-q", "-i", "x.txt", "--truncation=true", "--length", "-o", "x.parquet"]
    done = subprocess.run([sys.executable, "-c", code, *argv], env=environment(), cwd=tmp_path)
    assert done.returncode == 0


@pytest.mark.parametrize("late", [{}, {"id": "x"}, {"pair": "b c"}])
@pytest.mark.parametrize("count", [4096, 10_000])
def test_fields_of_late_records_in_parquet(tmp_path, late, count):
    """Lists are encoded while others are tokenized, and read again if a record has a field."""
    source, table, lines = (tmp_path / name for name in ("in.jsonl", "x.parquet", "x.jsonl"))
    texts = (f"{at} {TEXTS[at % len(TEXTS)]}"[:40] for at in range(count))
    source.write_text(jsonl([{"text": text} for text in texts] + [{"text": "a"} | late]), "utf-8")
    for out in (table, lines):
        assert call("tokenize", "-i", source, "-o", out).code == 0
    rows = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    found = read_table(table)
    assert found.to_pylist() == [
        dict.fromkeys(["id"] if "id" in late else []) | row for row in rows
    ]
    assert str(found.schema.field("input_ids").type) == "list<element: int32>"
    assert str(found.schema.field("attention_mask").type) == "list<element: int8>"


@pytest.mark.parametrize("what", ["--stats", "--count"])
def test_numbers_of_texts(monkeypatch, what):
    texts, found = "\n".join(TEXTS), []
    for few in (0, 10**6):
        monkeypatch.setattr(encode_block, "FEW_RECORDS", few)
        found.append(call("tokenize", what, "-f", "jsonl", stdin=texts))
    assert found[0] == found[1]
    assert what == "--count" or found[0].rows[0]["unknown_words"]


@pytest.fixture
def many_blocks(monkeypatch):
    """Small blocks of files, so that several threads have work, and as many of them as asked."""

    def have(threads):
        monkeypatch.setattr(runs, "cores", lambda: threads)

    monkeypatch.setattr(streams, "CHUNK", 2000)
    return have


@pytest.mark.parametrize(
    "options",
    [
        ("-o", "x.jsonl"),
        ("-o", "x.parquet", "--max-length", 9),
        ("-o", "x.npz", "--ragged"),
        ("-o", "x.jsonl", "--padding", "longest", "--window", 100),
        ("-o", "x.jsonl", "--offsets"),
        ("-o", "x.txt", "--count"),
    ],
)
def test_threads_change_no_byte(many_blocks, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("\n".join(TEXTS * 12), "utf-8")
    found = []
    for threads in (1, 4):
        many_blocks(threads)
        assert good("tokenize", "-q", "-i", "in.txt", *options, "--overwrite").out == ""
        found.append((tmp_path / options[1]).read_bytes())
    assert found[0] == found[1]


def test_of_many_threads_the_first_failure_is_told(many_blocks, tmp_path):
    """And all of them in the order of the records, where they are skipped."""
    rows = [{"text": f"a text {n} " * 9, "pair": "a" if n % 7 else "b " * 99} for n in range(2000)]
    path = tmp_path / "in.jsonl"
    path.write_text(jsonl(rows))
    many_blocks(4)
    options = ("-i", path, "--pair-field", "pair", "--max-length", 30, "--truncation", "only_first")
    failed = call("tokenize", *options)
    assert failed.code == 1 and failed.error.startswith(f"{path}:1: cannot be truncated")
    skipped = call("tokenize", *options, "--on-error", "skip", "--no-token-type-ids")
    told = re.compile(re.escape(f"{path}:") + r"(\d+): cannot be truncated")
    places = told.findall(skipped.err)
    assert places == [str(n + 1) for n in range(0, 2000, 7)]
    assert len(skipped.rows) == 2000 - len(places)


def test_a_kept_field_with_the_name_of_one_of_our_lists_stays_what_it_is(tmp_path):
    row = {"text": "a b", "tokens": "a word", "attention_mask": [1.0, 0.5], "word_ids": [1, None]}
    (tmp_path / "a.jsonl").write_text(jsonl([row]))
    argv = ("-i", tmp_path / "a.jsonl", "--keep-fields", "-o", tmp_path / "a.parquet")
    good("chunk", "-q", "-m", TINY, *argv)
    (read,) = read_table(tmp_path / "a.parquet").to_pylist()
    assert {name: read[name] for name in row} == row


def test_a_long_text_takes_the_fast_way_and_has_the_same_tokens(tmp_path):
    """Offsets are given the other way alone."""
    words = Path(bertcli.__file__).read_text("utf-8").split() + hostile.REAL
    text = " ".join(random.Random(4).choices(words, k=150_000))
    (tmp_path / "in.txt").write_text(" ".join(text.split()) + "\n", "utf-8")
    argv = ("tokenize", "-q", "-i", tmp_path / "in.txt", "--truncation", "true")
    for more in (("--max-length", 9), ("--max-length", 90_000, "--truncation-side", "left")):
        (row,) = good(*argv, *more).rows
        (whole,) = good(*argv, *more, "--offsets").rows
        assert row == {name: whole[name] for name in row} and row["truncated"] > 100_000
