"""Token vectors of ColBERT's kind against sentence-transformers' MultiVectorEncoder."""

import string

import numpy as np
import pytest
from front import bad, call, good
from sentence_transformers import MultiVectorEncoder
from task_models import texts
from term_models import colbert, deberta, encoder, native, pylate

from bertcli import Embedder

pytestmark = pytest.mark.parity
TEXTS = [*texts(6, 30), "Hello, world! (really)...", "a", "to the [SEP] [SEP]", "an [MASK]"]
EMBED = ("embed", "-q", "--token-vectors", "--threads", 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("late")


@pytest.fixture(scope="module")
def base(root):
    return encoder(root / "base")


PUNCTUATION = list(string.punctuation)
FOLDERS = {
    "native": lambda base, place: native(
        base,
        place,
        PUNCTUATION,
        document_length=25,
        query_expansion={"strategy": "fixed", "length": 16},
    ),
    "attending": lambda base, place: native(
        base,
        place,
        ["a"],
        query_expansion={"strategy": "min", "length": 9, "attend": True},
        query_length=18,
    ),
    "no expansion": lambda base, place: native(base, place, query_length=11),
    "filled with [SEP]": lambda base, place: native(
        base,
        place,
        query_expansion={"strategy": "fixed", "length": 16, "token": "[SEP]", "attend": False},
    ),
    "pylate": pylate,
    "pylate attending": lambda base, place: pylate(
        base,
        place,
        attend_to_expansion_tokens=True,
        skiplist_words=["the", "and"],
        query_prefix="[Q] ",
        prompts={"query": "[Q] find ", "document": "in: "},
    ),
    "pylate without model_type": lambda base, place: pylate(
        base,
        place,
        model_type=None,
        query_prefix="[Q] ",
        document_prefix="[D] ",
        similarity_fn_name="MaxSim",
        prompts={},
    ),
    "pylate without": lambda base, place: pylate(base, place, do_query_expansion=False),
    "colbert": lambda base, place: colbert(base, place),
    "colbert told": lambda base, place: colbert(
        base,
        place,
        {
            "query_maxlen": 12,
            "doc_maxlen": 22,
            "attend_to_mask_tokens": True,
            "mask_punctuation": False,
            "query_token_id": "[unused2]",
        },
    ),
}


@pytest.fixture(scope="module", params=[*FOLDERS])
def folder(request, root, base):
    return FOLDERS[request.param](base, root / request.param)


def vectors(*argv):
    return [np.array(row["vectors"], np.float32) for row in good(*EMBED, *argv).rows]


def close(ours, right):
    assert [one.shape for one in ours] == [tuple(one.shape) for one in right]
    for one, other in zip(ours, right, strict=True):
        assert np.abs(one - np.asarray(other)).max() <= 1e-5


def test_vectors_are_those_of_sentence_transformers(engine, folder):
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    alone = {"convert_to_numpy": True, "batch_size": 1}
    close(vectors("-m", folder, *TEXTS), theirs.encode_document(TEXTS, **alone))
    asked = vectors("-m", folder, "--prompt-name", "query", *TEXTS)
    close(asked, theirs.encode_query(TEXTS, **alone))


def test_a_vector_depends_on_its_text_alone(usual_engine, folder):
    for role in ("query", "document"):
        given = ("-m", folder, "--prompt-name", role)
        together = good(*EMBED, *given, *TEXTS).rows
        alone = [good(*EMBED, *given, text).rows[0] for text in TEXTS[:3]]
        for one, two in zip(together, alone, strict=False):
            assert one["vectors"] == two["vectors"]


@pytest.mark.parametrize(("similarity", "warned"), [("MaxSim", False), ("meanmaxsim", True)])
def test_scores_are_called_what_they_are(root, base, similarity, warned):
    """As of GTE-ModernColBERT, whose files name no model_type."""
    folder = pylate(base, root / similarity, model_type=None, similarity_fn_name=similarity)
    (root / "corpus.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    argv = ("similar", TEXTS[0], "--corpus", root / "corpus.txt", "--token-vectors", "-m", folder)
    done = call(*argv, "--top-k", 3)
    assert ("not available; scores are MaxSim" in done.err) is warned, done
    assert "cosines" not in done.err
    hits = {hit["row"]: hit["score"] for hit in done.rows[0]["hits"]}
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    theirs.similarity_fn_name = "maxsim"
    queries, documents = theirs.encode_query(TEXTS[:1]), theirs.encode_document(TEXTS)
    right = theirs.similarity(queries, documents)[0].tolist()
    assert sorted(right, reverse=True)[:3] == pytest.approx([*hits.values()], abs=1e-4)
    assert all(right[row] == pytest.approx(score, abs=1e-4) for row, score in hits.items())


def test_tokens_say_whose_vectors_there_are(root, base):
    folder = pylate(base, root / "tokens")
    (row,) = good(*EMBED, "-m", folder, "Is it?").rows
    assert row["tokens"] == ["[CLS]", "[unused1]", *row["tokens"][2:-1], "[SEP]"]
    assert "?" not in row["tokens"] and row["n_tokens"] == len(row["tokens"]) + 1
    (row,) = good(*EMBED, "-m", folder, "Is it?", "--prompt-name", "query").rows
    assert len(row["tokens"]) == len(row["vectors"]) == row["n_tokens"] == 20
    assert "?" in row["tokens"] and row["tokens"][-1] == "[MASK]"
    folder = native(base, root / "nothing")
    assert vectors("-m", folder, "--no-special-tokens", "")[0].size == 0


def test_python_has_both_kinds_of_texts(root, base):
    folder = pylate(base, root / "python")
    plain = Embedder.load(folder, pooling="mean", backend="torch", threads=1)
    model = Embedder.load(folder, token_vectors=True, backend="torch", threads=1)
    for one in (plain, model):
        asked = {} if one is model else {"pooling": "auto", "token_vectors": True}
        close(one.encode(TEXTS, **asked), vectors("-m", folder, *TEXTS))
        asked["prompt_name"] = "query"
        right = vectors("-m", folder, "--prompt-name", "query", *TEXTS)
        close(one.encode(TEXTS, **asked), right)


def test_what_does_not_fit(root, base):
    expansion = {"strategy": "min", "length": 16}
    place = native(deberta(root / "d"), root / "deberta", query_expansion=expansion)
    assert (
        "not supported for DeBERTa" in bad(*EMBED, "-m", place, "a", "--prompt-name", "query").error
    )
    folder = pylate(base, root / "refused")
    assert "window" in bad(*EMBED, "-m", folder, "a", "--on-truncate", "window", code=2).error
    assert "--token-vectors" in bad("embed", "-m", folder, "a").hint
    other = colbert(base, root / "refused too")
    assert "--token-vectors" in bad("embed", "-m", other, "a").hint
    assert good("embed", "-q", "-m", other, "--pooling", "mean", "a").rows
    seen = " ".join(good("inspect", other).out.split())
    assert "requires --token-vectors" in seen
    assert not any(wrong in seen for wrong in ("unknown", "linear.weight", "embed uses mean"))
    assert "WRONG" not in good("inspect", other, "--verify").out
