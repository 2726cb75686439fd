"""What tokenize writes of many records, as arrays, and of few, one by one: the same bytes."""

import re
import subprocess
import sys
from itertools import product

import hostile
import pytest
from front import (
    call,
    environment,
    good,
    jsonl,
)
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.parquet import read_table

from bertcli.files import streams
from bertcli.records.reader import Reader
from bertcli.records.records import Record, TextBlock
from bertcli.records.source import Source
from bertcli.tokenizing import ragged, wordpiece
from bertcli.tokenizing import run as runs
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.token_output import Task, TokenOutput
from bertcli.tokenizing.tokenizer import Tokenizer

IDS, TYPES, MASK = "input_ids", "token_type_ids", "attention_mask"
TEXTS = [text.replace("\n", "").replace("\r", "") for text in hostile.composed(21, 300)]
TEXTS += ["", " ", "[MASK]", "word " * 700]


@pytest.fixture(scope="module")
def default(default_folder):
    return Tokenizer.load(default_folder)


class Given(Reader):
    """A reader of the records that a test has made."""

    def __init__(self, records):
        super().__init__(Source(on_error="skip"))
        self.given = records

    def blocks(self):
        yield self.given


def written(tokenizer, records, task, few):
    """Return what is written of records, and the counts."""
    run = task.run(Given(records), tokenizer, 5)
    output, found = TokenOutput(run, task), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEW", few)
        for name, limit in (("TOGETHER", 20), ("SHAPES", 3), ("LONGEST", 8)):
            patch.setattr(ragged, name, limit)
        output.write(output, found.extend)
    return b"".join(found), run.tally, run.reader.skipped


columns = st.sets(st.sampled_from([TYPES, MASK, "special_tokens_mask"])).map(
    lambda names: (IDS, *sorted(names))
)
layouts = st.builds(
    Layout,
    columns,
    special_tokens=st.booleans(),
    max_length=st.integers(3, 12),
    truncation=st.sampled_from(["do_not_truncate", "longest_first", "only_first"]),
    truncation_side=st.sampled_from([None, "left", "right"]),
    padding=st.sampled_from(["do_not_pad", "max_length", "longest"]),
    padding_side=st.sampled_from([None, "left", "right"]),
)
tasks = st.builds(
    Task,
    layouts,
    extra=st.sets(st.sampled_from(["length", "text"])).map(sorted).map(tuple),
    only_count=st.booleans(),
)
keys = st.one_of(st.none(), st.integers(), st.text(max_size=3))
extras = st.one_of(st.none(), st.dictionaries(st.sampled_from(["x", "é"]), keys))
records = st.tuples(hostile.texts, st.one_of(st.none(), hostile.texts), keys, extras)


@given(st.lists(records, max_size=6), tasks)
def test_any_records(default, fields, task):
    made = [Record(*some) for some in fields]
    assert written(default, made, task, 0) == written(default, made, task, 100)


@pytest.mark.parametrize("name", hostile.VOCABULARIES)
def test_many_lines(tmp_path, name):
    tokenizer = Tokenizer.load(hostile.copy_vocabulary(name, tmp_path))
    block = TextBlock.of_lines(TEXTS, "x.txt", 1)
    for length, special, only_count in product([None, 2, 40], [True, False], [True, False]):
        cut = "longest_first" if length else "do_not_truncate"
        layout = Layout(special_tokens=special, max_length=length, truncation=cut)
        task = Task(layout, only_count=only_count)
        flat, each = (written(tokenizer, block, task, few) for few in (0, 10**6))
        assert flat == each
        assert flat[1].records == len(TEXTS)
        assert flat[1].literals > 0 < flat[1].empty


def test_ids_are_those_of_tokenizers(default, monkeypatch):
    """Every line through the command: blocks, line ends and all."""
    monkeypatch.setattr(wordpiece, "MANY", 1000)
    texts = TEXTS * 5
    right = [encoding.ids for encoding in default.core.encode_batch(texts)]
    for end in ("\n", "\r\n"):
        done = call("tokenize", "-v", stdin="\ufeff" + "".join(text + end for text in texts))
        assert done.code == 0
        assert done.ids == right
    assert "note: tokenized with nanotoken" in done.err.splitlines()


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
            monkeypatch.setattr(runs, "FEW", few)
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


def test_stats(monkeypatch):
    texts, found = "\n".join(TEXTS), []
    for few in (0, 10**6):
        monkeypatch.setattr(runs, "FEW", few)
        found.append(call("tokenize", "--stats", "-f", "jsonl", stdin=texts))
    assert found[0] == found[1]
    assert found[0].rows[0]["unknown_words"]


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
