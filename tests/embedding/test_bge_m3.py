"""The three outputs of BGE-M3, against a literal loop over transformers' states."""

import numpy as np
import pytest
import scipy.sparse
import torch
import transformers
from front import (
    bad,
    good,
    json_in,
)
from task_models import texts
from term_models import bge, encoder

pytestmark = pytest.mark.parity
TEXTS = [*texts(8, 30), "the the the [UNK]"]
EMBED = ("embed", "-q", "--threads", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("bge")
    return bge(encoder(root / "base"), root / "m3")


@pytest.fixture(scope="module")
def states(folder):
    """The tokens of each text and their states."""
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tokenize = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in TEXTS:
        ids = tokenize(text, return_tensors="pt", truncation=True, max_length=128)
        with torch.inference_mode():
            found.append((ids["input_ids"][0], model(**ids).last_hidden_state[0]))
    return found


def layer(folder, name):
    tensors = torch.load(folder / name, weights_only=True)
    return lambda x: torch.nn.functional.linear(x, tensors["weight"], tensors["bias"])


def test_dense_vectors_are_of_the_first_token(folder, states):
    right = torch.stack([torch.nn.functional.normalize(x[0], dim=0) for _, x in states])
    ours = [row["embedding"] for row in good(*EMBED, "-m", folder, *TEXTS).rows]
    np.testing.assert_allclose(ours, right, atol=1e-5)


def test_terms_are_the_largest_weights_of_a_texts_own_tokens(folder, states, tmp_path):
    good(*EMBED, "--sparse", "-m", folder, *TEXTS, "-o", tmp_path / "w.npz")
    ours = scipy.sparse.load_npz(tmp_path / "w.npz").toarray()
    weigh, right = layer(folder, "sparse_linear.pt"), np.zeros_like(ours)
    names = ("[CLS]", "[SEP]", "[PAD]", "[UNK]")
    special = transformers.AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(names)
    for row, (ids, x) in zip(right, states, strict=True):
        for index, weight in zip(ids.tolist(), weigh(x).relu()[:, 0].tolist(), strict=True):
            if index not in special:
                row[index] = max(row[index], weight)
    np.testing.assert_allclose(ours, right, atol=1e-5)
    assert (right > 0).any(1).sum() > len(TEXTS) / 2
    windows = ("--on-truncate", "window", "--max-length", 9)
    for more in ((), windows):
        streamed = good(*EMBED, "--sparse", "-m", folder, *more, *TEXTS)
        assert any(row["terms"] for row in streamed.rows)
        good(*EMBED, "--sparse", "-m", folder, *more, *TEXTS, "-o", tmp_path / f"{len(more)}.jsonl")
        assert (tmp_path / f"{len(more)}.jsonl").read_bytes() == streamed.stdout


def test_tokens_but_the_first_are_projected(folder, states):
    project = layer(folder, "colbert_linear.pt")
    rows = good(*EMBED, "--token-vectors", "-m", folder, *TEXTS).rows
    for row, (_, x) in zip(rows, states, strict=True):
        right = torch.nn.functional.normalize(project(x[1:]), dim=-1)
        np.testing.assert_allclose(row["vectors"], right, atol=1e-5)


def test_all_three_are_searched(folder, tmp_path):
    (tmp_path / "c.txt").write_text("\n".join(texts(9, 20)[:9]) + "\n")
    for how in ([], ["--sparse"], ["--token-vectors"]):
        given = ("similar", "-q", "-m", folder, "--corpus", tmp_path / "c.txt", "--top-k", 3)
        (row,) = good(*given, "--threads", 1, "-f", "jsonl", *how, "the river").rows
        assert len(row["hits"]) == 3


def test_the_layers_are_in_the_manifest(folder, tmp_path):
    for name, how in (("w.npz", "--sparse"), ("t.npy", "--token-vectors")):
        good(*EMBED, how, "-m", folder, "a", "-o", tmp_path / name)
        options = json_in(tmp_path / f"{name}.manifest.json")["fingerprint"]
        (made,) = options["options"]["layer" if name == "w.npz" else "modules"]
        assert len(made["sha256"]) == 64


def test_pickles_run_nothing(folder, tmp_path):
    other = bge(folder.parent / "base", tmp_path / "evil")
    (other / "sparse_linear.pt").write_bytes(b"cos\nsystem\n(S'touch x'\ntR.")
    assert "sparse_linear.pt" in bad(*EMBED, "--sparse", "-m", other, "a").error
    for shape, told in (((3, 32), "3 weights"), ((1, 5), "takes vectors of 5 dimensions")):
        torch.save({"weight": torch.zeros(shape)}, other / "sparse_linear.pt")
        assert told in bad(*EMBED, "--sparse", "-m", other, "a").error
    assert bad(*EMBED, "--sparse", "--pooling", "sum", "-m", folder, "a", code=2).error
