"""`bertcli embed --token-vectors` and `--word-vectors`, against the libraries and by hand."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from front import (
    PACKAGE,
    call,
    good,
    json_in,
    rows_in,
)
from vector_files import vectors_in

from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL

TINY = str(PACKAGE / "samples" / "tiny-bert")
RECORDS = str(PACKAGE / "samples" / "records.jsonl")
TEXTS = [
    *("I love NLP!", "", "  ", "Don't unfathomably 世界 𝔘nify", "안녕하세요 🎉 ok"),
    *("☃ snow ☃", "Straße café", "the cat sat on the unfathomably large mat " * 40),
]


def near(found, expected, limit=1e-5):
    found, expected = np.array(found, np.float32), np.asarray(expected)
    return found.size == expected.size == 0 or (
        found.shape == expected.shape and float(np.abs(found - expected).max()) < limit
    )


def rows(*argv, **options):
    done = call("embed", "-q", *argv, **options)
    assert (done.code, done.err) == (0, ""), done
    return done.rows


@pytest.fixture(scope="module")
def reference():
    """Transformers' hidden states of one text: [layers, tokens, D], and its encoding."""
    from transformers import AutoModel, AutoTokenizer

    folder = find_model(DEFAULT_MODEL, files=MODEL_FILES).path
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )

    def states(text, pair=None, **options):
        settings = {"max_length": 256, "truncation": True, **options}
        encoding = tokenizer(text, pair, return_tensors="pt", **settings)
        with torch.no_grad():
            found = model(**encoding, output_hidden_states=True).hidden_states
        return torch.stack(found)[:, 0].numpy(), encoding

    return states


@pytest.mark.parity
@pytest.mark.parametrize("prompt", ["", "query: "])
def test_token_vectors_are_those_of_sentence_transformers(prompt):
    from sentence_transformers import SentenceTransformer

    folder = find_model(DEFAULT_MODEL, files=MODEL_FILES).path
    model = SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(TEXTS, output_value="token_embeddings", prompt=prompt or None)
    found = rows("--token-vectors", "--prompt", prompt, "--", *TEXTS)
    for row, theirs, text in zip(found, expected, TEXTS, strict=True):
        assert near(row["vectors"], theirs)
        assert len(row["tokens"]) == len(row["offsets"]) == row["n_tokens"] == len(theirs)
        assert (
            model.tokenizer.convert_tokens_to_ids(row["tokens"])
            == model.tokenizer(prompt + text, truncation=True, max_length=256).input_ids
        )
    assert [row["n_tokens"] for row in found[1:3]] == [2 + 2 * bool(prompt)] * 2
    assert found[-1]["truncated"] > 50


@pytest.mark.parity
@pytest.mark.parametrize("how", ["first", "last", "mean", "max"])
def test_word_vectors_are_a_loop_over_the_hidden_states(how, reference):
    for row, text in zip(rows("--word-vectors", how, "--", *TEXTS), TEXTS, strict=True):
        states, encoding = reference(text)
        words = {}
        for at, number in enumerate(encoding.word_ids(0)):
            if number is not None:
                words.setdefault(number, []).append(at)
        assert len(row["words"]) == len(row["vectors"]) == len(words)
        for vector, span, word, at in zip(
            row["vectors"], row["offsets"], row["words"], words.values(), strict=True
        ):
            last = states[-1][at]
            by = {"first": last[0], "last": last[-1], "mean": last.mean(0), "max": last.max(0)}
            assert near(vector, by[how])
            assert text[slice(*span)] == word


@pytest.mark.parity
def test_layers_dimensions_length_and_pairs(reference):
    states, encoding = reference("How old are you?", "Unfathomably old.")
    argv = ("--token-vectors", "How old are you?", "--pair", "Unfathomably old.")
    (row,) = rows(*argv, "--layers", "0,-2", "--layer-combine", "stack", "--dim", "5")
    assert near(row["vectors"], states[[0, -2]].swapaxes(0, 1)[..., :5])
    assert row["sequence_ids"] == encoding.sequence_ids(0)
    (row,) = rows(*argv, "--layers", "1,2", "--layer-combine", "mean", "--normalize")
    mean = states[1:3].mean(0)
    assert near(row["vectors"], mean / np.linalg.norm(mean, axis=-1, keepdims=True))
    (row,) = rows(*argv[1:], "--word-vectors", "last", "--no-special-tokens")
    assert row["words"] == ["How", "old", "are", "you", "?", "Unfathomably", "old", "."]
    assert row["sequence_ids"] == [0] * 5 + [1] * 3
    (row,) = rows("--word-vectors", "mean", "--pre-split", "Don't stop")
    assert (row["words"], row["offsets"]) == (["Don't", "stop"], [[0, 5], [0, 4]])
    states, encoding = reference(["Don't", "stop"], is_split_into_words=True)
    own = [at for at, word in enumerate(encoding.word_ids(0)) if word == 0]
    assert near(row["vectors"][0], states[-1][own].mean(0))


def test_none_is_the_pooling_of_token_vectors():
    argv = ("-m", TINY, "I love NLP!", "")
    assert rows("--pooling", "none", *argv) == rows("--token-vectors", *argv)
    (row,) = rows("-m", TINY, "--token-vectors", "--no-special-tokens", "ok")
    assert row["tokens"] == ["o", "##k"]
    empty = rows("-m", TINY, "--token-vectors", "--no-special-tokens", "", "ok")[0]
    assert (empty["tokens"], empty["vectors"], empty["n_tokens"]) == ([], [], 0)


def test_each_token_of_a_long_text_comes_from_the_window_that_shows_most_around_it():
    text = "one two three four five six seven eight nine"
    argv = ("-m", TINY, "--token-vectors")
    (whole,) = rows(*argv, text)
    cut = ("--max-length", "12", "--stride", "6")
    (row,) = rows(*argv, text, *cut, "--on-truncate", "window")
    assert row["tokens"] == whole["tokens"]
    assert row["offsets"] == whole["offsets"]
    pieces = whole["tokens"][1:-1]
    parts = [range(at, min(at + 10, len(pieces))) for at in range(0, len(pieces) - 6, 4)]
    assert len(parts) > 3
    encoded = good("tokenize", "-m", TINY, text, "--overflowing", *cut)
    windows = [states_of(row["input_ids"]) for row in encoded.rows]
    assert [len(window) - 2 for window in windows] == [len(part) for part in parts]
    for place in range(len(pieces)):
        nearer = {
            number: min(place - part[0], part[-1] - place)
            for number, part in enumerate(parts)
            if place in part
        }
        best = max(nearer, key=lambda number: (nearer[number], -number))
        expected = windows[best][1 + place - parts[best][0]]
        assert near(row["vectors"][1 + place], expected)
    assert near(row["vectors"][0], windows[0][0])
    assert near(row["vectors"][-1], windows[0][-1])
    (words,) = rows("-m", TINY, "--word-vectors", "mean", text, *cut, "--on-truncate", "window")
    assert words["words"] == text.split()


def states_of(ids):
    """The last hidden states of one sequence of ids, by transformers."""
    from transformers import BertModel

    model = BertModel.from_pretrained(TINY).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()


@pytest.mark.parametrize("what", ["--token-vectors", "--word-vectors=mean"])
@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_arrays_have_an_index(suffix, what, tmp_path):
    argv = ("-m", TINY, what, "-i", RECORDS, "--keep-fields", "label")
    expected = rows(*argv)
    out, index = tmp_path / f"out.{suffix}", tmp_path / f"out.{suffix}.index.jsonl"
    good("embed", "-q", *argv, "-o", out)
    found, lines = vectors_in(out), rows_in(index)
    at = 0
    for row, line in zip(expected, lines, strict=True):
        assert list(line)[:3] == ["id", "start", "stop"]
        assert line["start"] == at
        at = line["stop"]
        assert np.array_equal(found[line["start"] : at], np.array(row.pop("vectors"), np.float32))
        assert {key: line[key] for key in row} == row
        assert len(line) == len(row) + 2
    assert found.shape == (at, 32)
    manifest = json_in(tmp_path / f"out.{suffix}.manifest.json")
    assert (manifest["rows"], manifest["shape"]) == (at, [at, 32])
    assert manifest["counts"]["records"] == len(expected)
    for path, key in ((out, "sha256"), (index, "index_sha256")):
        assert manifest[key] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert {path.name for path in tmp_path.iterdir()} == {
        *(out.name, index.name, f"{out.name}.manifest.json")
    }


@pytest.mark.parametrize("precision", ["float32", "float16", "ubinary"])
def test_parquet_has_lists(precision, tmp_path):
    from pyarrow.parquet import read_table

    argv = ("-m", TINY, "--word-vectors", "max", "--precision", precision, "-i", RECORDS)
    good("embed", "-q", *argv, "-o", tmp_path / "out.parquet")
    table, expected = read_table(tmp_path / "out.parquet"), rows(*argv)
    names = ["id", "n_tokens", "truncated", "words", "offsets", "sequence_ids", "vectors"]
    assert table.column_names == names
    assert str(table.schema.field("words").type) == "list<element: string>"
    assert table.schema.field("vectors").type.value_type.list_size == (
        4 if precision == "ubinary" else 32
    )
    for row, theirs in zip(table.to_pylist(), expected, strict=True):
        for name in ("words", "offsets", "sequence_ids"):
            assert row[name] == theirs.get(name)
        assert np.array_equal(row["vectors"], np.array(theirs["vectors"], precision_of(precision)))


def precision_of(name):
    return {"ubinary": "uint8"}.get(name, name)


@pytest.mark.parametrize("suffix", ["npy", "jsonl", "parquet"])
def test_texts_without_words_make_a_file(suffix, tmp_path):
    out = tmp_path / f"out.{suffix}"
    good("embed", "-q", "-m", TINY, "--word-vectors", "mean", "", " ", "-o", out)
    assert json_in(Path(f"{out}.manifest.json"))["shape"] == [0, 32]


@pytest.mark.parity
@pytest.mark.parametrize("modes", [("mean", "max"), ("max", "mean"), ("lasttoken", "cls", "mean")])
def test_joined_poolings_are_in_the_order_of_sentence_transformers(modes):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = find_model(DEFAULT_MODEL, files=MODEL_FILES).path
    model = SentenceTransformer(
        modules=[Transformer(str(folder)), Pooling(384, pooling_mode=modes)], device="cpu"
    )
    expected = model.encode(TEXTS[:3])
    found = rows("--pooling", "+".join(modes), "--no-normalize", "--", *TEXTS[:3])
    assert near([row["embedding"] for row in found], expected)


@pytest.mark.parametrize("precision", ["float16", "binary", "ubinary"])
def test_a_stream_has_the_precisions_that_need_no_ranges(precision, tmp_path):
    argv = ("embed", "-q", "-m", TINY, "--precision", precision, "-i", RECORDS)
    for suffix in ("jsonl", "csv"):
        good(*argv, "-o", tmp_path / f"out.{suffix}")
        streamed = call(*argv, "-f", suffix).stdout
        assert streamed == (tmp_path / f"out.{suffix}").read_bytes()
