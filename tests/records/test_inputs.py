"""What no input may do, through the front door: lose data, end in a traceback, fill the memory."""

import csv
import gzip
import io
import json
import os
import time
from decimal import Decimal

import numpy
import pyarrow
import pyarrow.parquet
import pytest
import safetensors.numpy
import zstandard
from front import (
    TINY,
    bad,
    call,
    good,
    ids_of,
)

from bertcli.io import streams

DEEP = "[" * 100_000


def lines(*rows):
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def read(text, *argv, form="jsonl", command="tokenize", **options):
    return call(command, "-i", "-", "--input-format", form, *argv, stdin=text, **options)


@pytest.mark.parametrize("value", [[312.0, False], ['1],"id":"forged"'], [True, 1, 1.0], 7, "x"])
def test_a_kept_field_never_goes_round_the_encoder(value):
    """And the bytes of a record do not depend on those of another."""
    names = ("special_tokens_mask", "tokens", "length", "offset_mapping")
    rows = [{"text": "I love NLP!", **dict.fromkeys(names, value)}, {"text": "312 1 0 I"}]
    done = read(lines(*rows), "--keep-fields")
    first = done.rows[0]
    assert repr([first[name] for name in names]) == repr([value] * len(names))
    alone = good("tokenize", "312 1 0 I").out.strip()
    assert done.out.splitlines()[1] == alone[:-1] + ',"text":"312 1 0 I"}'
    assert list(first) == ["input_ids", "token_type_ids", "attention_mask", "text", *names]


@pytest.mark.parametrize(
    ("command", "name", "argv"),
    [
        ("tokenize", "input_ids", ()),
        ("tokenize", "attention_mask", ("-f", "csv")),
        ("tokenize", "tokens", ("--tokens",)),
        ("tokenize", "length", ("--length",)),
        ("tokenize", "length", ("--count",)),
        ("tokenize", "truncated", ("--max-length", "5")),
        ("tokenize", "id", ("--id-field", "key")),
        ("tokenize", "input_ids", ("--from-tokens",)),
        ("decode", "text", ()),
        ("decode", "tokens", ("--as", "tokens", "-f", "jsonl")),
    ],
)
def test_a_kept_field_may_not_have_the_name_of_one_of_the_output(command, name, argv):
    consumed = {"input_ids": [1]} if command == "decode" else {"text": "a", "key": 1}
    row = consumed | {name: "precious"}
    for kept in ((), (f"{name},key",) if "key" in row else (name,)):
        text = lines({**consumed, "x": 1}, row)
        done = read(text, *argv, "--keep-fields", *kept, command=command)
        assert (done.code, done.out.count("precious")) == (1, 0)
        if not kept:
            assert f"stdin:2: field '{name}' cannot be kept" in done.error
            assert "--keep-fields" in done.hint
    done = read(lines(row, consumed), *argv, "--keep-fields", "--on-error", "skip", command=command)
    assert done.code == 1
    assert f"skipped: stdin:1: field '{name}' cannot" in done.err
    assert read(lines(row), *argv, command=command).code == 0


def test_fields_pass_through_a_pipeline():
    row = {"id": 7, "text": "a", "pair": "b", "score": 0.5, "tokens": None}
    there = read(lines(row), "--keep-fields").out
    argv = ("-f", "jsonl", "--keep-fields")
    (back,) = read(there, *argv, "score", command="decode").rows
    assert back == {"id": 7, "text": "[CLS] a [SEP] b [SEP]", "score": 0.5}
    (back,) = read(lines({"input_ids": [101], "pair": "b"}), *argv, command="decode").rows
    assert back["pair"] == "b"


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize(
    "argv",
    [
        ("embed",),
        ("tokenize",),
        ("tokenize", "--from-tokens"),
        ("embed", "--engine", "ray"),
        ("tokenize", "--engine", "ray"),
    ],
)
def test_a_field_that_an_array_cannot_hold_is_refused(tmp_path, form, argv):
    (tmp_path / "a.jsonl").write_text('{"text":"a","x":1}\n')
    given = ("-i", tmp_path / "a.jsonl", "--keep-fields", "x", "-f", form)
    done = bad(*argv, *given, "-o", tmp_path / f"out.{form}", code=2)
    assert done.error == f"{form} cannot hold the fields of --keep-fields"
    assert done.hint == "use -f jsonl, csv or parquet"


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize("row", ['"score":%s', '"a":{"b":[1,[%s]]}', '"id":%s'])
@pytest.mark.parametrize("more", [(), ("-f", "csv")])
def test_a_number_that_json_cannot_hold(number, row, more):
    name = row.partition('"')[2].partition('"')[0]
    text = lines({"text": "a"}, '{"text":"a",' + row % number + "}", {"text": "b"})
    done = read(text, "--keep-fields", *more)
    assert done.error.startswith(f"stdin:2: field '{name}' holds NaN or infinity")
    done = read(text, "--keep-fields", "--on-error", "skip", *more)
    assert (done.code, len(done.out.splitlines())) == (1, 2 + bool(more))


@pytest.mark.parametrize("key", [[1], {"a": 1}, True])
def test_an_id_that_is_none(key):
    """It is left out, also where fields are kept; asked for by name it is an error."""
    rows = lines({"id": key, "text": "a"}, {"id": 3, "text": "a"}, {"id": key, "text": "a"})
    for more in ((), ("--keep-fields",)):
        done = read(rows, *more)
        assert (done.code, [row.get("id") for row in done.rows]) == (0, [None, 3, None])
    assert "stdin:1: the id is " in read(rows, "--id-field", "id").error


@pytest.mark.parametrize("command", ["tokenize", "embed"])
def test_ids_of_several_kinds_in_a_table_are_text(tmp_path, command):
    rows = lines(*({"id": key, "text": "a", "flag": True} for key in (1, "x", 2.5)))
    for form in ("parquet", "csv"):
        out = tmp_path / f"a.{form}"
        done = read(rows, "-m", TINY, "-q", "--keep-fields", "-o", out, command=command)
        assert done.code == 0, done
        if form == "csv":
            with out.open(newline="") as file:
                found = [(row["id"], row["flag"]) for row in csv.DictReader(file)]
            assert found == [("1", "true"), ("x", "true"), ("2.5", "true")]
        else:
            assert pyarrow.parquet.read_table(out)["id"].to_pylist() == ["1", "x", "2.5"]


@pytest.mark.parametrize("key", ["x", 7, 1.5, 10**30])
def test_an_id_is_written_as_it_was_read(key):
    (row,) = read(lines({"id": key, "text": "a"})).rows
    assert (row["id"], type(row["id"])) == (key, type(key))
    assert "id" not in read(lines({"id": None, "text": "a"})).rows[0]


@pytest.mark.parametrize(
    ("command", "form", "line", "argv"),
    [
        ("tokenize", "jsonl", DEEP, ()),
        ("tokenize", "jsonl", f'{{"text":"a","x":{DEEP}', ()),
        ("decode", "txt", DEEP, ()),
        ("decode", "jsonl", DEEP, ()),
        ("decode", "txt", '{"input_ids":' + DEEP, ()),
        ("decode", "txt", "1" * 5000, ()),
        ("decode", "txt", f"[{'1' * 5000}]", ()),
        ("decode", "txt", f"[{'1' * 400}]", ()),
        ("decode", "txt", "-1", ()),
    ],
)
def test_a_line_that_is_no_json_is_one_error_or_is_skipped(command, form, line, argv):
    fine = "[101]" if command == "decode" else '{"text":"a"}'
    if command == "decode" and form == "jsonl":
        fine = '{"input_ids":[101]}'
    text = f"{fine}\n{line}\n{fine}\n"
    done = read(text, *argv, command=command, form=form)
    assert "stdin:2: " in done.error
    done = read(text, *argv, "--on-error", "skip", command=command, form=form)
    assert (done.code, len(done.out.splitlines())) == (1, 2)


# --- large records --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "before", "large", "after", "line"),
    [
        ("txt", "a\nb\n", "x" * 1000, "\nc\n", 3),
        ("txt", "", "x" * 1000, "", 1),
        ("jsonl", '{"text":"a"}\n', f'{{"text":"{"x" * 1000}"}}', '\n{"text":"b"}\n', 2),
        ("csv", "text,n\na,1\n", "x" * 1000 + ",2", "\nb,3\n", 3),
        ("csv", "text\na\n", '"' + "x\n" * 500 + '"', "\nb\n", 3),
        ("csv", "text\na\n", '"x\n' + "y" * 700 + '\nz""\n"', "\nb\n", 4),
        ("csv", "text\na\n", '"' + "y" * 700 + '\nz""\n"', "\nb\n", 3),
        ("tsv", "text\tn\na\t1\n", "x" * 1000 + "\t2", "\nb\t3\n", 3),
    ],
)
@pytest.mark.parametrize("size", [7, 1 << 18])
@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
def test_a_large_record(tmp_path, monkeypatch, form, before, large, after, line, size, packed):
    monkeypatch.setattr("bertcli.io.streams.CHUNK", size)
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[packed]
    path = tmp_path / f"a.{form}{packed}"
    path.write_bytes(pack((before + large + after).encode()))
    argv = ("tokenize", "-i", path, "--max-record-bytes", "600")
    done = call(*argv)
    assert done.error.endswith(f"{path.name}:{line}: the record is larger than 600 bytes")
    assert "--max-record-bytes" in done.hint
    done = call(*argv, "--on-error", "skip", "-o", tmp_path / "out.jsonl")
    assert done.code == 1
    assert f"{path.name}:{line}: the record is larger than 600 bytes" in done.err
    written = (tmp_path / "out.jsonl").read_text()
    kept = [json.loads(row)["input_ids"] for row in written.splitlines()]
    texts = [one for one in "abc" if one in (before + after).replace("text", "")]
    assert kept == (ids_of(*texts) if texts else [])
    done = call("tokenize", "-i", path, BERTCLI_MAX_RECORD_BYTES="1100")
    assert (done.code, len(done.rows)) == (0, len(texts) + 1)


def test_records_between_nuls_and_lists_have_the_same_limit():
    argv = ("--max-record-bytes", "10")
    done = call("tokenize", "-0", *argv, "--on-error", "skip", stdin=b"a\0" + b"x" * 11 + b"\0b\0")
    assert [row["input_ids"] for row in done.rows] == ids_of("a", "b")
    assert "stdin:2: the record is larger than 10 bytes" in done.err
    assert "stdin:1: " in bad("decode", *argv, stdin="1 " * 99).error


def test_a_large_cell_of_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["a", "x" * 1000, "b", "x" * 1000]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "w": [[one] for one in texts]}), path)
    argv = ("tokenize", "-i", path, "--max-record-bytes", "600")
    for more in ((), ("--pre-split", "--text-field", "w")):
        assert f"{path}:2: the record is larger" in call(*argv, *more).error
        done = call(*argv, *more, "--on-error", "skip")
        assert done.ids == ids_of("a", "b")


def test_an_array_of_long_lists(tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.zeros((2, 99), numpy.int64))
    done = bad("decode", "-i", tmp_path / "a.npy", "--max-record-bytes", "10")
    assert "a.npy:1: the record is larger than 10 bytes" in done.error


# --- tables ---------------------------------------------------------------------------------------


def test_a_carriage_return_alone_ends_no_line():
    error = read("text,n\ra,1\rb,2\r", form="csv").error
    assert "stdin:1: not valid CSV: new-line character" in error


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_ends_of_lines_in_a_kept_field(form):
    value = "a\r\nb\tc\r" if form != "tsv" else 'quo"te'
    done = read(lines({"text": "a", "x": value}), "--keep-fields", "-f", form)
    if form == "jsonl":
        assert done.rows[0]["x"] == value
    else:
        quoting = csv.QUOTE_NONE if form == "tsv" else csv.QUOTE_MINIMAL
        text = io.StringIO(done.out, newline="")
        rows = list(csv.reader(text, delimiter="\t" if form == "tsv" else ",", quoting=quoting))
        assert rows[1][-1] == value
    bad_name = read(lines({"text": "a", "x\ty": 1}), "--keep-fields", "-f", "tsv")
    assert "TSV cannot hold" in bad_name.error


# --- Parquet --------------------------------------------------------------------------------------

AT = pyarrow.array([1_714_557_600_000_000_001], pyarrow.timestamp("ns", "Europe/Berlin"))
ARROW = {
    "zoned": (AT, "2024-05-01T12:00:00.000000001+02:00"),
    "nowhere": (AT.cast(pyarrow.timestamp("ns", "UTC")), "2024-05-01T10:00:00.000000001+00:00"),
    "local": (AT.cast(pyarrow.timestamp("ns")), "2024-05-01T10:00:00.000000001"),
    "date": (pyarrow.array([1], pyarrow.date32()), "1970-01-02"),
    "date64": (pyarrow.array([86_400_000], pyarrow.date64()), "1970-01-02"),
    "time": (pyarrow.array([3_661_000_000_007], pyarrow.time64("ns")), "01:01:01.000000007"),
    "time32": (pyarrow.array([61], pyarrow.time32("ms")), "00:00:00.061"),
    "duration": (pyarrow.array([-1_500], pyarrow.duration("ms")), "-1500"),
    "decimal": (pyarrow.array([Decimal("1.20")]), "1.20"),
    "binary": (pyarrow.array([b"\0\xff"]), "AP8="),
    "uuid": (pyarrow.array([b"\0" * 16], pyarrow.uuid()), "00000000-0000-0000-0000-000000000000"),
    "dictionary": (pyarrow.array(["x"]).dictionary_encode(), "x"),
    "nan": (pyarrow.array([float("nan")]), None),
    "null": (pyarrow.nulls(1), None),
    "times": (
        pyarrow.array([[0, None]], pyarrow.list_(pyarrow.time32("ms"))),
        ["00:00:00", None],
    ),
    "object": (pyarrow.array([{"a": b"x", "b": 1}]), {"a": "eA==", "b": 1}),
    "map": (
        pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.duration("s"))),
        [["k", "0:00:01"]],
    ),
}


@pytest.fixture(scope="module")
def arrow(tmp_path_factory):
    path = tmp_path_factory.mktemp("arrow") / "a.parquet"
    columns = {"text": pyarrow.array(["a"])} | {name: one for name, (one, _) in ARROW.items()}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def test_what_json_has_no_type_for(arrow, tmp_path):
    (row,) = good("tokenize", "-i", arrow, "--keep-fields").rows
    assert {name: row[name] for name in ARROW} == {name: it for name, (_, it) in ARROW.items()}
    good("tokenize", "-i", arrow, "--keep-fields", "-o", tmp_path / "b.parquet")
    (again,) = pyarrow.parquet.read_table(tmp_path / "b.parquet").to_pylist()
    assert {name: again[name] for name in ARROW} == {name: row[name] for name in ARROW}


@pytest.mark.parametrize("name", ARROW)
def test_any_column_may_be_an_id_and_some_a_text(arrow, name):
    value = ARROW[name][1]
    done = call("tokenize", "-i", arrow, "--id-field", name)
    if isinstance(value, list | dict):
        assert f"{arrow}:1: the id is " in done.error
    else:
        assert done.rows[0].get("id") == value
    done = call("tokenize", "-i", arrow, "--text-field", name)
    assert done.code == 0 or "not a string" in done.error


def test_infinity_and_bad_text_in_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    raw = pyarrow.array([b"a", b"\xff", b"b"]).view(pyarrow.string())
    score = pyarrow.array([float("inf"), 1.0, 2.0])
    pyarrow.parquet.write_table(pyarrow.table({"text": raw, "score": score}), path)
    done = call("tokenize", "-i", path)
    assert f"{path}:2: field 'text' is not valid UTF-8" in done.error
    done = call("tokenize", "-i", path, "--on-error", "skip")
    assert done.ids == ids_of("a", "b")
    done = call("tokenize", "-i", path, "--keep-fields")
    assert f"{path}:1: field 'score' holds NaN" in done.error
    done = good("tokenize", "-i", path, "--encoding-errors", "replace", "--text")
    assert [row["text"] for row in done.rows] == ["a", "\ufffd", "b"]


def test_line_ends_within_quotation_marks_of_csv_are_kept(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,kind\r\n"a\r\nb",x\r\n"c\rd","y\r\n"\r\n"e\nf",z\r\nplain,w\r\n')
    rows = good("tokenize", "-q", "-i", path, "--text", "--keep-fields", "kind").rows
    with open(path, newline="") as file:
        expected = [row["text"] for row in csv.DictReader(file)]
    assert [row["text"] for row in rows] == expected == ["a\r\nb", "c\rd", "e\nf", "plain"]
    assert [row["kind"] for row in rows] == ["x", "y\r\n", "z", "w"]
    (chunk, *_) = good("chunk", "-q", "-i", path).rows
    assert (chunk["text"], chunk["end"]) == ("a\r\nb", 4)


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_pairs_with_an_id_have_a_header(tmp_path, form):
    path = tmp_path / f"pairs.{form}"
    columns = {"id": ["a", "b"], "text": ["x y", "z"], "pair": ["z", "x"]}
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    else:
        rows = [[*columns], *zip(*columns.values(), strict=True)]
        mark = "," if form == "csv" else "\t"
        path.write_text("".join(mark.join(row) + "\n" for row in rows))
    rows = good("tokenize", "-q", "--pairs", path, "--text").rows
    found = [(row["id"], row["text"], row["pair"]) for row in rows]
    assert found == [("a", "x y", "z"), ("b", "z", "x")]


# --- empty inputs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv", "tsv", "npy", "npz", "safetensors", "parquet"])
@pytest.mark.parametrize("padding", [(), ("--padding", "max_length", "--max-length", "7")])
def test_an_empty_input_makes_an_empty_file(tmp_path, form, padding):
    there, full = (tmp_path / f"{name}.{form}" for name in ("there", "full"))
    there.write_text("of an earlier run")
    done = call("tokenize", "-o", there, "--overwrite", *padding, stdin=b"")
    assert (done.code, done.err) == (0, "note: no records: the input is empty\n")
    good("tokenize", "a", "-o", full, *padding)
    if form == "parquet":
        one, other = map(pyarrow.parquet.read_table, (there, full))
        assert (one.num_rows, one.schema) == (0, other.schema)
    elif form in ("jsonl", "csv", "tsv"):
        first = full.read_bytes().partition(b"\n")[0] + b"\n"
        assert there.read_bytes() == (b"" if form == "jsonl" else first)
    else:
        load = safetensors.numpy.load_file if form == "safetensors" else numpy.load
        one, other = load(there), load(full)
        if form == "npy":
            one, other = {"input_ids": one}, {"input_ids": other}
        assert set(one) == set(other)
        for name in one:
            assert (one[name].shape, one[name].dtype) == ((0, 7 if padding else 0), numpy.int64)


# --- arrays and vectors ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        '{"embedding":' + DEEP,
        f'{{"embedding":[{"9" * 400}, 0.5]}}',
        f'{{"embedding":[{"9" * 5000}]}}',
        '{"embedding":[1.0,[2.0]]}',
        '{"embedding":["a"]}',
        '{"embedding":[1.0]}',
        '{"embedding":null}',
        '{"embedding":{}}',
        "7",
    ],
)
def test_a_line_that_is_no_vector(tmp_path, line):
    path = tmp_path / "v.jsonl"
    path.write_text(f'{{"embedding":[1.0,2.0]}}\n{line}\n')
    assert f"{path}:2: " in bad("compare", path, path).error
    done = call("inspect", path)  # of any lists of numbers
    assert done.code == 0 or f"{path}:2: " in done.error
    assert done.code == ("9" * 400 in line or "embedding" not in line or DEEP in line)


def test_a_packed_file_unpacks_to_no_more_than_a_hundred_times_its_size(tmp_path, monkeypatch):
    """Of formats that need a copy in the temporary folder; the others are read as streams."""
    monkeypatch.setattr(streams, "MAX_UNPACKED", 1 << 20)
    content = b"PAR1" + bytes(2 << 20)
    path = tmp_path / "bomb.parquet.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(content))
    refused = bad("tokenize", "-i", path)
    assert refused.error == f"{path}: unpacks to more than 1,048,576 bytes"
    assert "decompress it" in refused.hint
    path.write_bytes(os.urandom(3 << 20))
    path.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    assert "not a readable Parquet file" in bad("tokenize", "-i", path).error


@pytest.mark.parametrize("suffix", ["npy.gz", "npz.gz", "parquet.zst", "txt.gz", "csv.zst"])
@pytest.mark.parametrize("more", [(), ("-o", "out.jsonl")])
def test_a_file_that_is_not_packed_is_blamed(tmp_path, monkeypatch, suffix, more):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"junk.{suffix}"
    path.write_bytes(b"junk" * 99)
    for command in ("decode", "tokenize"):
        if command == "decode" or "np" not in suffix:
            assert str(path) in bad(command, "-i", path, *more).error
    assert not (tmp_path / "out.jsonl").exists()


# --- vectors beside fields -----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("name", ["embedding", "n_tokens", "truncated"])
def test_a_kept_field_named_as_one_of_embed(tmp_path, form, name):
    path, text = tmp_path / f"o.{form}", lines({"text": "a", name: [7]})
    to_file = read(text, "-m", TINY, "--keep-fields", "-o", path, command="embed")
    assert f"stdin:1: field '{name}' cannot be kept" in to_file.err
    assert (to_file.code, [*tmp_path.iterdir()]) == (1, [])
    if form in ("jsonl", "csv"):
        done = read(text, "-m", TINY, "--keep-fields", "-f", form, "-q", command="embed")
        assert (done.code, "[7]" in done.out) == (1, False)


def test_fields_of_token_vectors_may_not_be_kept():
    for name in ("tokens", "offsets", "vectors", "start"):
        text, argv = lines({"text": "a", name: 7}), ("-m", TINY, "--keep-fields", "-q")
        done = read(text, *argv, "--token-vectors", command="embed")
        assert f"field '{name}' cannot be kept" in done.error
        assert read(text, *argv, command="embed").rows[0][name] == 7


def test_a_number_that_json_cannot_hold_stops_embed_before_it_computes(tmp_path):
    text = lines({"text": "a", "x": 1}, '{"text":"b","x":[NaN]}')
    argv = ("-m", TINY, "--keep-fields", "-q", "-o", tmp_path / "o.jsonl")
    assert "stdin:2: field 'x' holds NaN" in read(text, *argv, command="embed").error
    done = read(text, *argv, "--on-error", "skip", "--overwrite", command="embed")
    assert (done.code, (tmp_path / "o.jsonl").read_text().count("\n")) == (1, 1)


def test_views_of_arrow_are_text(tmp_path):
    """Columns of string_view and list_view, as Polars and DuckDB may write them."""
    file = tmp_path / "v.parquet"
    table = {
        "text": pyarrow.array(["I love NLP!", "a"], pyarrow.string_view()),
        "kept": pyarrow.array([["x"], []], pyarrow.list_view(pyarrow.string())),
    }
    pyarrow.parquet.write_table(pyarrow.table(table), file)
    done = good("tokenize", "-i", file, "--keep-fields")
    assert done.rows[0]["input_ids"] == ids_of("I love NLP!")[0]
    assert [row["kept"] for row in done.rows] == [["x"], []]
    assert "--max-record-bytes" in bad("tokenize", "-i", file, "--max-record-bytes", "5").hint


def test_the_time_of_keeping_fields_grows_with_their_number():
    row = lines({"text": "a", **{f"key{number}": 1 for number in range(40_000)}})
    start = time.process_time()
    assert len(read(row, "--keep-fields").rows[0]) == 40_004
    assert time.process_time() - start < 2  # seconds; quadratic, it takes 5


@pytest.mark.parametrize(
    ("name", "data", "error", "hint"),
    [
        ("a.xlsx", b"PK\x03\x04\x14\0\xff", "is a zip archive, not text", "unzip"),
        ("a.csv", "text\na\n".encode("utf-16"), "is UTF-16 text", "--encoding utf-16"),
        ("a.csv", b"text\na\xff\n", ":2: byte 6 (0xff) is not valid utf-8", "--encoding"),
        ("a.json", b'[{"text": "a"}, 7]', "expected a JSON object, found 7", ""),
        ("a.json", b'["a"', "not valid JSON", ""),
    ],
)
def test_files_are_named_for_what_they_are(tmp_path, name, data, error, hint):
    (tmp_path / name).write_bytes(data)
    done = bad("tokenize", "-i", tmp_path / name)
    assert name in done.error and error in done.error
    assert hint in done.err
    skipped = call("tokenize", "-i", tmp_path / name, "--on-error", "skip")
    assert skipped.code == 1


@pytest.mark.parametrize(
    ("name", "text", "texts"),
    [
        ("blank lines.csv", "text,x\na,1\n\n \nb,2\n\n", ["a", "b"]),
        ("blank lines.tsv", "text\tx\na\t1\n\n  \nb\t2\n", ["a", "b"]),
        ("before the header.csv", "\n\ntext,x\na,1\n", ["a"]),
        ("one column.csv", 'text\na\n\n""\n  \nb\n', ["a", "", "  ", "b"]),
        ("one column.tsv", "text\na\n\nb\n", ["a", "", "b"]),  # as it is written
        ("of pandas.csv", ",text\n0,a\n1,b\n", ["a", "b"]),
        ("two without a name.csv", ", ,text\n0,1,a\n", ["a"]),
        ("carriage returns.csv", "text,x\r\na,1\r\n\r\nb,2\r\n", ["a", "b"]),
    ],
)
def test_blank_lines_and_columns_without_a_name(tmp_path, name, text, texts):
    path = tmp_path / name
    path.write_bytes(text.encode())
    rows = good("tokenize", "--text", "--no-attention-mask", "--keep-fields", "-i", path).rows
    assert [row["text"] for row in rows] == texts
    assert {*rows[0]} <= {"input_ids", "token_type_ids", "text", "x"}


def test_blank_lines_of_pairs(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n\nc\td\n")
    rows = good("tokenize", "--text", "--pairs", tmp_path / "pairs.tsv").rows
    assert [(row["text"], row["pair"]) for row in rows] == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ("text ,x", "'text ', x"),
        ("text\u00a0,x", r"'text\xa0', x"),
        ("\u200btext", r"'\u200btext'"),
    ],
)
def test_blanks_in_names_are_shown(names, shown):
    done = bad("tokenize", "--input-format", "csv", stdin=f"{names}\na,b\n")
    assert done.hint == f"available: {shown}; choose with --text-field"
