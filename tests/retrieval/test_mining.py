"""`similar --mine`: texts near to an anchor that are no positive of it."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from front import bad, call, good

TINY = str(Path(__file__).parents[2] / "samples" / "tiny-bert")
CORPUS = ["the cat sat", "a dog barks", "stocks fell", "the cat sits", "rain", "the cat sat", "sun"]
PAIRS = [("the cat sits", "the cat sat"), ("rain", "sun"), ("the cat sits", "a dog barks")]
ARGV = ("similar", "--mine", "-m", TINY, "-q")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "c.txt").write_text("".join(text + "\n" for text in CORPUS))
    lines = [json.dumps({"anchor": one, "positive": two}) + "\n" for one, two in PAIRS]
    (tmp_path / "p.jsonl").write_text("".join(lines))
    return ("-i", tmp_path / "p.jsonl", "--corpus", tmp_path / "c.txt")


def expected(margin, top_k=10):
    """From the vectors of `embed`, one pair after another."""
    vectors = {}
    for text in {*CORPUS, *sum(PAIRS, ())}:
        vectors[text] = np.array(good("embed", "-q", "-m", TINY, text).rows[0]["embedding"])
        vectors[text] /= np.linalg.norm(vectors[text])
    for anchor, positive in PAIRS:
        known = {anchor, *(two for one, two in PAIRS if one == anchor)}
        scores = [(-float(vectors[anchor] @ vectors[text]), at) for at, text in enumerate(CORPUS)]
        own = float(vectors[anchor] @ vectors[positive])
        count = 0
        for score, at in sorted((round(score, 9), at) for score, at in scores):
            if count < top_k and CORPUS[at] not in known and own + score >= margin:
                known.add(CORPUS[at])
                count += 1
                yield anchor, positive, CORPUS[at], own + score


@pytest.mark.parametrize(
    "more", [{"margin": -2}, {"margin": 0.02}, {"top_k": 1, "margin": -2}, {"top_k": 2}]
)
def test_negatives_are_the_nearest_texts_but_positives(files, more):
    options = [part for name, x in more.items() for part in (f"--{name.replace('_', '-')}", x)]
    rows = good(*ARGV, *files, *options).rows
    wanted = [*expected(more.get("margin", 0), more.get("top_k", 10))]
    assert [(row["anchor"], row["positive"], row["negative"]) for row in rows] == [
        one[:3] for one in wanted
    ]
    assert [row["margin"] for row in rows] == pytest.approx([one[3] for one in wanted], abs=1e-5)
    assert list(rows[0]) == ["anchor", "positive", "negative", "margin"]


def test_vectors_pipes_and_formats(files, tmp_path):
    argv = (*ARGV, *files, "--margin", -2)
    rows = good(*argv).rows
    assert good(*argv, "--vectors", tmp_path / "v.npy").rows == rows
    piped = (tmp_path / "p.jsonl").read_text()
    assert good(*ARGV, *files[2:], "--margin", -2, stdin=piped).rows == rows
    table = list(csv.DictReader(io.StringIO(good(*argv, "-f", "csv").out)))
    assert [line["negative"] for line in table] == [row["negative"] for row in rows]
    none = good(*ARGV, *files, "--margin", 3, "-f", "csv").out
    assert none == "anchor,positive,negative,margin\n"
    done = call("similar", "--mine", "-m", TINY, *files, "--margin", 3)
    assert (done.code, done.out, done.err) == (0, "", "note: 0 negatives for 3 pairs\n")


def test_what_cannot_be_mined(files, tmp_path):
    assert "--mine cannot be combined with QUERY" in bad(*ARGV, "x", *files[2:], code=2).error
    assert "--mine requires --corpus" in bad(*ARGV, *files[:2], "--vectors", "v", code=2).error
    assert "--margin requires --mine" in bad("similar", "x", "--margin", 1, code=2).error
    (tmp_path / "p.jsonl").write_text('{"anchor": "a"}\n')
    refused = bad(*ARGV, *files)
    assert "p.jsonl:1: " in refused.error and "positive" in refused.error + refused.hint
    (tmp_path / "p.jsonl").write_text('{"text": "a", "positive": "b"}\n')
    assert "field 'anchor' not found" in bad(*ARGV, *files).error
