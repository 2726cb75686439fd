"""Several text columns, values inside of objects, and the types of CSV fields."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from front import TINY, bad, call, good, jsonl

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
