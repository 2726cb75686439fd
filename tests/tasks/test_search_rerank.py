"""`similar --rerank`: the rows of `similar | rerank`, in one command."""

import csv
import io

import pytest
from front import TINY, bad, call, good, jsonl
from sentence_transformers import CrossEncoder
from task_models import LENGTH, agree, texts

CLASSIFIER = "BertForSequenceClassification"
TEXTS = list(dict.fromkeys(text for text in texts() if text))
QUERY = "what is love"
SIMILAR = ("similar", "-q", "-m", TINY)


@pytest.fixture
def reranker(models):
    return models(CLASSIFIER, num_labels=1)


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(jsonl({"id": f"n{n}", "text": text, "tag": n} for n, text in enumerate(TEXTS)))
    return path


@pytest.fixture
def stores(tmp_path, corpus):
    """Return the options for a corpus in each place where its texts and vectors can be."""
    good("embed", "-q", "-m", TINY, "-i", corpus, "--keep-fields", "-o", tmp_path / "v.parquet")
    return {
        "corpus": ("--corpus", corpus),
        "vectors": ("--corpus", corpus, "--vectors", tmp_path / "v.npy"),
        "rows": ("--vectors", tmp_path / "v.parquet"),
        "index": ("--corpus", corpus, "--index", tmp_path / "i"),
        "hybrid": ("--corpus", corpus, "--hybrid"),
        "lexical": ("--corpus", corpus, "--lexical"),
        "index, lexical": ("--corpus", corpus, "--index", tmp_path / "i", "--lexical"),
    }


@pytest.mark.parametrize(
    "store", ["corpus", "vectors", "rows", "index", "hybrid", "lexical", "index, lexical"]
)
def test_rows_are_those_of_similar_and_rerank(stores, store, reranker):
    query = "the quick brown fox is in Paris"
    (found,) = good(*SIMILAR, query, *stores[store], "-k", 12).rows
    argv = ("rerank", query, "-q", "-m", reranker, "-k", 5)
    expected = good(*argv, stdin=jsonl(found["hits"])).rows
    options = ("--rerank", reranker, "--rerank-top", 12, "-k", 5)
    (answer,) = good(*SIMILAR, query, *stores[store], *options).rows
    hits = answer["hits"]
    agree([hit["score"] for hit in hits], [row["score"] for row in expected])
    assert [hit["text"] for hit in hits] == [row["text"] for row in expected]
    retrieved = {hit["row"]: hit["score"] for hit in found["hits"]}
    assert all(hit["retrieval_score"] == retrieved[hit["row"]] for hit in hits)
    assert list(hits[0])[:4] == ["row", "id", "score", "retrieval_score"]
    if "hybrid" in store:
        assert list(hits[0])[4:6] == ["dense_rank", "lexical_rank"]


def test_scores_are_those_of_a_cross_encoder(reranker, corpus):
    top = ("--rerank", reranker, "-k", len(TEXTS))
    (answer,) = good(*SIMILAR, QUERY, "--corpus", corpus, *top).rows
    theirs = CrossEncoder(str(reranker), max_length=LENGTH, device="cpu").rank(QUERY, TEXTS)
    hits = answer["hits"]
    agree([hit["score"] for hit in hits], [float(one["score"]) for one in theirs])
    assert [hit["row"] for hit in hits] == [one["corpus_id"] for one in theirs]


def test_queries_formats_threshold_and_files(reranker, corpus, tmp_path):
    argv = (*SIMILAR, QUERY, "a fox", "--corpus", corpus, "--rerank", reranker, "-k", 4)
    answers = good(*argv).rows
    assert [answer["query"] for answer in answers] == [QUERY, "a fox"]
    least = answers[0]["hits"][1]["score"]
    (first, _) = good(*argv, "--threshold", least).rows
    assert first["hits"] == answers[0]["hits"][:2]
    table = list(csv.DictReader(io.StringIO(good(*argv, "-f", "csv").out)))
    assert [row["rank"] for row in table] == [*"12341234"]
    assert float(table[0]["retrieval_score"]) == answers[0]["hits"][0]["retrieval_score"]
    assert "retrieval_score" in good(*argv, "-f", "table", COLUMNS="200").out
    out = tmp_path / "out.jsonl"
    good(*argv, "-o", out, "--resume")
    again = call(*argv[:1], *argv[2:], "-o", out, "--resume")
    assert "is already complete" in again.err


def test_what_is_refused(reranker, corpus, models, tmp_path):
    argv = ("similar", "a", "-m", TINY, "--corpus", corpus)
    assert "--rerank-top requires --rerank" in bad(*argv, "--rerank-top", 5, code=2).error
    default = bad(*argv, "--rerank", "sentence-transformers/all-MiniLM-L6-v2", code=2)
    assert "only makes vectors; --rerank needs a cross-encoder" in default.error
    assert default.hint.startswith("give --rerank MODEL: ")
    three = bad(*argv, "--rerank", models(CLASSIFIER, num_labels=3))
    assert "gives a pair 3 scores" in three.error
    good("embed", "-q", "-m", TINY, "-i", corpus, "-o", tmp_path / "v.npy")
    without = bad("similar", "a", "-m", TINY, "--vectors", tmp_path / "v.npy", "--rerank", reranker)
    assert "has no text, and --rerank reads texts" in without.error
