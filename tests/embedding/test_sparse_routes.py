"""Queries whose terms come from a table, and documents whose terms a model gives."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
from front import (
    bad,
    environment,
    good,
    json_in,
    put_json,
)
from sentence_transformers import SparseEncoder
from task_models import texts
from term_models import routed, sparse

from bertcli import Embedder

ROLES = ("encode_query", "encode_document")
pytestmark = pytest.mark.parity
TEXTS = [*texts(8, 40), "the same the same", "[SEP] a"]
EMBED = ("embed", "-q", "--sparse", "--threads", 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("routes")


@pytest.fixture(scope="module")
def masked(root):
    return sparse(root / "masked")


@pytest.fixture(scope="module")
def weights(root, masked):
    return routed(masked, root / "routed")


@pytest.fixture(scope="module")
def folder(root, weights):
    return root / "routed"


def matrix(*argv):
    place = argv[argv.index("-o") + 1]
    good(*EMBED, *argv)
    return scipy.sparse.load_npz(place).toarray()


def test_both_sides_are_those_of_sentence_transformers(folder, tmp_path):
    model = SparseEncoder(str(folder), device="cpu")
    ours = matrix("-m", folder, "--prompt-name", "query", *TEXTS, "-o", tmp_path / "q.npz")
    np.testing.assert_allclose(ours, model.encode_query(TEXTS).to_dense(), atol=1e-6)
    ours = matrix("-m", folder, *TEXTS, "-o", tmp_path / "d.npz")
    right = model.encode_document(TEXTS).to_dense()
    np.testing.assert_allclose(ours, right, atol=1e-5, rtol=1e-5)


def dense_of(rows, model):
    """Return weights by token as a matrix, as SparseEncoder names them."""
    found = np.zeros((len(rows), model.get_embedding_dimension()), np.float32)
    for terms, row in zip(rows, found, strict=True):
        for token, weight in terms.items():
            row[model.tokenizer.convert_tokens_to_ids(token)] = weight
    return found


@pytest.mark.parametrize("kind", ["router", "idf"])
def test_python_takes_the_route_of_queries(masked, folder, weights, tmp_path, kind):
    model = SparseEncoder(str(folder), device="cpu")
    place = folder
    if kind == "idf":
        place = shutil.copytree(masked, tmp_path / "idf")
        put_json(place / "idf.json", weights)
    right = {name: getattr(model, name)(TEXTS).to_dense() for name in ROLES}
    for options in ({}, {"prompt_name": "query"}, {"prompt_name": "document"}):
        ours = Embedder.load(place, sparse=True, backend="torch", **options)
        for name in (*ROLES, *ROLES):
            found = dense_of(getattr(ours, name)(TEXTS), model)
            np.testing.assert_allclose(found, right[name], atol=1e-5, rtol=1e-5)
    ours = Embedder.load(place, sparse=True, backend="torch")
    given = ours.encode_query(TEXTS, prompt="the ")
    asked = model.encode_query(TEXTS, prompt="the ").to_dense()
    np.testing.assert_allclose(dense_of(given, model), asked, atol=1e-5, rtol=1e-5)


def test_weights_by_token_lie_beside_a_masked_language_model(masked, folder, weights, tmp_path):
    other = tmp_path / "idf"
    shutil.copytree(masked, other)
    put_json(other / "idf.json", weights)
    query = ("--prompt-name", "query", *TEXTS, "-o")
    ours = matrix("-m", other, *query, tmp_path / "q.npz")
    assert (ours == matrix("-m", folder, *query, tmp_path / "r.npz")).all()
    documents = [
        matrix("-m", one, *TEXTS, "-o", tmp_path / f"{one.name}.npz") for one in (other, masked)
    ]
    assert (documents[0] == documents[1]).all()


def test_searching_asks_the_table(folder, tmp_path):
    (tmp_path / "c.txt").write_text("\n".join(text or "nothing" for text in TEXTS) + "\n")
    asked = matrix("-m", folder, "--prompt-name", "query", "the same", "-o", tmp_path / "q.npz")
    every = matrix("-m", folder, "-i", tmp_path / "c.txt", "-o", tmp_path / "d.npz")
    scores = (every.astype(float) @ asked[0].astype(float)).tolist()
    given = ("similar", "-q", "--sparse", "-m", folder, "--threads", 1, "-f", "jsonl")
    for more in (
        ["--corpus", tmp_path / "c.txt"],
        ["--corpus", tmp_path / "c.txt", "--vectors", tmp_path / "d.npz"],
        ["--vectors", tmp_path / "d.npz"],
    ):
        (row,) = good(*given, *more, "the same").rows
        assert row["hits"][0]["score"] == pytest.approx(max(scores), rel=1e-6)


def test_a_query_needs_no_torch(folder):
    argv = [*map(str, EMBED), "-m", str(folder), "--prompt-name", "query", "a", "-f", "jsonl"]
    code = f"import sys; from bertcli.cli.app import main; main({argv!r})"
    code += "; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True)
    assert done.returncode == 0, done.stderr


def test_an_empty_query_has_no_term(folder):
    (row,) = good(*EMBED, "-m", folder, "--prompt-name", "query", "").rows
    assert row == {"id": 0, "terms": {}, "n_tokens": 0}


def test_it_is_said_what_the_modules_are_for(folder):
    assert "--sparse" in bad("embed", "-m", folder, "a").hint
    assert "requires --sparse" in " ".join(good("inspect", folder).out.split())


def test_what_is_broken_is_one_line(folder, weights, tmp_path):
    other = tmp_path / "broken"
    shutil.copytree(folder, other)
    router = json_in(other / "router_config.json")
    del router["structure"]["query"]
    put_json(other / "router_config.json", router)
    query = (*EMBED, "-m", other, "--prompt-name", "query", "a")
    assert "no route 'query'" in bad(*query).error
    router["structure"]["query"] = ["../../evil"]
    put_json(other / "router_config.json", router)
    assert "router_config.json" in bad(*query).error
    assert bad(*EMBED, "-m", folder, "--prompt-name", "none", "a", code=2).error
