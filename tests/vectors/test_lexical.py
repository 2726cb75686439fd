"""`similar --lexical` and `--hybrid`: BM25 as the books have it, fused with cosines by ranks."""

import math
import random

import numpy as np
import pytest
from front import TINY, bad, good

MODEL = ("-m", TINY, "-q", "-f", "jsonl")
WORDS = "i love nlp the film was great hello world me too 4711 a b c".split()  # noqa: SIM905


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    rng = random.Random(7)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(300)]
    lines[11], lines[40], lines[41] = "", lines[7], lines[7]  # one empty, three equal
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("".join(f"{line}\n" for line in lines))
    return lines


def plain_bm25(query, texts, k1=1.2, b=0.75):
    """Return the score of each text, term by term."""
    mean, scores = sum(map(len, texts)) / len(texts), []
    for text in texts:
        score = 0.0
        for term in query:
            holding = sum(term in other for other in texts)
            rarity = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
            count = text.count(term)
            score += rarity * count * (k1 + 1) / (count + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


def hits_of(*argv):
    (answer,) = good("similar", *MODEL, *argv).rows
    return answer["hits"]


def best(scores, count):
    rows = sorted(range(len(scores)), key=lambda row: (-round(scores[row], 9), row))
    return [row for row in rows if scores[row]][:count]


@pytest.mark.parametrize("query", ["love the film", "4711 4711 world", "zebra"])
def test_lexical_scores_are_those_of_a_plain_bm25(query, corpus):
    argv = ("tokenize", "-m", TINY, "-q", "--no-special-tokens")
    texts = good(*argv, "-i", "corpus.txt").ids
    scores = plain_bm25(good(*argv, query).ids[0], texts)
    hits = hits_of(query, "--corpus", "corpus.txt", "--lexical", "-k", 20)
    assert [hit["row"] for hit in hits] == best(scores, 20)
    assert np.allclose([hit["score"] for hit in hits], [scores[hit["row"]] for hit in hits])


def test_hybrid_adds_reciprocal_ranks_and_says_both(corpus):
    query = ("love the 4711", "--corpus", "corpus.txt")
    ranks = [
        {hit["row"]: rank for rank, hit in enumerate(hits_of(*query, *way, "-k", 100), 1)}
        for way in ((), ("--lexical",))
    ]
    scores = {
        row: sum(
            share / (5 + ranked[row])
            for share, ranked in zip((1, 0.5), ranks, strict=True)
            if row in ranked
        )
        for row in ranks[0] | ranks[1]
    }
    hits = hits_of(*query, "--hybrid", "-k", 10)
    assert [hit["row"] for hit in hits] == sorted(scores, key=lambda r: (-scores[r], r))[:10]
    for hit in hits:
        assert hit["score"] == pytest.approx(scores[hit["row"]])
        places = [ranked.get(hit["row"]) for ranked in ranks]
        assert [hit["dense_rank"], hit["lexical_rank"]] == places
        assert hit["text"] == corpus[hit["row"]] != ""
    kept = (*query, "--hybrid", "-k", 10, "--vectors", "corpus.npy")
    assert hits_of(*kept) == hits_of(*kept) == hits


def test_the_index_is_kept_beside_the_vectors_and_made_anew_for_others(corpus, tmp_path):
    argv = ("love the 4711", "--corpus", "corpus.txt", "--hybrid", "--vectors", "corpus.npy")
    hits, index = hits_of(*argv), tmp_path / "corpus.npy.terms.npz"
    with np.load(index) as arrays:
        changed = {**arrays, "weights": 0 * arrays["weights"]}
    np.savez(index, **changed)
    assert {hit["lexical_rank"] for hit in hits_of(*argv)} == {None}  # it is read
    for broken in (b"", index.read_bytes()[:-100], b"no archive"):
        index.write_bytes(broken)
        assert hits_of(*argv) == hits
        assert len(index.read_bytes()) > 100
    np.savez(index, **changed)
    (tmp_path / "corpus.txt").write_text("".join(f"{line}\n" for line in corpus[::-1]))
    assert "made from other texts" in bad("similar", *MODEL, *argv).error
    good("embed", "-q", "-m", TINY, "-i", "corpus.txt", "-o", "corpus.npy", "--overwrite")
    remade = hits_of(*argv)
    index.unlink()
    assert remade == hits_of(*argv) != hits


def test_the_index_is_of_whole_texts_though_the_vectors_are_not(tmp_path):
    source, vectors = tmp_path / "c.txt", tmp_path / "v.npy"
    for last in ("4711", "hello"):
        source.write_text(f"love the film great world {last}\nme too\n")
        cut = ("--max-length", 5, "--on-truncate", "ignore", "-o", vectors, "--overwrite")
        good("embed", "-q", "-m", TINY, "-i", source, *cut)
        hit, *_ = hits_of(last, "--corpus", source, "--vectors", vectors, "--hybrid")
        assert hit["lexical_rank"] == 1


def test_passages_of_notes_are_found_by_their_words(tmp_path):
    note = "# Trains\n\nThe train to the north stops at 4711.\n\n" + "Love the film. " * 60
    (tmp_path / "note.md").write_text(note)
    for way in ("--lexical", "--hybrid"):
        hit, *_ = hits_of("4711", "--corpus", tmp_path, way)
        assert "4711" in hit["text"] and len(hit["text"]) < len(note)


@pytest.mark.parametrize("way", ["--lexical", "--hybrid"])
def test_an_empty_corpus_and_what_cannot_be_combined(way, tmp_path):
    (tmp_path / "none.txt").touch()
    assert hits_of("a", "--corpus", tmp_path / "none.txt", way) == []
    alone = bad("similar", "a", way, "--vectors", "x.npy", code=2).error
    assert alone.startswith(f"{way} {'requires' if way == '--hybrid' else 'cannot be combined'}")
    argv = ("similar", "a", "--corpus", tmp_path / "none.txt", way)
    for other in ("--sparse", "--token-vectors"):
        assert f"{way} cannot be combined" in bad(*argv, other, code=2).error
    assert "cannot be combined" in bad(*argv, "--threshold", "0.5", code=2).error
    assert "cannot be read twice" in bad("similar", "a", *MODEL, "--corpus", "-", way, code=2).error
