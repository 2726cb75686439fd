"""A file named .json is one JSON array, and a format that contradicts a suffix is refused."""

import gzip
import json

import pytest
from front import TINY, bad, call, contents, good, json_in, left_in, rows_in, struck
from task_models import labels

TEXTS = ["the cat", "a dog", "", 'paris "quoted"\\']
PAIRS = '{"anchor": "the cat", "positive": "a cat"}\n'


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


ROWS = {  # commands that write rows, by a name
    "tokenize": ("tokenize", "-m", TINY, "-i", "TEXTS"),
    "tokens": ("tokenize", "-m", TINY, "-i", "TEXTS", "--tokens", "--text"),
    "count": ("tokenize", "-m", TINY, "-i", "TEXTS", "--count"),
    "per file": ("tokenize", "-m", TINY, "-i", "TEXTS", "--stats", "--per-file"),
    "decode": ("decode", "-m", TINY, "-i", "IDS"),
    "chunk": ("chunk", "-m", TINY, "-i", "TEXTS", "--max-length", 8),
    "embed": ("embed", "-m", TINY, "-i", "TEXTS"),
    "token vectors": ("embed", "-m", TINY, "-i", "TEXTS", "--token-vectors"),
    "classify": ("classify", "-m", "CLASSIFIER", "-i", "TEXTS"),
    "tag": ("tag", "-m", "TAGGER", "-i", "TEXTS"),
    "rerank": ("rerank", "cat", "-m", "SCORER", "-i", "TEXTS"),
    "similar": ("similar", "cat", "dog", "-m", TINY, "--corpus", "TEXTS"),
    "models": ("models",),
}


@pytest.fixture
def command(request, tmp_path, texts, models):
    """The words of a command of `ROWS`."""
    ids = tmp_path / "ids.txt"
    ids.write_text("101 102\n\n")
    name = request.param
    files = {"TEXTS": texts, "IDS": ids}
    if name == "classify":
        files["CLASSIFIER"] = models("BertForSequenceClassification", num_labels=2)
    elif name == "rerank":
        files["SCORER"] = models("BertForSequenceClassification", num_labels=1)
    elif name == "tag":
        files["TAGGER"] = models("BertForTokenClassification", **labels("O", "B-PER"))
    return [files.get(word, word) for word in ROWS[name]] + ["-q"] * (name != "models")


@pytest.mark.parametrize("command", ROWS, indirect=True)
def test_json_is_an_array_of_the_rows_of_json_lines(tmp_path, command):
    good(*command, "-o", tmp_path / "rows.jsonl")
    rows = rows_in(tmp_path / "rows.jsonl")
    good(*command, "-o", tmp_path / "rows.json")
    assert json_in(tmp_path / "rows.json") == rows != []
    good(*command, "-o", tmp_path / "again.json", "-f", "json")
    good(*command, "-o", tmp_path / "packed.JSON.gz")
    if command[0] != "models":
        good(*command, "-o", tmp_path / "resumed.json", "--resume")
        assert (tmp_path / "resumed.json").read_bytes() == (tmp_path / "rows.json").read_bytes()
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "rows.json").read_bytes()
    unpacked = gzip.decompress((tmp_path / "packed.JSON.gz").read_bytes())
    assert unpacked == (tmp_path / "rows.json").read_bytes()
    lines = unpacked.decode().splitlines()  # each row is a line, for tools that work on lines
    assert (lines[0], lines[-1], len(lines)) == ("[", "]", len(rows) + 2)


@pytest.mark.parametrize("command", ["tokenize", "chunk", "embed", "classify"], indirect=True)
def test_no_rows_are_an_empty_array(tmp_path, texts, command):
    texts.write_text("")
    for more in ((), ("--resume",)):
        path = tmp_path / f"rows{len(more)}.json"
        good(*command, "-o", path, *more)
        assert path.read_bytes() == b"[]\n"


def test_a_run_that_was_killed_goes_on_to_the_same_array(tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the cat {number}\n" for number in range(400)))
    argv = ["embed", "-q", "-m", TINY, "-i", texts, "--window", 100, "--backend", "torch"]
    good(*argv, "-o", tmp_path / "whole.json")
    assert struck("SIGKILL", *argv, "-o", tmp_path / "v.json", "--resume") != 0
    assert "v.json" not in left_in(tmp_path)
    good(*argv, "-o", tmp_path / "v.json", "--resume")
    assert (tmp_path / "v.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert len(json_in(tmp_path / "v.json")) == 400


def test_an_array_of_vectors_is_read_as_its_lines_are(tmp_path, texts):
    argv = ["embed", "-q", "-m", TINY, "-i", texts]
    for name in ("v.json", "v.jsonl"):
        good(*argv, "-o", tmp_path / name)
    good("compare", tmp_path / "v.json", tmp_path / "v.jsonl", "--tolerance", 0)
    found = [
        call("similar", "-q", "cat", "-m", TINY, "--corpus", texts, "--vectors", tmp_path / name)
        for name in ("v.json", "v.jsonl")
    ]
    assert found[0] == found[1] and found[0].code == 0
    assert good("tokenize", "-m", TINY, "-q", "-i", texts, "-o", tmp_path / "t.json").code == 0
    decoded = good("decode", "-m", TINY, "-i", tmp_path / "t.json", "-f", "jsonl").rows
    assert [row["text"] for row in decoded][:2] == ["[CLS] the cat [SEP]", "[CLS] a dog [SEP]"]


def test_a_report_is_one_object(tmp_path):
    vectors = tmp_path / "v.npy"
    good("embed", "-q", "-m", TINY, "a", "b", "-o", vectors)
    for more in ((), ("--resume",)):
        path = tmp_path / f"report{len(more)}.json"
        good("compare", vectors, vectors, "-o", path, *more)
        assert json_in(path) == good("compare", vectors, vectors, "-f", "json").rows[0]
    good("tokenize", "-m", TINY, "--stats", "a", "b", "-o", tmp_path / "stats.json")
    assert json_in(tmp_path / "stats.json")["texts"] == 2


def test_json_is_understood_as_a_name_of_json_lines():
    rows = good("tokenize", "-m", TINY, "a", "b").out
    for option in (("-f", "json"), ("-fjson",), ("--format=json",), ("--format", "json")):
        assert good("tokenize", "-m", TINY, "a", "b", *option).out == rows
    assert len([*map(json.loads, rows.splitlines())]) == 2


@pytest.mark.parametrize(
    ("name", "form", "said"),
    [
        ("x.npy", "csv", ".npy is the suffix of npy, not of csv"),
        ("x.csv", "jsonl", ".csv is the suffix of csv, not of jsonl"),
        ("x.CSV.gz", "tsv", ".csv is the suffix of csv, not of tsv"),
        ("x.parquet", "json", ".parquet is the suffix of parquet, not of json"),
        ("x.json", "csv", ".json is the suffix of json, not of csv"),
        ("x.json", "jsonl", ".json is a JSON array, not jsonl"),
        ("x.txt", "npz", ".txt is the suffix of txt, not of npz"),
    ],
)
def test_a_format_that_contradicts_the_suffix_is_refused(tmp_path, name, form, said):
    for more in ((), ("--resume",), ("--overwrite",)):
        done = bad("tokenize", "-m", TINY, "a", "-o", tmp_path / name, "-f", form, *more, code=2)
        assert done.error == f"{tmp_path / name}: {said}"
        assert "leave out --format" in done.hint
    assert contents(tmp_path) == {}


def test_a_format_that_the_suffix_does_not_contradict_is_written(tmp_path):
    for name, form in [
        ("x", "csv"),
        ("x.data", "jsonl"),
        ("x.jsonl", "json"),
        ("x.ndjson", "jsonl"),
        ("x.txt", "csv"),
    ]:
        good("tokenize", "-m", TINY, "a", "-o", tmp_path / name, "-f", form)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "x.txt").read_bytes()
    assert rows_in(tmp_path / "x.jsonl") == rows_in(tmp_path / "x.data")


def test_a_page_of_a_map_is_no_table(tmp_path, texts):
    pytest.importorskip("sklearn")
    done = bad("map", texts, "-m", TINY, "-o", tmp_path / "m.html", "-f", "csv", code=2)
    assert done.error == f"{tmp_path / 'm.html'}: .html is the suffix of html, not of csv"
    done = bad("map", texts, "-m", TINY, "-o", tmp_path / "m.csv", "-f", "html", code=2)
    assert done.error == f"{tmp_path / 'm.csv'}: .csv is the suffix of csv, not of html"
