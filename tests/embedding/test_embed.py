"""`bertcli embed` against sentence-transformers and transformers, and against itself."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from front import (
    bad,
    call,
    json_in,
    on_torch,
    struck,
)
from vector_files import vectors_in

from bertcli.cli.app import main
from bertcli.embedding.embed_run import RecordVectors
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "samples" / "tiny-bert")
SAMPLES = (ROOT / "samples" / "texts.txt").read_text("utf-8").splitlines()


@pytest.fixture(scope="module")
def folder():
    return find_model("all-MiniLM-L6-v2", files=MODEL_FILES)


@pytest.fixture(scope="module")
def texts():
    """Texts of every length, far over the limit too, in several scripts, some empty or twice."""
    random.seed(3)
    words = " ".join(SAMPLES).split()
    found = [
        " ".join(random.choices(words, k=random.choice((1, 3, 9, 40, 300)))) for _ in range(30)
    ]
    return [*SAMPLES, "", *found, *found[:5], " "]


def vectors_of(embedder, texts):
    run = RecordVectors(embedder, texts)
    run.execute()
    return run.vectors


@pytest.fixture(scope="module")
def plain(folder):
    """The model as it is, opened once: no test changes it."""
    return RecordEmbedder.open(folder, on_torch())


@pytest.fixture(scope="module")
def whole(plain, texts):
    """The vectors of the texts."""
    return vectors_of(plain, texts)


def rows(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parity
def test_vectors_are_those_of_sentence_transformers(folder, texts, whole):
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder.path), device="cpu").encode(texts)
    assert np.abs(whole - expected).max() < 1e-5
    assert (whole * expected).sum(1).min() > 0.999999


@pytest.fixture(scope="module")
def hidden_states(folder):
    """Those of transformers, of "I love NLP!"."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder.path).eval()
    tokens = AutoTokenizer.from_pretrained(folder.path)("I love NLP!", return_tensors="pt")
    with torch.no_grad():
        return model(**tokens, output_hidden_states=True).hidden_states


@pytest.mark.parity
@pytest.mark.parametrize("layers", [(-1,), (0,), (3,), (-2, -1), (0, 6)])
@pytest.mark.parametrize("combine", ["mean", "sum", "concat", "stack"])
def test_layers_are_the_hidden_states_of_transformers(folder, hidden_states, layers, combine):
    states = [hidden_states[layer].mean(1)[0] for layer in layers]
    expected = {
        "mean": lambda: torch.stack(states).mean(0),
        "sum": lambda: torch.stack(states).sum(0),
        "concat": lambda: torch.cat(states),
        "stack": lambda: torch.stack(states),
    }[combine]()
    options = on_torch(layers=layers, layer_combine=combine, normalize=False)
    found = vectors_of(RecordEmbedder.open(folder, options), ["I love NLP!"])[0]
    assert np.abs(found - expected.numpy()).max() < 1e-5


@pytest.mark.parametrize("options", [{"batch_tokens": 64}, {"window": 7}, {"batch_tokens": 9999}])
def test_a_vector_does_not_depend_on_batches_and_order(folder, texts, whole, options):
    other = vectors_of(RecordEmbedder.open(folder, on_torch(**options)), texts[::-1])[::-1]
    assert np.abs(whole - other).max() < 1e-6


def test_a_stream_is_jsonl(capsys):
    assert main(["embed", "-m", TINY, "i love nlp", "a b c d e", "--max-length", "5"]) == 0
    captured = capsys.readouterr()
    first, second = rows(captured.out)
    assert list(first) == ["id", "embedding", "n_tokens"]
    assert (first["id"], first["n_tokens"], len(first["embedding"])) == (0, 5, 32)
    assert (second["id"], second["truncated"]) == (1, 2)
    assert "1 of 2 texts truncated to 5 tokens (2 dropped)" in captured.err
    assert "pooling: mean" in captured.err


@pytest.mark.parametrize("suffix", ["npy", "jsonl", "csv", "npz", "safetensors", "parquet"])
def test_files_hold_the_vectors_of_the_stream(suffix, tmp_path, capsys):
    source = ["embed", "-q", "-m", TINY, "-i", str(ROOT / "samples" / "records.jsonl")]
    assert main(source) == 0
    expected = rows(capsys.readouterr().out)
    out = tmp_path / f"out.{suffix}"
    assert main([*source, "-o", str(out)]) == 0
    found = np.float32(vectors_in(out))
    assert np.array_equal(found, np.array([row["embedding"] for row in expected], np.float32))
    manifest = json_in(tmp_path / f"out.{suffix}.manifest.json")
    assert (manifest["shape"], manifest["counts"]["records"]) == ([3, 32], 3)
    index = [f"{out.name}.index.jsonl"] if suffix in ("npy", "safetensors") else []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        out.name,
        *index,
        f"{out.name}.manifest.json",
    ]


@pytest.fixture
def many(tmp_path):
    random.seed(5)
    words = ["the", "quick", "brown", "fox", "paris", "is", "nlp", "a", "b", "c", "1", "2", "3"]
    file = tmp_path / "many.txt"
    lines = (" ".join(random.choices(words, k=random.randint(1, 20))) for _ in range(3000))
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def arguments(source, out, *more):
    return ["embed", "-m", TINY, "-i", source, "-o", out, "--window", 100, "-q", *more]


def test_ctrl_c_leaves_what_can_be_resumed(many, tmp_path, usual_engine):
    out = tmp_path / "out.npy"
    assert struck("SIGINT", *arguments(many, out)) == 130
    assert not out.exists()
    assert "--resume continues it" in bad(*arguments(many, out)).err
    assert "pooling" in bad(*arguments(many, out, "--resume", "--pooling", "cls")).err
    lines = many.read_text().splitlines()
    many.write_text("\n".join(["changed", *lines[1:]]) + "\n")
    changed = bad(*arguments(many, out, "--resume"))
    assert "cannot resume a different run: inputs." in changed.err
    many.write_text("\n".join(lines) + "\n")
    assert call(*arguments(many, out, "--resume")).code == 0
    assert np.load(out).shape == (3000, 32)
