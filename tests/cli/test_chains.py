"""The output of one command is the input of the next, with all its fields."""

import json

import pytest
from front import TINY, bad, call, good, json_in, jsonl
from task_models import labels

TEXTS = ["the cat sat on the mat. it was grey.", "a dog sat on the rug.", "paris is in france."]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    return path


@pytest.fixture
def cross_encoder(models):
    return models("BertForSequenceClassification", num_labels=1)


CHUNK = ("chunk", "-m", TINY, "--max-length", 12, "-q")


@pytest.fixture
def chunks(texts):
    return good(*CHUNK, "-i", texts).out


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_chunks_are_embedded_with_their_fields(texts, chunks, form):
    """Also the number of tokens, which both have: that of the vector is written."""
    given = chunks if form == "jsonl" else good(*CHUNK, "-i", texts, "-f", "csv").out
    argv = ("embed", "-m", TINY, "-q", "--input-format", form, "--keep-fields")
    rows = good(*argv, stdin=given).rows
    expected = [json.loads(line) for line in chunks.splitlines()]
    assert len(rows) == len(expected) > 3
    for row, chunk in zip(rows, expected, strict=True):
        assert str(row.pop("id")) == str(chunk.pop("id")) and len(row.pop("embedding")) == 32
        assert {name: str(it) for name, it in row.items()} == {
            name: str(it) for name, it in chunk.items()
        }


def test_chunks_in_a_file_are_a_store_for_a_search(tmp_path, texts, chunks):
    (tmp_path / "chunks.jsonl").write_text(chunks)
    out = tmp_path / "chunks.parquet"
    argv = ("embed", "-m", TINY, "-q", "-i", tmp_path / "chunks.jsonl", "--keep-fields")
    good(*argv, "-o", out)
    (answer,) = good("similar", "the cat", "-m", TINY, "-q", "--vectors", out, "-k", 1).rows
    assert answer["hits"][0]["text"] in chunks
    (again,) = good("similar", "the cat", "-m", TINY, "-q", "--corpus", "-", "-k", 1,
                    "--keep-fields", stdin=chunks).rows  # fmt: skip
    hit = again["hits"][0]
    assert hit["text"] == answer["hits"][0]["text"]
    assert {"chunk", "start", "end"} <= hit.keys()


def test_a_number_of_tokens_that_chunk_did_not_write_is_not_replaced():
    row = jsonl([{"text": "a", "n_tokens": 7}])
    done = bad("embed", "-m", TINY, "-q", "--keep-fields", stdin=row)
    assert "field 'n_tokens' cannot be kept" in done.error


@pytest.mark.parametrize("more", [(), ("--keep-fields",)])
def test_hits_are_ranked_again(texts, cross_encoder, more):
    answer = good("similar", "a cat", "-m", TINY, "-q", "--corpus", texts, "-k", 2)
    rows = good("rerank", "a cat", "-m", cross_encoder, "-q", *more, stdin=answer.out).rows
    hits = answer.rows[0]["hits"]
    given = [hit["text"] for hit in hits]
    expected = good("rerank", "a cat", *given, "-m", cross_encoder, "-q").rows
    assert [row["text"] for row in rows] == [row["text"] for row in expected]
    assert [row["score"] for row in rows] == pytest.approx([row["score"] for row in expected])
    assert {row["id"]: row["text"] for row in rows} == {hit["id"]: hit["text"] for hit in hits}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_hits_that_are_ranked_again_have_their_row_of_the_corpus(
    tmp_path, texts, cross_encoder, form
):
    path = tmp_path / f"hits.{form}"
    good("similar", "dog", "-m", TINY, "-q", "--corpus", texts, "-k", 2, "-o", path)
    for more in ((), ("--keep-fields",)):
        argv = ("rerank", "dog", "-m", cross_encoder, "-q", "-i", path, *more)
        rows = good(*argv).rows
        assert len(rows) == 2
        assert all(row["text"] == TEXTS[row["row"]] for row in rows)
        assert {str(row["id"]) for row in rows} == {str(row["row"]) for row in rows}
    table = good("rerank", "dog", "-m", cross_encoder, "-q", "-i", path, "-f", "table").out
    assert all(f" {row['row']} " in table for row in rows)


@pytest.mark.parametrize("name", ["hits.jsonl", "hits.json", "hits.csv", "hits.parquet"])
def test_hits_of_several_queries_in_a_file_are_records(tmp_path, texts, cross_encoder, name):
    path = tmp_path / name
    good("similar", *["cat", "dog"] * 12, "-m", TINY, "-q", "--corpus", texts, "-o", path)
    rows = good("rerank", "a cat", "-m", cross_encoder, "-q", "-i", path).rows
    assert len(rows) == 24 * len(TEXTS) and {row["text"] for row in rows} == {*TEXTS}
    if name == "hits.json":
        assert len(json_in(path)) == 24


def test_hits_with_further_fields_are_ranked_with_them(tmp_path, cross_encoder):
    rows = [{"text": text, "title": text[:3]} for text in TEXTS]
    (path := tmp_path / "c.jsonl").write_text(jsonl(rows))
    argv = ("similar", "cat", "-m", TINY, "-q", "--corpus", path, "--keep-fields")
    ranked = good("rerank", "cat", "-m", cross_encoder, "-q", "--keep-fields",
                  stdin=good(*argv).out).rows  # fmt: skip
    assert [row["title"] for row in ranked] == [row["text"][:3] for row in ranked]


def test_tags_and_labels_are_carried_on(texts, models):
    tagger = models("BertForTokenClassification", **labels("O", "B-PER"))
    classifier = models("BertForSequenceClassification", num_labels=2)
    tagged = good("tag", "-m", tagger, "-q", "-i", texts, "--keep-fields").out
    rows = good("classify", "-m", classifier, "-q", "--keep-fields", stdin=tagged).rows
    assert [row["text"] for row in rows] == TEXTS
    assert all({"id", "label", "score", "entities"} <= row.keys() for row in rows)
    labelled = "".join(json.dumps(row) + "\n" for row in rows)
    rows = good("embed", "-m", TINY, "-q", "--keep-fields", stdin=labelled).rows
    assert [row["text"] for row in rows] == TEXTS and "entities" in rows[0]


def test_what_has_no_text_says_how_it_gets_one(texts, models):
    tagger = models("BertForTokenClassification", **labels("O", "B-PER"))
    tagged = good("tag", "-m", tagger, "-q", "-i", texts).out
    done = bad("embed", "-m", TINY, "-q", stdin=tagged)
    assert done.error == "stdin:1: field 'text' not found"
    assert "--keep-fields of the command before" in done.hint


def test_texts_without_duplicates_go_on(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("the cat\na dog\nthe cat\n")
    kept = call("duplicates", path, "-m", TINY, "-q", "-f", "txt")
    assert kept.code == 0
    assert len(good("embed", "-m", TINY, "-q", stdin=kept.out).rows) == 2
