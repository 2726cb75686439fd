"""`bertcli tokenize`: every option at least once, every format from every source."""

import csv
import gzip
import io
import itertools
import json
import os
import re
from collections import Counter

import numpy as np
import pytest
from front import (
    PACKAGE,
    bad,
    call,
    good,
    ids_of,
    jsonl,
    put_json,
)
from pyarrow import parquet, table
from safetensors.numpy import load as load_tensors
from tokenizers_made import MADE

from bertcli.files.paths import making
from bertcli.files.system_calls import hold, is_at

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


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_packed_input(tmp_path, suffix):
    import zstandard

    pack = gzip.compress if suffix == "gz" else zstandard.ZstdCompressor().compress
    (tmp_path / f"in.jsonl.{suffix}").write_bytes(pack(b'{"text":"a"}\n{"text":"b"}\n'))
    assert good("tokenize", "-i", tmp_path / f"in.jsonl.{suffix}").ids == [A, B]


def test_several_files_keep_their_order(tmp_path):
    (tmp_path / "1.txt").write_text("a\n")
    (tmp_path / "2.jsonl").write_text('{"text":"b"}\n')
    done = good("tokenize", "-i", tmp_path / "2.jsonl", "-i", tmp_path / "1.txt")
    assert done.ids == [B, A]


def test_table_without_a_terminal():
    lines = good("tokenize", "I love NLP!", "-f", "table", COLUMNS="80").out.splitlines()
    cells = [line.split() for line in lines]
    assert lines[0].strip() == "I love NLP!"
    assert cells[2] == ["#", "id", "token", "type", "mask", "span", "special"]
    assert cells[4] == ["0", "101", "[CLS]", "0", "1", "cls"]
    assert cells[8] == ["4", "2361", "##p", "0", "1", "9-10"]


def test_a_narrow_table_loses_no_digit():
    out = good("tokenize", "I love NLP!", "-f", "table", COLUMNS="30").out
    assert "…" not in out


def test_an_existing_file_is_kept(tmp_path):
    target = tmp_path / "x.jsonl"
    target.write_text("mine")
    assert bad("tokenize", "a", "-o", target).error == f"{target}: already exists"
    assert target.read_text() == "mine"
    assert "--overwrite" in bad("tokenize", "a", "--stats", "-o", target).hint
    good("tokenize", "a", "-o", target, "--overwrite")
    assert read("jsonl", target.read_bytes()) == [A]


# --- fields -------------------------------------------------------------------------------------


def test_every_field_in_its_order():
    flags = "tokens offsets word-ids sequence-ids special-tokens-mask length text overflowing"
    options = [f"--{flag}" for flag in flags.split()]
    (row,) = good("tokenize", "héllo NLP", "--pair", "ok", *options).rows
    assert row == {
        "input_ids": [101, 7592, 17953, 2361, 102, 7929, 102],
        "token_type_ids": [0, 0, 0, 0, 0, 1, 1],
        "attention_mask": [1, 1, 1, 1, 1, 1, 1],
        "special_tokens_mask": [1, 0, 0, 0, 1, 0, 1],
        "tokens": ["[CLS]", "hello", "nl", "##p", "[SEP]", "ok", "[SEP]"],
        "offset_mapping": [[0, 0], [0, 5], [6, 8], [8, 9], [0, 0], [0, 2], [0, 0]],
        "word_ids": [None, 0, 1, 1, None, 0, None],
        "sequence_ids": [None, 0, 0, 0, None, 1, None],
        "length": 7,
        "text": "héllo NLP",
        "pair": "ok",
        "overflow_to_sample_mapping": 0,
    }


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


def test_ids_come_first_and_fields_are_carried(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"x":1,"text":"a","id":"r1","y":[2]}\n')
    (row,) = good("tokenize", "-i", file).rows
    assert list(row) == ["id", "input_ids", "token_type_ids", "attention_mask"]
    (row,) = good("tokenize", "-i", file, "--keep-fields").rows
    assert list(row)[-2:] == ["x", "y"]
    (row,) = good("tokenize", "--keep-fields", "y", "-i", file).rows
    assert list(row)[-1] == "y" and "x" not in row
    failed = bad("tokenize", "--keep-fields", "x,z", "-i", file)
    assert "field 'z' not found" in failed.error
    assert failed.hint == "available: x, text, id, y; choose with --keep-fields"


def test_names_of_fields(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("nr,question,answer\n7,a,b\n")
    names = ("--text-field", "question", "--pair-field", "answer", "--id-field", "nr")
    (row,) = good("tokenize", "-i", file, *names).rows
    assert (row["id"], row["input_ids"]) == ("7", [101, 1037, 102, 1038, 102])
    for option in ("--text-field", "--pair-field", "--id-field"):
        failed = bad("tokenize", "-i", file, *names, option, "nope")
        assert failed.error == f"{file}: field 'nope' not found"
        assert failed.hint == f"available: nr, question, answer; choose with {option}"


# --- what is made of the tokens -----------------------------------------------------------------


def test_count(tmp_path):
    assert good("tokenize", "--count", "a", "a b c").out == "3\n5\n"
    assert good("tokenize", "--count", "a", "-f", "jsonl").out == '{"length":3}\n'
    (tmp_path / "in.jsonl").write_text('{"id":"x","text":"a b"}\n')
    assert good("tokenize", "--count", "-i", tmp_path / "in.jsonl").out == "x\t4\n"
    put_json(tmp_path / "odd.jsonl", {"text": "a", "id": "x\ny\tz"})
    assert (
        "a plain line cannot hold" in bad("tokenize", "--count", "-i", tmp_path / "odd.jsonl").error
    )
    good("tokenize", "--count", "a", "-o", tmp_path / "n.csv")
    assert (tmp_path / "n.csv").read_text() == "length\n3\n"


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
    assert "█" in out


def test_from_tokens():
    assert good("tokenize", "--from-tokens", "i", "love", "--tokens").rows == [
        {"input_ids": [1045, 2293], "tokens": ["i", "love"]}
    ]
    piped = good("tokenize", "--from-tokens", stdin='i love\n["nl", "##p"]\n')
    assert piped.ids == [[1045, 2293], [17953, 2361]]
    assert "love" in good("tokenize", "--from-tokens", "love", "-f", "table").out
    skipped = call("tokenize", "--from-tokens", "--on-error", "skip", stdin=b"\xff\nlove\n")
    assert (skipped.code, skipped.ids) == (1, [[2293]])


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


def test_pre_split():
    done = good("tokenize", "--pre-split", '["a b", "c"]', "d  e", "--word-ids", "--text")
    assert [row["text"] for row in done.rows] == [["a b", "c"], ["d", "e"]]
    assert done.rows[0]["word_ids"] == [None, 0, 0, 1, None]
    done = good("tokenize", "--pre-split", "--input-format", "jsonl", stdin='{"text":["a","b"]}\n')
    assert done.ids == ids_of("a b")


def test_nul_delimited(tmp_path):
    done = good("tokenize", "-0", "--text", stdin=b"one\0two\nlines\0\0last")
    assert [row["text"] for row in done.rows] == ["one", "two\nlines", "", "last"]
    (tmp_path / "in.txt").write_bytes(b"a\0b\0")
    assert good("tokenize", "--null", "-i", tmp_path / "in.txt").ids == [A, B]


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


def test_skipped_records_are_told_and_counted(tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"text":"a"}\nbroken\n{"txt":"a"}\n{"text":5}\n[1]\n{"text":"b"}\n')
    done = call("tokenize", "-i", file, "--on-error", "skip")
    assert (done.code, done.ids) == (1, [A, B])
    lines = done.err.splitlines()
    assert [line.split(":")[3] for line in lines[:4]] == ["2", "3", "4", "5"]
    assert lines[4:] == ["warning: 4 records were skipped"]
    assert bad("tokenize", "-i", file, "-o", tmp_path / "x.jsonl").error.startswith(f"{file}:2: ")
    assert not (tmp_path / "x.jsonl").exists()
    quiet = call("tokenize", "-i", file, "--on-error", "skip", "-q")
    assert (quiet.code, quiet.ids, quiet.err) == (1, [A, B], "")


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


def test_bad_bytes(tmp_path):
    file = tmp_path / "in.txt"
    file.write_bytes(b"a\nb \xff\n")
    failed = bad("tokenize", "-i", file)
    assert failed.error == f"{file}:2: byte 4 (0xff) is not valid utf-8"
    assert "--encoding-errors replace" in failed.hint
    done = call("tokenize", "-i", file, "--encoding-errors", "replace", "--text")
    assert (done.code, done.rows[1]["text"]) == (0, "b \ufffd")
    assert done.err.startswith("warning: 1 character")
    done = good("tokenize", "-i", file, "--encoding", "latin-1", "--text")
    assert done.rows[1]["text"] == "b ÿ"
    assert bad("tokenize", "a", "--encoding", "klingon", code=2).error


def test_input_format_overrides_the_suffix(tmp_path):
    (tmp_path / "in.txt").write_text('{"text":"a"}\n')
    assert good("tokenize", "-i", tmp_path / "in.txt", "--input-format", "jsonl").ids == [A]
    assert good("tokenize", "--input-format", "csv", stdin="text\na\n").ids == [A]
    assert good("tokenize", "--input-format", "tsv", stdin='text\n"a\n').ids == ids_of('"a')
    (tmp_path / "in.dat").write_bytes(b"a\n")
    parquet.write_table(table({"text": ["a"]}), tmp_path / "in.bin")
    assert good("tokenize", "-i", tmp_path / "in.bin", "--input-format", "parquet").ids == [A]
    assert good("tokenize", "-i", tmp_path / "in.dat", "--input-format", "txt").ids == [A]


def test_no_records_is_a_note(tmp_path):
    done = call("tokenize", "-o", tmp_path / "x.jsonl", stdin=b"")
    assert (done.code, done.out) == (0, "")
    assert done.err == "note: no records: the input is empty\n"
    assert (tmp_path / "x.jsonl").read_bytes() == b""


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


def test_utf16_without_its_mark():
    failed = bad("tokenize", "--encoding", "utf-16", "--on-error", "skip", stdin=b"a\n\0")
    assert failed.error == "stdin: not utf-16: UTF-16 stream does not start with BOM"


def test_names_of_any_length_make_no_endless_message():
    argv = ("tokenize", "-i", "-", "--input-format", "csv", "--text-field", "no")
    hint = bad(*argv, stdin=f"{'a' * 9000},{'b' * 9000}\n1,2\n").hint
    assert 1000 < len(hint) < 1500 and hint.endswith("more characters)")


@pytest.mark.parametrize(
    ("argv", "option"),
    [
        (["tokenize", "a", "-f", "npy", "--tokens"], "-f"),
        (["embed", "a", "-q", "--prompt-name", "query"], "--prompt-name"),
        (["embed", "a", "-q", "--layers", "99"], "--layers"),
        (["embed", "a", "-q", "--device", "none"], "--device"),
        (["embed", "a", "--token-vectors", "-o", "o.csv"], "-f"),
        (["inspect", "--attention", "a", "-o", "a.npy"], "-o"),
        (["inspect", "--attention", "a", "--heads", "99"], "--heads"),
        (["choose", "a"], "--input"),
    ],
    ids=str,
)
def test_a_usage_error_names_an_option(argv, option):
    done = bad(*argv, "-m", PACKAGE / "samples" / "tiny-bert", code=2)
    assert re.search(rf"(?<![\w-]){option}\b", done.err)


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


def test_windows_of_padding():
    done = call("tokenize", "a", "a b", "a b c", "--padding", "longest", "--window", 2)
    assert [len(ids) for ids in done.ids] == [4, 4, 5]
    assert done.err == "note: --padding longest was applied to 2 records at a time (--window)\n"


# --- what contradicts itself --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a", "-i", "f"], "TEXT cannot be combined with --input"),
        (["a", "--pairs", "f"], "--pairs cannot be combined"),
        (["-i", "g", "--pairs", "f"], "--pairs cannot be combined"),
        (["a", "b", "--pair", "c"], "--pair needs exactly one text"),
        (["a", "--pair", "b", "--pair", "c"], "--pair was given 2 times"),
        (["-i", "-", "--pair", "c"], "--pair needs exactly one text"),
        (["a", "--count", "--stats"], "cannot be combined"),
        (["a", "--count", "--from-tokens"], "cannot be combined"),
        (["a", "--from-tokens", "--pair", "b"], "--from-tokens cannot be combined"),
        (["a", "-f", "txt"], "this command cannot write txt"),
        (["a", "--count", "-f", "npy"], "this command cannot write npy"),
        (["a", "--stats", "-f", "csv"], "this command cannot write csv"),
        (["a", "-f", "table", "-o", "x"], "a table cannot be written to a file"),
        (["a", "-f", "npy", "--tokens"], "npy cannot hold tokens"),
        (["a", "-f", "npz", "--sequence-ids"], "npz cannot hold tokens"),
        (["a", "--max-length", "1"], "--max-length 1 leaves no room for"),
        (["a", "--max-length", "7", "--stride", "5", "--overflowing"], "--stride 5 must be less"),
        (
            ["a", "--max-length", "10", "--pad-to-multiple-of", "4", "--padding", "--truncation"],
            "--max-length 10 is not a multiple of --pad-to-multiple-of 4",
        ),
    ],
)
def test_contradictions(argv, message):
    assert message in bad("tokenize", *argv, code=2).error


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--nope"], "--nope"),
        (["a", "--max-length", "0"], "--max-length"),
        (["a", "--max-length", "ten"], "--max-length"),
        (["a", "--padding", "sideways"], "sideways"),
        (["a", "-f", "docx"], "docx"),
        (["a", "--window", "0"], "--window"),
        (["a", "--stride", "-1"], "--stride"),
        (["a", "--on-error", "cry"], "cry"),
    ],
)
def test_wrong_usage(argv, named):
    done = call("tokenize", *argv)
    assert (done.code, done.out) == (2, "")
    assert named in done.err and "Traceback" not in done.err


def test_what_a_killed_run_left_behind_is_in_nobodys_way(tmp_path):
    """The next one removes it, however often it ran."""
    out = tmp_path / "x.jsonl"
    making(out).write_text("half")
    good("tokenize", "a", "-o", out)
    assert read("jsonl", out.read_bytes()) == [A]
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]


def test_what_a_living_process_writes_is_left_alone(tmp_path):
    out = tmp_path / "x.jsonl"
    with open(making(out), "wb") as other:
        assert hold(other.fileno()) == (os.name == "posix")
        good("tokenize", "a", "-o", out)
        assert read("jsonl", out.read_bytes()) == [A]
        assert is_at(making(out), other.fileno())
    assert sorted(tmp_path.iterdir()) == [making(out), out]


def test_a_stride_without_windows_is_told():
    done = call("tokenize", "one two three four", "--stride", "1", "--max-length", "4")
    assert (done.code, done.ids) == (0, [[101, 2028, 2048, 102]])
    assert done.err.startswith("warning: --stride has no effect without --overflowing")
    good("tokenize", "one two three", "--stride", "1", "--max-length", "4", "--overflowing")


def test_a_unit_without_offsets_is_told():
    done = call("tokenize", "one", "--offset-unit", "byte")
    assert (done.code, done.ids) == (0, [[101, 2028, 102]])
    assert done.err.startswith("warning: --offset-unit has no effect without --offsets")
    good("tokenize", "one", "--offset-unit", "byte", "--offsets")
    good("tokenize", "one", "--offset-unit", "byte", "--format", "table")


@pytest.mark.parametrize("argv", [["-i", ""], ["hi", "-o", ""], ["hi", "--output="]])
def test_a_file_without_a_name_is_wrong_usage(argv):
    done = bad("tokenize", *argv, code=2)
    assert (
        done.error == f"{(argv[-1] or argv[-2]).rstrip('=')} is given an empty name"
        and "unset" in done.hint
    )
    assert good("tokenize", "--count", "--", "-o", "").out == "4\n2\n"
