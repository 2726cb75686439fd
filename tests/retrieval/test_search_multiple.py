"""Searches by weights of terms and by vectors of tokens, against literal loops."""

import numpy as np
import pytest
import scipy.sparse
from front import (
    bad,
    call,
    good,
    jsonl,
)
from sentence_transformers import MultiVectorEncoder
from task_models import texts
from term_models import colbert, encoder, pylate, sparse

TEXTS = [*texts(14, 25), "love", "the same", "the same"]
QUERIES = ["love and loss", "the same", "Paris"]
SIMILAR = ("similar", "-q", "--threads", 1, "-f", "jsonl", "--top-k", 5)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multiple")
    lines = [{"id": f"t{at}", "text": text} for at, text in enumerate(TEXTS)]
    (folder / "c.jsonl").write_text(jsonl(lines))
    return folder


@pytest.fixture(scope="module")
def late(root):
    return pylate(encoder(root / "base"), root / "late")


@pytest.fixture(scope="module")
def terms(root):
    return sparse(root / "sparse")


def hits(done):
    return [[(hit["row"], hit["id"], hit["score"]) for hit in row["hits"]] for row in done.rows]


def best(scores, k=5):
    order = sorted(range(len(scores)), key=lambda at: (-round(float(scores[at]), 9), at))[:k]
    return [(at, f"t{at}", float(scores[at])) for at in order]


def agree(ours, right):
    for mine, theirs in zip(ours, right, strict=True):
        assert [hit[:2] for hit in mine] == [hit[:2] for hit in theirs]
        np.testing.assert_allclose([h[2] for h in mine], [h[2] for h in theirs], 1e-5, 1e-5)


def products(root, terms):
    embed = ("embed", "-q", "--sparse", "--threads", 1, "-m", terms)
    good(*embed, "-i", root / "c.jsonl", "-o", root / "all.npz", "--overwrite")
    good(*embed, *QUERIES, "-o", root / "asked.npz", "--overwrite")
    asked, every = (scipy.sparse.load_npz(root / f"{name}.npz") for name in ("asked", "all"))
    return (asked.astype(float) @ every.astype(float).T).toarray()


def test_terms_are_compared_by_their_dot_product(root, terms):
    right = [best(row) for row in products(root, terms)]
    given = (*SIMILAR, "--sparse", "-m", terms, *QUERIES)
    agree(hits(good(*given, "--corpus", root / "c.jsonl")), right)
    for form in ("npz", "jsonl", "parquet"):
        out = root / f"kept.{form}"
        kept = (*given, "--corpus", root / "c.jsonl", "--vectors", out)
        agree(hits(good(*kept)), right)
        assert out.exists()
        agree(hits(good(*kept)), right)
        agree(hits(good(*given, "--vectors", out)), right)
    scipy.sparse.save_npz(root / "theirs.npz", scipy.sparse.load_npz(root / "kept.npz"))
    done = call(*given, "--vectors", root / "theirs.npz")
    assert [[row for row, _, _ in one] for one in hits(done)] == [[h[0] for h in r] for r in right]


def max_sim(folder):
    """The scores of a literal loop, over the vectors of sentence-transformers."""
    model = MultiVectorEncoder(str(folder), device="cpu")
    asked = model.encode_query(QUERIES, convert_to_numpy=True)
    every = model.encode_document(TEXTS, convert_to_numpy=True)
    return [
        [sum(max(float(q @ d) for d in text) for q in query) for text in every] for query in asked
    ]


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["pylate", "colbert"])
def test_tokens_are_matched_one_by_one(root, late, kind, tmp_path):
    folder = late if kind == "pylate" else colbert(root / "base", root / "colbert")
    right = [best(row) for row in max_sim(folder)]
    given = (*SIMILAR, "--token-vectors", "-m", folder, *QUERIES)
    agree(hits(good(*given, "--corpus", root / "c.jsonl")), right)
    forms = ("npy", "npz", "safetensors", "jsonl", "parquet") if kind == "pylate" else ("npz",)
    for form in forms:
        out = tmp_path / f"kept.{form}"
        agree(hits(good(*given, "--corpus", root / "c.jsonl", "--vectors", out)), right)
        agree(hits(good(*given, "--corpus", root / "c.jsonl", "--vectors", out)), right)
        agree(hits(good(*given, "--vectors", out)), right)


def test_what_was_made_in_another_way_is_refused(root, terms, late, tmp_path):
    text = tmp_path / "dense.npy"
    good("embed", "-q", "-m", root / "base", "a", "b", "-o", text)
    good("embed", "-q", "-m", root / "base", "--token-vectors", "a", "b", "-o", tmp_path / "t.npy")
    good("embed", "-q", "-m", terms, "--sparse", "a", "b", "-o", tmp_path / "w.npz")
    base = (*SIMILAR, "-m", root / "base", "query", "--vectors")
    assert "of texts, not of tokens" in bad(*base, text, "--token-vectors").error
    assert "--token-vectors" in bad(*base, tmp_path / "t.npy").hint
    asked = (*SIMILAR, "-m", terms, "query", "--vectors", tmp_path / "w.npz")
    assert "--sparse" in bad(*asked).hint
    both = (*SIMILAR, "-m", terms, "q", "--corpus", root / "c.jsonl", "--sparse")
    assert bad(*both, "--token-vectors", code=2).error
    assert bad(*both, "--vectors", tmp_path / "x.npy", code=2).error
    (tmp_path / "t.npy.index.jsonl").unlink()
    assert "index" in bad(*base, tmp_path / "t.npy", "--token-vectors").error


@pytest.mark.parametrize(
    "line",
    ['{"terms": 3}', '{"terms": {"love": "a"}}', '{"terms": {"no such token": 1}}', "[1]", "{}"],
)
def test_broken_terms_are_one_line(terms, tmp_path, line):
    file = tmp_path / "w.jsonl"
    file.write_text(line + "\n")
    done = call(*SIMILAR, "-m", terms, "--sparse", "q", "--vectors", file)
    assert done.code == 1 and "w.jsonl:1: " in done.err and "Traceback" not in done.err
