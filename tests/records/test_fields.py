"""Several text columns, values inside of objects, and the types of CSV fields."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest
from front import TINY, bad, call, good, jsonl, struck

CSV = """id,title,body,stars,price,zip,note
007,A film,See it,5,4.50,02134,x
008,"Far, too long",,2,3,10115,2
9,,Only a body,,-1e3,1,3
"""
COUNT = ("tokenize", "-m", TINY, "--count", "-f", "jsonl")


@pytest.fixture
def films(tmp_path):
    path = tmp_path / "films.csv"
    path.write_text(CSV)
    return path


def texts(*argv, stdin=""):
    argv = ("tokenize", "-m", TINY, "--text", "--no-attention-mask", "--no-token-type-ids", *argv)
    return [row["text"] for row in good(*argv, "-q", stdin=stdin).rows]


# --- several columns ---


def test_text_columns_are_joined_by_a_blank_line(films):
    joined = ["A film\n\nSee it", "Far, too long", "Only a body"]
    assert texts("-i", films, "--text-field", "title,body") == joined
    assert texts("-i", films, "--text-field", "body , title")[0] == "See it\n\nA film"
    assert texts("-i", films, "--text-field", "title,body", "--join", ": ")[0] == "A film: See it"
    assert texts("-i", films, "--text-field", "title,body", "--join", r"\n")[0] == "A film\nSee it"


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "tsv"])
def test_text_columns_of_any_format_are_joined(tmp_path, suffix):
    rows = [{"title": "A film", "body": "See it"}, {"title": None, "body": "Dull"}] * 20
    path = tmp_path / f"films.{suffix}"
    if suffix == "jsonl":
        path.write_text(jsonl(rows))
    elif suffix == "json":
        path.write_text(json.dumps(rows))
    elif suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("title\tbody\n" + "A film\tSee it\n\tDull\n" * 20)
    assert texts("-i", path, "--text-field", "title,body") == ["A film\n\nSee it", "Dull"] * 20


def test_every_command_that_takes_a_text_field_joins_several(films, tmp_path):
    named = ("--text-field", "title,body", "--join", " - ")
    where = ("-m", TINY, "-q")
    vector = good("embed", *where, "A film - See it").rows[0]["embedding"]
    rows = good("embed", *where, "-i", films, *named).rows
    assert rows[0]["embedding"] == pytest.approx(vector, abs=1e-5)
    (chunk, *_) = good("chunk", "-m", TINY, "-i", films, *named).rows
    assert (chunk["id"], chunk["text"]) == ("007", "A film - See it")
    (answer,) = good("similar", *where, "film", "--corpus", films, *named, "-k", 3).rows
    assert {hit["text"] for hit in answer["hits"]} >= {"A film - See it", "Only a body"}
    films.write_text(films.read_text() + "10,A film,See it,1,1,1,1\n")
    group = good("duplicates", films, *where, *named, "-f", "jsonl").rows[0]
    assert group["keep"] == 0 and 3 in group["rows"]


def test_examples_have_texts_of_several_columns(tmp_path):
    rows = ["title,body,label"]
    rows += [f"good {n},great,good\nbad {n},awful,bad" for n in range(12)]
    (path := tmp_path / "examples.csv").write_text("\n".join(rows) + "\n")
    named = ("--text-field", "title,body")
    more = ("--frozen", "--steps", 5, "--device", "cpu", "--threads", 1, "-q")
    assert call("train", path, *named, "-m", TINY, "-o", tmp_path / "m", *more).code == 0
    (found,) = call("evaluate", path, *named, "-m", tmp_path / "m", "-q").rows
    assert (found["n"], found["labels"]) == (24, ["bad", "good"])


def test_a_column_whose_name_has_a_comma_or_a_dot_is_itself(tmp_path):
    (path := tmp_path / "odd.jsonl").write_text(
        jsonl([{"a,b": "one", "a": "two", "b": "three", "c.d": "four", "c": {"d": "five"}}])
    )
    assert texts("-i", path, "--text-field", "a,b") == ["one"]
    assert texts("-i", path, "--text-field", "b,a") == ["three\n\ntwo"]
    assert texts("-i", path, "--text-field", "c.d") == ["four"]


def test_all_fields_are_kept_beside_a_joined_text(films):
    row = good(*COUNT, "-i", films, "--text-field", "title,body", "--keep-fields").rows[0]
    expected = {"text": "A film\n\nSee it", "title": "A film", "body": "See it"}
    assert expected.items() <= row.items()
    assert "title,body" not in row


def test_a_column_that_is_missing_or_no_text(tmp_path, films):
    done = bad(*COUNT, "-i", films, "--text-field", "title,boddy")
    assert done.error == f"{films}: field 'boddy' not found"
    assert done.hint.startswith("available: id, title, body")
    (path := tmp_path / "a.jsonl").write_text('{"title": "a", "body": 5}\n')
    done = bad(*COUNT, "-i", path, "--text-field", "title,body")
    assert done.error == f"{path}:1: field 'body' is 5, not a string"
    path.write_text('{"title": null, "body": null}\n{"title": "a"}\n{"title": "a", "body": "b"}\n')
    assert "the text is null" in bad(*COUNT, "-i", path, "--text-field", "title,body").error
    done = call(*COUNT, "-i", path, "--text-field", "title,body", "--on-error", "skip")
    assert (done.code, len(done.rows), done.err.count("skipped: ")) == (1, 1, 2)


# --- values inside of objects ---

USERS = [
    {"user": {"bio": "likes tea", "name": {"first": "Ann"}, "nr": 7}, "score": 1},
    {"user": {"bio": "hunts foxes", "name": {"first": "Bo"}, "nr": 8}, "score": 2},
] * 10


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_a_name_with_dots_leads_into_objects(tmp_path, suffix):
    path = tmp_path / f"users.{suffix}"
    if suffix == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(USERS), path)
    else:
        path.write_text(jsonl(USERS) if suffix == "jsonl" else json.dumps(USERS))
    assert texts("-i", path, "--text-field", "user.bio") == ["likes tea", "hunts foxes"] * 10
    argv = ("--text-field", "user.bio", "--id-field", "user.nr", "--keep-fields", "user.name.first")
    (row, *_) = good(*COUNT, "-i", path, *argv).rows
    assert (row["id"], row["user.name.first"]) == (7, "Ann")
    joined = texts("-i", path, "--text-field", "user.name.first,user.bio", "--join", " ")
    assert joined[0] == "Ann likes tea"
    pairs = good("tokenize", "-m", TINY, "-i", path, "--text-field", "user.name.first", "--text",
                 "--pair-field", "user.bio").rows  # fmt: skip
    assert (pairs[0]["text"], pairs[0]["pair"]) == ("Ann", "likes tea")


def test_keys_that_are_missing_are_named_with_those_that_are_there(tmp_path):
    (path := tmp_path / "users.jsonl").write_text(jsonl([*USERS[:1], {"user": {"nick": "x"}}]))
    done = bad(*COUNT, "-i", path, "--text-field", "user.boi")
    assert done.error == f"{path}:1: field 'user.boi' not found"
    assert done.hint == "available: user.bio, user.name, user.nr"
    done = bad(*COUNT, "-i", path, "--text-field", "user.bio")
    assert done.error == f"{path}:2: field 'user.bio' not found"
    assert done.hint == "available: user.nick"
    path.write_text('{"user": null}\n')
    assert "the text is null" in bad(*COUNT, "-i", path, "--text-field", "user.bio").error
    done = bad(*COUNT, "-i", path, "--text-field", "users.bio")
    assert done.error == f"{path}:1: field 'users.bio' not found"


# --- types of CSV ---


def kept(*argv, **more):
    argv = (*COUNT, "--text-field", "title", "--keep-fields", "stars,price,zip,note", *argv)
    rows = call(*argv, **more).rows
    return {name: [row[name] for row in rows] for name in ("stars", "price", "zip", "note")}


NUMBERS = {
    "stars": [5, 2, None],
    "price": [4.5, 3.0, -1000.0],
    "zip": ["02134", "10115", "1"],  # 02134 is none, so the column is text
    "note": ["x", "2", "3"],
}
TEXTS = {
    "stars": ["5", "2", ""],
    "price": ["4.50", "3", "-1e3"],
    "zip": NUMBERS["zip"],
    "note": NUMBERS["note"],
}


def test_columns_of_numbers_are_kept_as_numbers(films, tmp_path):
    assert kept("-i", films) == NUMBERS
    assert {type(price) for price in kept("-i", films)["price"]} == {float}
    packed = tmp_path / "films.csv.gz"
    packed.write_bytes(gzip.compress(CSV.encode()))
    assert kept("-i", packed) == NUMBERS
    wide = tmp_path / "wide.csv"
    wide.write_text(CSV, "utf-16")
    assert kept("-i", wide, "--encoding", "utf-16") == NUMBERS
    tabs = tmp_path / "films.tsv"
    tabs.write_text(CSV.replace('"Far, too long"', "Far too long").replace(",", "\t"))
    assert kept("-i", tabs) == NUMBERS
    argv = ("embed", "-q", "-m", TINY, "-i", films, "--text-field", "body", "--keep-fields")
    good(*argv, "stars,price,zip", "-o", tmp_path / "f.parquet")
    schema = pyarrow.parquet.read_schema(tmp_path / "f.parquet")
    assert [str(schema.field(name).type) for name in ("stars", "price", "zip", "id")] == [
        *("int64", "double", "string", "string")
    ]


def test_ids_stay_as_they_are_written(films):
    rows = good(*COUNT, "-i", films, "--text-field", "title", "--keep-fields").rows
    assert [row["id"] for row in rows] == ["007", "008", "9"]
    rows = good(*COUNT, "-i", films, "--text-field", "title", "--id-field", "stars").rows
    assert [row.get("id") for row in rows] == ["5", "2", None]


def test_types_are_not_inferred_on_request_or_from_a_stream(films):
    assert kept("-i", films, "--no-infer-types") == TEXTS
    assert kept("--input-format", "csv", stdin=CSV) == TEXTS


def test_a_type_is_that_of_all_files(films, tmp_path):
    """Of several files too: an output does not mix numbers and texts in a column."""
    other = tmp_path / "other.csv"
    other.write_text(CSV.replace("4.50", "cheap").replace(",5,", ",5.5,"))
    columns = kept("-i", films, "-i", other)
    assert columns["price"][:3] == TEXTS["price"]
    assert columns["stars"] == [5.0, 2.0, None, 5.5, 2.0, None]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "+1"], ["1", "+1"]),
        (["1", " 2"], ["1", " 2"]),
        (["1_000", "2"], ["1_000", "2"]),
        (["1,5", "2"], ["1,5", "2"]),
        (["nan", "2"], ["nan", "2"]),
        (["inf", "1e999"], ["inf", "1e999"]),
        (["1e999", "2"], ["1e999", "2"]),
        (["٣", "2"], ["٣", "2"]),
        (["", ""], ["", ""]),
        (["9223372036854775807", "-1"], [2**63 - 1, -1]),
        (["9223372036854775808", "1"], ["9223372036854775808", "1"]),
        (["9007199254740993", "0.5"], ["9007199254740993", "0.5"]),
        (["9" * 5000, "1"], ["9" * 5000, "1"]),
        (["-0", "1"], [0.0, 1.0]),
        (["true", "false"], ["true", "false"]),
    ],
)
def test_what_a_number_would_change_stays_text(tmp_path, cells, expected):
    (path := tmp_path / "n.csv").write_text(
        "text,n\n" + "".join(f'a,"{cell}"\n' for cell in cells), "utf-8"
    )
    assert [row["n"] for row in good(*COUNT, "-i", path, "--keep-fields", "n").rows] == expected


def test_rows_that_cannot_be_read_do_not_decide_a_type(tmp_path):
    (path := tmp_path / "n.csv").write_text("text,n\na,1\nb,x,y\nc,2\n")
    done = call(*COUNT, "-i", path, "--keep-fields", "n", "--on-error", "skip")
    assert [row["n"] for row in done.rows] == [1, 2] and done.err.count("skipped: ") == 1


def test_labels_and_ids_of_examples_stay_text(tmp_path):
    (path := tmp_path / "e.csv").write_text("text,label\n" + "good,1\nbad,0\n" * 12)
    more = ("--frozen", "--steps", 3, "--eval-fraction", 0, "--device", "cpu", "-q")
    assert call("train", path, "-m", TINY, "-o", tmp_path / "m", *more).code == 0
    assert good("classify", "-q", "-m", tmp_path / "m", "good").rows[0]["label"] in ("0", "1")


def test_a_run_that_goes_on_keeps_the_types(tmp_path):
    (path := tmp_path / "n.csv").write_text(
        "text,n\n" + "".join(f"a cat,{n}\n" for n in range(400))
    )
    argv = ["embed", "-q", "-m", TINY, "-i", path, "--keep-fields", "--window", 100]
    argv += ["--backend", "torch"]
    good(*argv, "-o", tmp_path / "whole.jsonl")
    assert struck("SIGKILL", *argv, "-o", tmp_path / "v.jsonl", "--resume") != 0
    good(*argv, "-o", tmp_path / "v.jsonl", "--resume")
    assert (tmp_path / "v.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert '"n":399}' in (tmp_path / "v.jsonl").read_text()
