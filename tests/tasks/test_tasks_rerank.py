"""`bertcli rerank` against sentence-transformers' CrossEncoder.rank, and its manners."""

import csv
import io
from dataclasses import replace

import pyarrow.parquet
import pytest
import torch
from front import (
    bad,
    call,
    good,
    jsonl,
)
from sentence_folders import SAMPLE, dense, saved, shaken, st
from sentence_transformers import CrossEncoder
from task_models import LENGTH, agree, labels, texts

import bertcli

pytestmark = pytest.mark.parity

CLASSIFIER = "BertForSequenceClassification"
TEXTS = [text for text in texts() if text]
QUERY = "what is love"


@pytest.fixture
def model(models):
    return models(CLASSIFIER, num_labels=1)


@pytest.fixture
def file(tmp_path):
    lines = [{"id": f"n{at}", "text": text, "kind": at % 3} for at, text in enumerate(TEXTS)]
    path = tmp_path / "in.jsonl"
    path.write_text(jsonl(lines))
    return path


def test_the_order_and_scores_are_those_of_a_cross_encoder(model):
    rows = good("rerank", QUERY, *TEXTS, "-m", model, "-q").rows
    theirs = CrossEncoder(str(model), max_length=LENGTH, device="cpu").rank(QUERY, TEXTS)
    assert [list(row)[:4] for row in rows] == [["row", "id", "score", "text"]] * len(TEXTS)
    agree([row["score"] for row in rows], [float(one["score"]) for one in theirs])
    scores = {one["corpus_id"]: float(one["score"]) for one in theirs}
    agree([scores[row["row"]] for row in rows], [row["score"] for row in rows])
    assert all(row["text"] == TEXTS[row["row"]] and row["id"] == row["row"] for row in rows)
    keys = [(-row["score"], row["row"]) for row in rows]
    assert keys == sorted(keys)  # of equal texts, the first comes first


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_cross_encoder_of_modules_scores_as_it_was_set(engine, tmp_path, outputs):
    """As of ettin-reranker: pooling, two layers and a norm behind an encoder."""
    behind = [
        st.Pooling(32, "cls"),
        dense(32, 32, torch.nn.GELU(), bias=False),
        shaken(st.LayerNorm(32)),
        dense(32, outputs, module_output_name="scores"),
    ]
    model = CrossEncoder(modules=[st.Transformer(str(SAMPLE)), *behind], device="cpu")
    model.activation_fn = torch.nn.Identity()
    saved(model, tmp_path / "m")
    pairs = [(QUERY, text) for text in TEXTS]
    theirs = CrossEncoder(str(tmp_path / "m"), device="cpu").predict(pairs, batch_size=1)
    argv = ("-m", tmp_path / "m", "-q")
    lines = jsonl({"text": one, "pair": two, "score": 0.5} for one, two in pairs)
    (tmp_path / "pairs.jsonl").write_text(lines)
    options = ("--scores", "all", "--logits") if outputs > 1 else ()
    rows = good("classify", "-i", tmp_path / "pairs.jsonl", *argv, *options).rows
    if outputs > 1:
        agree([[*row["scores"].values()] for row in rows], theirs.tolist())
        assert "gives a pair 3 scores" in bad("rerank", "a", "b", *argv).error
        return
    agree([row["score"] for row in rows], theirs.tolist())
    ranked = good("rerank", QUERY, *TEXTS, *argv).rows
    agree([row["score"] for row in ranked], sorted(theirs.tolist(), reverse=True))
    report = good("evaluate", tmp_path / "pairs.jsonl", "--task", "regress", *argv).rows[0]
    assert (report["task"], report["n"]) == ("regress", len(TEXTS))
    refused = bad("embed", "a", *argv)
    assert "a cross-encoder, which has no text vectors" in refused.error
    assert "bertcli rerank" in refused.hint
    assert "bertcli classify" in good("inspect", tmp_path / "m").out


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_one_label_has_the_score_of_a_cross_encoder(models, problem):
    """Whatever kind of problem config.json names, unless it names an activation."""
    folder = models(CLASSIFIER, num_labels=1, problem_type=problem)
    rows = good("rerank", QUERY, *TEXTS, "-m", folder, "-q").rows
    theirs = CrossEncoder(str(folder), max_length=LENGTH, device="cpu").rank(QUERY, TEXTS)
    agree([row["score"] for row in rows], [float(one["score"]) for one in theirs])
    (row,) = good("classify", "a", "-m", folder, "-q").rows
    assert row.keys() == {"id", "score"}


def test_the_best_few_are_the_first_of_all(model, file, monkeypatch):
    every = good("rerank", QUERY, "-i", file, "-m", model, "-q").rows
    monkeypatch.setattr("bertcli.tasks.head.FIRST_WINDOW", 4)  # several windows
    few = good("rerank", QUERY, "-i", file, "-m", model, "-q", "--top-k", 3).rows
    agree(few, every[:3])
    assert [row["id"] for row in every] == [f"n{row['row']}" for row in every]


def test_files_pipes_fields_and_formats(model, file, tmp_path):
    argv = ("rerank", QUERY, "-m", model, "-q")
    expected = good(*argv, *TEXTS).rows
    piped = "".join(text + "\n" for text in TEXTS)
    agree(good(*argv, stdin=piped).rows, expected)
    kept = good(*argv, "-i", file, "--keep-fields").rows
    assert [row["kind"] for row in kept] == [row["row"] % 3 for row in kept]
    table = list(csv.DictReader(io.StringIO(good(*argv, "-i", file, "-f", "csv").out)))
    assert list(table[0]) == ["row", "id", "score", "text", "truncated"]
    assert [line["id"] for line in table] == [row["id"] for row in kept]
    good(*argv, "-i", file, "-o", tmp_path / "out.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet").num_rows == len(TEXTS)
    shown = good(*argv, "one", "two", "-f", "table").out
    assert "score" in shown and "two" in shown
    refused = bad(*argv, "-i", file, "--keep-fields", "--id-field", "kind", "--text-field", "x")
    assert "field 'x' not found" in refused.error


def test_a_class_gives_the_rows_of_the_command(model):
    rows = good("rerank", QUERY, *TEXTS, "-m", model, "-q", "--top-k", 3, "-f", "jsonl").rows
    reranker = bertcli.Reranker.load(model, backend="torch")
    agree(reranker(QUERY, TEXTS, top_k=3), rows)
    best_three = replace(reranker, top_k=3)
    agree(best_three(QUERY, TEXTS), rows)
    agree(best_three(QUERY, TEXTS, top_k=1), rows[:1])


def test_truncation_is_said(model):
    done = call("rerank", QUERY, "one " * 100, "two", "-m", model)
    assert "warning: 1 of 2 texts truncated to 64 tokens" in done.err
    assert {row["row"]: "truncated" in row for row in done.rows} == {0: True, 1: False}


def test_models_that_cannot_sort(models):
    three = bad("rerank", "a", "b", "-m", models(CLASSIFIER, **labels("x", "y", "z")))
    assert "gives a pair 3 scores, and rerank needs one" in three.error
    assert "cross-encoder" in three.hint
    single = bad("rerank", "a", "b", "-m", models(CLASSIFIER, num_labels=1, type_vocab_size=1))
    assert "1 of them" in single.error
    none = bad("rerank", "a", "b", code=2)
    assert none.error == "the default model only makes vectors; rerank needs a cross-encoder"
    assert "cross-encoder/ms-marco-MiniLM-L6-v2" in none.hint
    assert "TEXT cannot be combined" in bad("rerank", "a", "b", "-i", "c", code=2).error
