"""`bertcli tokenize`: every option at least once, every format from every source."""

import csv
import gzip
import io
import itertools
import json
import re
import shutil
from collections import Counter

import numpy as np
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    ids_of,
    json_in,
    jsonl,
    process,
    put_json,
)
from pyarrow import parquet, table
from safetensors.numpy import load as load_tensors
from tokenizers_made import MADE

A, B = [101, 1037, 102], [101, 1038, 102]  # the texts "a" and "b"
TEXTS = ["I love NLP!", "a, b", "Zürich: 東京", ""]


# --- formats and sources ------------------------------------------------------------------------


def read(form, data):
    """Return the ids that were written, whatever the format."""
    match form:
        case "jsonl" | "auto":
            return [json.loads(line)["input_ids"] for line in data.decode().splitlines()]
        case "csv":
            return [
                json.loads(row["input_ids"]) for row in csv.DictReader(io.StringIO(data.decode()))
            ]
        case "tsv":
            lines = [line.split("\t") for line in data.decode().splitlines()]
            return [json.loads(line[lines[0].index("input_ids")]) for line in lines[1:]]
        case "npy":
            return np.load(io.BytesIO(data)).tolist()
        case "npz":
            return np.load(io.BytesIO(data))["input_ids"].tolist()
        case "safetensors":
            return load_tensors(data)["input_ids"].tolist()
        case "parquet":
            return parquet.read_table(io.BytesIO(data))["input_ids"].to_pylist()
    raise AssertionError(form)


@pytest.mark.parametrize("source", ["argument", "file", "stdin", "dash"])
@pytest.mark.parametrize(
    "form", ["auto", "jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"]
)
def test_format_and_source(tmp_path, form, source):
    file, stdin, given = tmp_path / "in.txt", b"", []
    lines = "".join(text + "\n" for text in TEXTS).encode()
    match source:
        case "argument":
            given = TEXTS
        case "file":
            file.write_bytes(lines)
            given = ["-i", file]
        case "stdin":
            stdin = lines
        case "dash":
            given, stdin = ["--input", "-"], lines
    done = good("tokenize", "-f", form, "--padding", "longest", *given, stdin=stdin)
    width = max(map(len, ids_of(*TEXTS)))
    expected = [ids + [0] * (width - len(ids)) for ids in ids_of(*TEXTS)]
    assert read(form, done.stdout) == expected


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"])
def test_the_suffix_of_a_file_is_its_format(tmp_path, form):
    target = tmp_path / f"x.{form}"
    assert good("tokenize", "a", "b", "-o", target).out == ""
    assert read(form, target.read_bytes()) == [A, B]
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_packed_by_their_suffix(tmp_path):
    import zstandard

    good("tokenize", "a", "-o", tmp_path / "x.jsonl.gz")
    good("tokenize", "a", "-o", tmp_path / "x.csv.zst")
    content = (tmp_path / "x.jsonl.gz").read_bytes()
    assert read("jsonl", gzip.decompress(content)) == [A]
    assert content[4:8] == bytes(4)  # no time stamp
    with zstandard.open(tmp_path / "x.csv.zst", "rb") as packed:
        assert read("csv", packed.read()) == [A]


def test_an_existing_file_is_kept(tmp_path):
    target = tmp_path / "x.jsonl"
    target.write_text("mine")
    assert bad("tokenize", "a", "-o", target).error == f"{target}: already exists"
    assert target.read_text() == "mine"
    assert "--overwrite" in bad("tokenize", "a", "--stats", "-o", target).hint
    good("tokenize", "a", "-o", target, "--overwrite")
    assert read("jsonl", target.read_bytes()) == [A]


# --- fields -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "encoded"), [("char", str), ("byte", str.encode), ("utf16", None)]
)
def test_offset_units(unit, encoded):
    text = "né 😀 東 ab"
    (row,) = good("tokenize", text, "--offsets", "--offset-unit", unit).rows
    for start, stop in row["offset_mapping"][1:-1]:
        if unit == "utf16":
            whole = text.encode("utf-16-le")
            piece = whole[2 * start : 2 * stop].decode("utf-16-le")
        else:
            piece = encoded(text)[start:stop]
            piece = piece if unit == "char" else piece.decode()
        assert piece and piece in [*text.split(), "n", "é", "a", "b", "ne"]


# --- what is made of the tokens -----------------------------------------------------------------


def test_stats_against_a_plain_computation():
    words = [
        "I",
        "love",
        "unbelievably",
        "rare",
        "🤖",
        "words",
        "such",
        "as",
        "antidisestablishmentarianism",
        "🤖",
        "𓀀",
    ]
    texts = [" ".join(words[i % 7 : i % 7 + 1 + i % 5]) for i in range(60)] + ["a b " * 40]
    rows = good("tokenize", "--tokens", "--word-ids", "--", *texts).rows
    (found,) = good("tokenize", "--stats", "--max-length", 20, "--", *texts).rows
    lengths = sorted(len(row["input_ids"]) for row in rows)
    tokens = sum(lengths)
    count = sum(len({at for at in row["word_ids"] if at is not None}) for row in rows)
    unknown = sum(row["tokens"].count("[UNK]") for row in rows)
    rank = {share: lengths[-(-share * len(lengths) // 100) - 1] for share in (50, 90, 99)}
    assert (found["texts"], found["tokens"], found["words"]) == (61, tokens, count)
    assert found["length"] == {
        "min": lengths[0],
        "mean": round(tokens / 61, 2),
        **{f"p{share}": length for share, length in rank.items()},
        "max": lengths[-1],
    }
    assert found["max_length"] == 20
    assert found["longer"] == sum(length > 20 for length in lengths)
    assert found["longer_share"] == round(found["longer"] / 61, 6)
    assert (found["unknown"], found["unknown_share"]) == (unknown, round(unknown / count, 6))
    strange = Counter(w for text in texts for w in text.split() if w in "🤖𓀀")
    assert Counter(found["unknown_words"]) == strange
    assert found["pieces_per_word"] == round((tokens - 2 * 61) / count, 4)
    bars = found["histogram"]
    for bar in bars:
        assert bar["texts"] == sum(bar["from"] <= length <= bar["to"] for length in lengths)
    assert sum(bar["texts"] for bar in bars) == 61


@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "deberta", "metaspace", "modernbert"])
def test_stats_of_other_tokenizers(tmp_path, family):
    """Words are what stands between blanks, one by one and as arrays."""
    folder = MADE[family](tmp_path / "m")
    texts = ["I love language", "Paris  the capital of France", "", "x"]
    many = "\n".join(texts * 100)
    few = good("tokenize", "-m", folder, "--stats", "--", *texts).rows[0]
    found = good("tokenize", "-m", folder, "--stats", stdin=many).rows[0]
    extra = family in ("roberta", "metaspace")  # a blank that is a token of its own
    assert few["words"] == 9 + extra
    assert found["words"] == 100 * few["words"]
    assert few["tokens"] == sum(len(ids) for ids in good("tokenize", "-m", folder, *texts).ids)
    assert few["unknown"] == 0 and few["pieces_per_word"] >= 1


@pytest.mark.parametrize("family", MADE)
def test_every_family_there_and_back(tmp_path, family):
    folder = MADE[family](tmp_path / "m")
    text = "the capital of france is paris"
    (row,) = good("tokenize", "-m", folder, "--tokens", "--special-tokens-mask", text).rows
    assert set(row["token_type_ids"]) == {0} and row["special_tokens_mask"][0] == 1
    lines = json.dumps(row)
    for options in ((), ("--pair", text), ("--no-special-tokens",)):
        ids = good("tokenize", "-m", folder, *options, text).out
        back = good("decode", "-m", folder, "--skip-special-tokens", stdin=ids).out
        assert " ".join(back.split()).startswith(text)
    decoded = good("decode", "-m", folder, "--as", "tokens", "-f", "jsonl", stdin=lines)
    named = decoded.rows[0]["tokens"]
    assert named == row["tokens"]
    assert good("tokenize", "-m", folder, "--from-tokens", "--", *named).ids == [row["input_ids"]]
    padded = good(
        *("tokenize", "-m", folder, "--padding", "longest", "--padding-side", "left"), text, "the"
    )
    assert len({len(ids) for ids in padded.ids}) == 1


def test_stats_for_people():
    out = good("tokenize", "--stats", "-f", "table", "a", "b c").out
    assert re.match(r" *texts +2 *\n *tokens +7 *\n *words +3 *\n", out)
    assert re.search(r"from +to +texts", out)


def test_windows_share_and_cover():
    text = "one two three four five six seven " * 9
    options = ("--overflowing", "--max-length", 12, "--stride", 3, "--offsets", "--text")
    rows = good("tokenize", "x", text, *options, "--no-attention-mask").rows
    assert [row["overflow_to_sample_mapping"] for row in rows] == [0] + [1] * (len(rows) - 1)
    assert [row["text"] for row in rows] == ["x"] + [text] * (len(rows) - 1)
    inner = [row["input_ids"][1:-1] for row in rows[1:]]
    for left, right in itertools.pairwise(inner):
        assert left[-3:] == right[:3]
    joined = inner[0] + [index for window in inner[1:] for index in window[3:]]
    assert joined == ids_of(text)[0][1:-1]


# --- reading ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("option", ["--input", "--pairs"])
def test_singles_and_pairs_are_mixed(tmp_path, form, option):
    file = tmp_path / f"in.{form}"
    rows = [{"text": "a", "pair": "b"}, {"text": "a", "pair": None}, {"text": "b", "pair": ""}]
    if form == "parquet":
        parquet.write_table(table({n: [row[n] for row in rows] for n in ("text", "pair")}), file)
    else:
        file.write_text(jsonl(rows) + '{"text":"a"}\n')
    expected = [[101, 1037, 102, 1038, 102], A, [101, 1038, 102, 102], A]
    assert good("tokenize", option, file).ids == expected[: 4 if form == "jsonl" else 3]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.tsv", "a\tb\nb\ta\n"),
        ("p.csv", "text,pair\na,b\nb,a\n"),
        ("p.csv", '"a","b"\nb,a\n'),
        ("p.jsonl", '{"text":"a","pair":"b"}\n{"pair":"a","text":"b"}\n'),
        ("p.tsv.gz", "a\tb\nb\ta\n"),
        ("p.txt", "a\tb\nb\ta\n"),
    ],
)
def test_files_of_pairs(tmp_path, name, content):
    data = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (tmp_path / name).write_bytes(data)
    done = good("tokenize", "--pairs", tmp_path / name)
    assert done.ids == [[101, 1037, 102, 1038, 102], [101, 1038, 102, 1037, 102]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", "bad\n"),
        ("a.jsonl", "[1]\n"),
        ("a.jsonl", '{"text":null}\n'),
        ("a.csv", "text,x\na\n"),
        ("a.parquet", ""),
        ("a.txt.gz", "none"),
    ],
)
def test_what_cannot_be_read_comes_with_a_hint(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    failed = bad("tokenize", "-i", tmp_path / name)
    assert failed.error.startswith(str(tmp_path / name)) and failed.hint


def test_input_format_overrides_the_suffix(tmp_path):
    (tmp_path / "in.txt").write_text('{"text":"a"}\n')
    assert good("tokenize", "-i", tmp_path / "in.txt", "--input-format", "jsonl").ids == [A]
    assert good("tokenize", "--input-format", "csv", stdin="text\na\n").ids == [A]
    assert good("tokenize", "--input-format", "tsv", stdin='text\n"a\n').ids == ids_of('"a')
    (tmp_path / "in.dat").write_bytes(b"a\n")
    parquet.write_table(table({"text": ["a"]}), tmp_path / "in.bin")
    assert good("tokenize", "-i", tmp_path / "in.bin", "--input-format", "parquet").ids == [A]
    assert good("tokenize", "-i", tmp_path / "in.dat", "--input-format", "txt").ids == [A]


# --- model, messages, environment ---------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nx\ny\n")
    return folder


def test_model(model):
    assert good("tokenize", "-m", model, "x y").ids == [[2, 5, 6, 3]]
    assert good("tokenize", "x y", BERTCLI_MODEL=str(model)).ids == [[2, 5, 6, 3]]
    failed = bad("tokenize", "-m", model, "--revision", "v1", "x", code=2)
    assert "is a folder, which has no revision 'v1'" in failed.error
    assert bad("tokenize", "-m", model, "x", code=2, BERTCLI_REVISION="v1").error


def test_offline():
    options = ("tokenize", "-m", "nobody/nothing", "x")
    assert "network is off" in bad(*options, "--offline", HF_HUB_OFFLINE="0").error
    assert "network is off" in bad(*options, BERTCLI_OFFLINE="1", HF_HUB_OFFLINE="0").error


def test_quiet_and_verbose():
    long = ("tokenize", "a b c", "--max-length", 3)
    assert call(*long).err.startswith("warning: 1 of 1 texts truncated to 3 tokens")
    assert call(*long, "-q").err == ""
    assert call(*long, BERTCLI_QUIET="1").err == ""
    assert call("tokenize", "a", "-v").err.startswith("note: model: ")


@pytest.mark.parametrize(
    ("name", "value", "ids"),
    [
        ("BERTCLI_MAX_LENGTH", "4", [101, 1037, 1038, 102]),
        ("BERTCLI_TRUNCATION", "longest_first", [101, 1037, 1038, 1039, 102]),
        ("BERTCLI_PADDING", "longest", [101, 1037, 1038, 1039, 102]),
    ],
)
def test_layout_by_environment(name, value, ids):
    assert call("tokenize", "a b c", **{name: value}).ids == [ids]


def test_names_by_environment():
    env = {"BERTCLI_TEXT_FIELD": "q", "BERTCLI_PAIR_FIELD": "p", "BERTCLI_ID_FIELD": "n"}
    done = good("tokenize", "--input-format", "jsonl", stdin='{"q":"a","p":"b","n":1}\n', **env)
    assert (done.rows[0]["id"], done.ids) == (1, [[101, 1037, 102, 1038, 102]])


def test_errors_and_encoding_by_environment():
    assert call("tokenize", stdin=b"\xff\na\n", BERTCLI_ON_ERROR="skip").ids == [A]
    assert good("tokenize", stdin=b"\xff\n", BERTCLI_ENCODING="latin-1").ids == ids_of("ÿ")
    done = call("tokenize", stdin=b"\xff\n", BERTCLI_ENCODING_ERRORS="replace")
    assert (done.code, done.ids) == (0, ids_of("\ufffd"))
    assert len(good("tokenize", "[SEP]", BERTCLI_PARSE_SPECIAL="0").ids[0]) == 5


def test_names_of_any_length_make_no_endless_message():
    argv = ("tokenize", "-i", "-", "--input-format", "csv", "--text-field", "no")
    hint = bad(*argv, stdin=f"{'a' * 9000},{'b' * 9000}\n1,2\n").hint
    assert 1000 < len(hint) < 1500 and hint.endswith("...")


def test_values_of_any_length_are_shortened_before_their_message_is_made(tmp_path):
    long = f"http:{'a' * 300_000}://{'b' * 300_000}"
    shutil.copytree(TINY, tmp_path / "model")
    config = json_in(TINY / "config.json")
    put_json(tmp_path / "model/config.json", {**config, "model_type": long})
    for command in (["inspect"], ["embed", "a", "-m"]):
        message = process(*command, tmp_path / "model").error
        assert "this is a http:aaa" in message and "bbb model; bertcli supports BERT" in message
    (tmp_path / "keys.jsonl").write_text(jsonl([{long: "a"}]))
    done = process("tokenize", "-i", tmp_path / "keys.jsonl")
    assert done.hint.startswith("available: http:aaa")
    assert done.hint.endswith("bbb; choose with --text-field")


def test_a_long_text_is_told():
    done = call("tokenize", "a " * 300, "b")
    assert (done.code, len(done.ids[0])) == (0, 302)
    assert done.err == (
        "warning: 1 of 2 texts longer than the model's limit of 256 tokens (longest: 302); "
        "--truncation true truncates them\n"
    )


def test_bare_options():
    assert len(call("tokenize", "a " * 300, "--truncation").ids[0]) == 256
    assert len(call("tokenize", "--truncation", "-i", "-", stdin="a " * 300).ids[0]) == 256
    done = good("tokenize", "a", "a b", "--padding")
    assert [len(ids) for ids in done.ids] == [4, 4]


# --- what contradicts itself --------------------------------------------------------------------


def test_what_a_killed_run_left_behind_is_in_nobodys_way(tmp_path):
    """The next one removes it, however often it ran."""
    out = tmp_path / "x.jsonl"
    left = tmp_path / "x.jsonl.run"
    left.mkdir()
    (left / "bertcli.lock").touch()
    (left / "output").write_text("half")
    good("tokenize", "a", "-o", out)
    assert read("jsonl", out.read_bytes()) == [A]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (("--padding", "True"), ("--padding", "true")),
        (("--padding", "False"), ("--padding", "false")),
        (
            ("--padding", "Max_Length", "--max-length", 9),
            ("--padding", "max_length", "--max-length", 9),
        ),
        (("--truncation", "TRUE", "--max-length", 3), ("--truncation", "true", "--max-length", 3)),
        (("-f", "JSONL"), ("-f", "jsonl")),
    ],
)
def test_choices_are_read_as_python_writes_them(written, meant):
    texts = ("I love NLP!", "Hi")
    assert (
        good("tokenize", "-q", *texts, *written).out == good("tokenize", "-q", *texts, *meant).out
    )
    assert good("tokenize", "-q", *texts, BERTCLI_PADDING="True").rows[1]["attention_mask"][-1] == 0
