"""`bertcli embed --sparse` against sentence-transformers' SparseEncoder, and its files."""

import numpy as np
import pytest
import scipy.sparse
import torch
import transformers
from front import (
    bad,
    call,
    good,
    json_in,
    jsonl,
    rows_in,
)
from pyarrow.parquet import read_table
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling
from task_models import texts
from term_models import TINY, sparse

from bertcli import Embedder

pytestmark = pytest.mark.parity
WORDS = 347  # of its vocabulary
TEXTS = texts(12, 70)  # of which some are longer than the model takes
SPARSE = ("embed", "-q", "--sparse", "--threads", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return sparse(tmp_path_factory.mktemp("sparse"))


def saved(folder, place, how="max", activation="relu", **config):
    """A SparseEncoder over a folder, which it has written to another place."""
    found = SparseEncoder(str(folder), device="cpu")
    modules = [found[0], SpladePooling(how, activation_function=activation)]
    found = SparseEncoder(modules=modules, device="cpu", **config)
    found.save(str(place))
    return found


def theirs(model, some):
    dense = model.encode(some, convert_to_tensor=True, convert_to_sparse_tensor=False, batch_size=4)
    return dense.numpy()


def dense(path):
    return scipy.sparse.load_npz(path).toarray()


def close(ours, right):
    assert ours.shape == right.shape
    assert np.abs(ours - right).max() <= 1e-5 * max(1, np.abs(right).max())


@pytest.mark.parametrize(
    ("how", "activation"), [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu")]
)
def test_weights_are_those_of_sentence_transformers(engine, folder, tmp_path, how, activation):
    model = saved(folder, tmp_path / "m", how, activation)
    good(*SPARSE, "-m", tmp_path / "m", "-o", tmp_path / "w.npz", *TEXTS)
    close(dense(tmp_path / "w.npz"), theirs(model, TEXTS))


def test_a_bare_masked_language_model_takes_the_maximum(folder, tmp_path):
    good(*SPARSE, "-m", folder, "-o", tmp_path / "w.npz", *TEXTS)
    close(dense(tmp_path / "w.npz"), theirs(SparseEncoder(str(folder), device="cpu"), TEXTS))
    good(*SPARSE, "-m", folder, "--pooling", "sum", "-o", tmp_path / "sum.npz", *TEXTS)
    assert (dense(tmp_path / "sum.npz") >= dense(tmp_path / "w.npz") - 1e-6).all()


def test_the_folder_says_how_many_terms_there_are(folder, tmp_path):
    model = saved(folder, tmp_path / "m", max_active_dims=7)
    good(*SPARSE, "-m", tmp_path / "m", "-o", tmp_path / "w.npz", *TEXTS)
    close(dense(tmp_path / "w.npz"), theirs(model, TEXTS))
    rows = good(*SPARSE, "-m", tmp_path / "m", "--top-terms", 3, *TEXTS).rows
    assert {len(row["terms"]) for row in rows} == {3}


def test_all_formats_hold_the_same_numbers(folder, tmp_path):
    file = tmp_path / "t.jsonl"
    lines = [{"id": f"t{at}", "text": text, "kind": at} for at, text in enumerate(TEXTS)]
    file.write_text(jsonl(lines))
    given = (*SPARSE, "-m", folder, "-i", file, "--top-terms", 50)
    for form in ("npz", "parquet", "jsonl"):
        good(*given, "-o", tmp_path / f"w.{form}", *(["--keep-fields", "kind"] * (form != "npz")))
    matrix = scipy.sparse.load_npz(tmp_path / "w.npz")
    assert matrix.has_canonical_format and matrix.dtype == np.float32
    assert list(np.load(tmp_path / "w.npz")["ids"]) == [line["id"] for line in lines]
    table = read_table(tmp_path / "w.parquet").to_pylist()
    rows = rows_in(tmp_path / "w.jsonl")
    streamed = good(*given, "--keep-fields", "kind", "-f", "jsonl")
    assert streamed.stdout == (tmp_path / "w.jsonl").read_bytes()
    names = transformers.AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens
    for at, (row, cell) in enumerate(zip(rows, table, strict=True)):
        part = matrix[at]
        assert list(row)[:3] == ["id", "terms", "n_tokens"]
        assert (row["id"], row["kind"], cell["id"], cell["kind"]) == (f"t{at}", at, f"t{at}", at)
        assert cell["indices"] == part.indices.tolist()
        assert cell["values"] == part.data.tolist()
        assert list(row["terms"].values()) == sorted(row["terms"].values(), reverse=True)
        weights = dict(zip(names(part.indices.tolist()), part.data, strict=True))
        assert {name: np.float32(value) for name, value in row["terms"].items()} == weights
        assert cell["n_tokens"] == row["n_tokens"]


def test_ids_and_fields_that_are_not_there_are_not_written(folder, tmp_path):
    good(*SPARSE, "-m", folder, "-o", tmp_path / "w.npz", "a", "b")
    assert "ids" not in np.load(tmp_path / "w.npz")
    manifest = json_in(tmp_path / "w.npz.manifest.json")
    stored = int(scipy.sparse.load_npz(tmp_path / "w.npz").nnz)
    assert (manifest["rows"], manifest["terms"], manifest["shape"]) == (2, stored, [2, WORDS])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.npz", "w.npz.manifest.json"]


@pytest.mark.parametrize("form", ["npz", "parquet", "jsonl"])
def test_no_texts_make_an_empty_file(folder, tmp_path, form):
    out = tmp_path / f"w.{form}"
    good(*SPARSE, "-m", folder, "-o", out, stdin=b"")
    if form == "npz":
        assert scipy.sparse.load_npz(out).shape == (0, WORDS)
    elif form == "parquet":
        assert read_table(out).column_names == ["id", "n_tokens", "truncated", "indices", "values"]
    else:
        assert out.read_bytes() == b""


@pytest.mark.parametrize("how", ["max", "sum"])
def test_the_same_bits_in_any_batch(folder, how):
    options = {"sparse": True, "pooling": how, "backend": "openvino", "threads": 1}
    together = Embedder.load(folder, **options).encode(TEXTS)
    assert Embedder.load(folder, batch_tokens=300, **options).encode(TEXTS) == together
    alone = Embedder.load(folder, batch_tokens=1, **options)
    assert alone.encode(TEXTS[::-1])[::-1] == together


@pytest.mark.parametrize("how", ["max", "sum"])
def test_windows_of_a_long_text_are_merged(engine, folder, tmp_path, how):
    long = " ".join(TEXTS[:3])
    given = (*SPARSE, "-m", folder, "--on-truncate", "window", "--max-length", 20)
    given = (*given, "--pooling", how)
    good(*given, long, TEXTS[1], "-o", tmp_path / "w.npz")
    ids = good("tokenize", "-q", "-m", folder, long, "--no-special-tokens").ids[0]
    ((first, last),) = good("tokenize", "-m", folder, "").ids
    parts = [[first, *ids[at : at + 18], last] for at in range(0, len(ids), 18)]
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = torch.cat([model(torch.tensor([part])).logits[0] for part in parts])
    weights = logits.relu().log1p()
    merged = weights.amax(0) if how == "max" else weights.sum(0)
    close(dense(tmp_path / "w.npz")[:1], merged[None].numpy())


def test_prompts_are_read(folder, tmp_path):
    model = saved(folder, tmp_path / "m", prompts={"query": "find: ", "document": ""})
    good(*SPARSE, "-m", tmp_path / "m", "--prompt-name", "query", "-o", tmp_path / "w.npz", "a b")
    close(dense(tmp_path / "w.npz"), model.encode_query(["a b"]).to_dense().numpy())


def test_a_table_shows_the_heaviest_terms(folder):
    row = good(*SPARSE, "-m", folder, TEXTS[0], "--top-terms", 9).rows[0]
    shown = good(*SPARSE, "-m", folder, TEXTS[0], "-f", "table", COLUMNS="160").out
    first, weight = next(iter(row["terms"].items()))
    assert f"{first} {weight:.2f}" in shown


def test_python_gives_weights_by_token(folder):
    rows = good(*SPARSE, "-m", folder, "a b", "c", "--backend", "openvino").rows
    model = Embedder.load(folder, sparse=True, backend="openvino")
    assert model.encode(["a b", "c"]) == [row["terms"] for row in rows]
    assert model.encode("c", top_terms=2) == dict([*rows[1]["terms"].items()][:2])


@pytest.mark.parametrize("form", ["npz", "jsonl", "parquet"])
def test_an_interrupted_run_is_resumed(folder, tmp_path, form):
    from unittest import mock

    from bertcli.runs.run_folder import RunWriter

    whole, out = tmp_path / f"whole.{form}", tmp_path / f"w.{form}"
    given = (*SPARSE, "-m", folder, "--window", 4, "--threads", 1, *TEXTS)
    good(*given, "-o", whole)
    commit, left = RunWriter.commit, [3]

    def stop(self, state):
        commit(self, state)
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with mock.patch.object(RunWriter, "commit", stop):
        assert call(*given, "-o", out).code == 130
    good(*given, "-o", out, "--resume")
    assert out.read_bytes() == whole.read_bytes()
    assert bad(*given, "-o", out, "--resume", "--top-terms", 5).error


@pytest.mark.parametrize(
    "more",
    [
        ["--pooling", "mean"],
        ["--layers", "-2"],
        ["--normalize"],
        ["--dim", "8"],
        ["--token-vectors"],
        ["--word-vectors", "first"],
        ["--precision", "int8"],
        ["--on-truncate", "chunk"],
        ["-o", "x.npy"],
        ["-o", "x.csv"],
        ["--update", "-o", "x.npz"],
        ["--keep-fields", "a", "-o", "x.npz"],
        ["--engine", "ray", "-i", "a", "-o", "b"],
    ],
)
def test_what_it_cannot_be_combined_with(folder, more, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [] if "-i" in more else ["text"]
    assert bad(*SPARSE, "-m", folder, *texts, *more, code=2).error
    assert [*tmp_path.iterdir()] == []


def test_a_dense_model_is_refused(default_folder):
    assert "Pooling" in bad(*SPARSE, "-m", default_folder, "a").error
    assert "cls.predictions" in bad(*SPARSE, "-m", TINY, "a").error


def test_a_sparse_model_says_how_it_is_used(folder, tmp_path):
    saved(folder, tmp_path / "m")
    assert "--sparse" in bad("embed", "-m", tmp_path / "m", "a").hint
