"""Near-duplicates: the components that comparing all pairs finds, in blocks."""

import numpy as np
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    jsonl,
)

from bertcli.vectors import duplicates as grouping
from bertcli.vectors.duplicates import Components

TEXTS = [
    "The cat sat.",
    "Stocks fell",
    "the cat sat.",
    "",
    "Dogs bark",
    "THE CAT SAT.",
    "stocks fell",
]


def brute(vectors, threshold):
    """All pairs, one after another."""
    wide = vectors.astype(float)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    wide = np.divide(wide, lengths, out=np.zeros_like(wide), where=lengths > 0)
    alike = (wide @ wide.T).round(9) >= threshold
    groups, seen = [], set()
    for first in range(len(wide)):
        group, left = {first}, [first]
        while left and first not in seen:
            further = {*np.flatnonzero(alike[left.pop()]).tolist()} - group
            group |= further
            left += further
        if len(group) > 1:
            groups.append(sorted(group))
        seen |= group
    return groups


def found(vectors, threshold):
    run = Components(vectors, threshold)
    assert max(run, default=0) <= len(vectors)
    return [group.tolist() for group in run.groups()]


def made(rows, width, seed=0):
    """Vectors of length 1: most of them alone, some copied, some changed a little, some zeros."""
    draw = np.random.default_rng(seed)
    vectors = draw.normal(size=(rows, width))
    part = rows // 8
    vectors[3 * part : 4 * part] = vectors[:part]
    vectors[4 * part : 5 * part] = vectors[:part] + 0.2 * draw.normal(size=(part, width))
    vectors[5 * part] = vectors[5 * part + 2] = 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


@pytest.mark.parametrize("width", [4, 150, 384])
@pytest.mark.parametrize("threshold", [0.3, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("blocks", [(8192, 2048), (96, 32)])
def test_groups_are_those_of_all_pairs(monkeypatch, width, threshold, blocks):
    monkeypatch.setattr(grouping, "TALL", blocks[0])
    monkeypatch.setattr(grouping, "ROWS", blocks[1])
    vectors = made(400, width)
    assert found(vectors, threshold) == brute(vectors, threshold)


@pytest.mark.parametrize("spread", [0, 1e-4, 0.01, 0.03])
def test_texts_that_are_all_alike_and_pairs_at_the_threshold(spread):
    draw = np.random.default_rng(1)
    vectors = np.repeat(made(9, 200)[:1], 300, axis=0) + spread * draw.normal(size=(300, 200))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    scores = np.sort((vectors.astype(float) @ vectors.T.astype(float)).reshape(-1))
    for threshold in (0.9, float(scores[len(scores) // 2].round(9)), 1.0):
        assert found(vectors, threshold) == brute(vectors, threshold)


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "c.txt"
    path.write_text("".join(text + "\n" for text in TEXTS))
    return path


ARGV = ("duplicates", "-m", TINY, "-q", "--threshold", 0.9999)


def test_groups_and_what_is_kept(corpus):
    assert good(*ARGV, corpus).rows == [
        {"keep": 0, "rows": [2, 5], "scores": [1.0, 1.0]},
        {"keep": 1, "rows": [6], "scores": [1.0]},
    ]
    corpus.write_text("the cat sat.\nx\nThe   cat sat.\nTHE  CAT sat.\n")
    (group,) = good(*ARGV, corpus, "--keep", "longest").rows
    assert group == {"keep": 2, "rows": [0, 3], "scores": [1.0, 1.0]}
    done = call("duplicates", "-m", TINY, corpus, "--threshold", 0.9999)
    assert done.err == "note: 1 group: 2 duplicates among 4 texts\n"


def test_scores_are_the_cosines_to_what_is_kept(corpus):
    vectors = corpus.with_name("v.npy")
    (group,) = good(*ARGV[:-1], 0.1, corpus, "--vectors", vectors).rows
    wide = np.load(vectors).astype(float)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    assert group["rows"] == [1, 2, 3, 4, 5, 6]
    assert group["scores"] == pytest.approx((wide @ wide[0])[1:].tolist(), abs=1e-8)


def test_the_texts_without_duplicates(corpus, tmp_path):
    assert good(*ARGV, corpus, "-f", "txt").out.splitlines() == [*TEXTS[:2], "", "Dogs bark"]
    out = tmp_path / "fewer.txt"
    good(*ARGV, corpus, "-o", out)
    assert out.read_text().splitlines() == [*TEXTS[:2], "", "Dogs bark"]
    assert good(*ARGV, out).rows == []
    refused = bad(*ARGV, corpus, "-f", "txt", "-o", corpus, "--overwrite")
    assert str(corpus) in refused.error


def test_ids_fields_and_tables(tmp_path):
    path = tmp_path / "c.jsonl"
    lines = [{"id": f"n{at}", "body": text} for at, text in enumerate(TEXTS)]
    path.write_text(jsonl(lines))
    argv = (*ARGV, path, "--text-field", "body")
    assert good(*argv).rows[0] == {
        **{"keep": 0, "rows": [2, 5], "scores": [1.0, 1.0]},
        **{"keep_id": "n0", "ids": ["n2", "n5"]},
    }
    table = good(*argv, "-f", "csv").out.splitlines()
    assert table[:2] == ["keep,keep_id,row,id,score,text", "0,n0,2,n2,1.0,the cat sat."]
    shown = good(*argv, "-f", "table").out
    assert "kept" in shown and "n5" in shown and "Dogs" not in shown
    assert good(*argv[:-2], "--id-field", "id", "--text-field", "id", "-f", "csv").out == (
        "keep,keep_id,row,id,score,text\n"
    )


def test_vectors_are_kept_reused_and_checked(corpus):
    vectors = corpus.with_name("v.npy")
    expected = good(*ARGV, corpus).out
    argv = ("duplicates", "-m", TINY, "--threshold", 0.9999, corpus, "--vectors", vectors)
    done = call(*argv)
    assert (done.out, "kept in" in done.err) == (expected, True)
    again = call(*argv)
    assert (again.out, "kept in" in again.err) == (expected, False)
    assert good("similar", "x", "-m", TINY, "-q", "--vectors", vectors).rows
    assert "made by another model" in bad(*ARGV[:1], corpus, "--vectors", vectors).error
    corpus.write_text("one\n")
    assert "the corpus has 1 text" in bad(*argv).error


def test_vectors_of_another_shape(tmp_path):
    (texts := tmp_path / "t.txt").write_text("a\nb\n")
    for shape, code in (((2, 3, 32), 1), ((2, 16), 0)):  # another model may have made the second
        np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=shape))
        done = call(*ARGV, texts, "--vectors", tmp_path / "v.npy")
        assert (done.code, "has 3 x 32 dimensions" in done.err) == (code, code == 1)


def test_no_texts_and_wrong_usage(tmp_path):
    (tmp_path / "none.txt").touch()
    done = call("duplicates", "-m", TINY, tmp_path / "none.txt")
    assert (done.code, done.out, done.err) == (0, "", "note: no records: the input is empty\n")
    for score in (0, 1.5):
        assert "is not in the range" in bad(*ARGV[:-1], score, "x", code=2).error
    assert "stdin: cannot be read twice" in bad(*ARGV, "-", code=2).error
    assert "file not found" in bad(*ARGV, "nowhere.txt").error


def test_vectors_that_were_changed_are_refused(tmp_path):
    (texts := tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    good("embed", "-q", "-m", TINY, "-i", texts, "-o", vectors := tmp_path / "v.npy")
    for argv in (("duplicates", texts), ("similar", "a", "--corpus", texts), ("similar", "a")):
        good(*argv, "-q", "-m", TINY, "--vectors", vectors)
    flipped = bytearray(vectors.read_bytes())
    flipped[-1] ^= 1
    vectors.write_bytes(flipped)
    for argv in (("duplicates", texts), ("similar", "a", "--corpus", texts), ("similar", "a")):
        done = bad(*argv, "-q", "-m", TINY, "--vectors", vectors)
        assert done.error.startswith(f"{vectors}: was changed after it was made: its sha256")
