"""Tables of token vectors: StaticEmbedding of sentence-transformers, and model2vec."""

import json
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tokenizers_made
from front import (
    bad,
    call,
    environment,
    good,
    json_in,
    jsonl,
    put_json,
    report,
)
from hostile import REAL
from safetensors.numpy import load_file, save_file
from static_folders import (
    WIDTH,
    like_model2vec,
    model2vec_folder,
    rows_of,
    static_folder,
    table,
    tokenizer_of,
)

import bertcli
from bertcli.embedding.sentence_modules import write_modules_file

TEXTS = [*REAL, "", " ", "a", "a b c", "\U0001f9ff \U0010ffff 龘", "word " * 1500, "x", "the end."]
FEW = ["the end", "a book", "good a book", "a good book"]
KINDS = [*tokenizers_made.KINDS]


def vectors(folder, *options, texts=TEXTS):
    done = call("embed", "-q", "-m", folder, *options, "--", *texts)
    assert done.code == 0, done
    return np.array([row["embedding"] for row in done.rows], np.float32)


def near(found, expected, most=1e-5):
    assert found.shape == expected.shape and np.isfinite(found).all()
    assert np.abs(found - expected).max() < most * max(1, np.abs(expected).max())


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_sentence_transformers(tmp_path, kind):
    from sentence_transformers import SentenceTransformer

    folder = static_folder(tmp_path / "m", kind, more=["Normalize"] if kind == "albert" else [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(str(folder), device="cpu")
    few = [text for text in TEXTS if len(text) < 5000]  # long sums are less exact there
    near(vectors(folder, texts=few), model.encode(few))


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_model2vec(tmp_path, kind):
    folder = model2vec_folder(tmp_path / "m", kind, config={"normalize": kind == "bert"})
    near(vectors(folder), like_model2vec(folder, TEXTS))


@pytest.mark.parametrize(
    ("change", "config"),
    [
        ({"embeddings": table(700).astype(np.float16)[:, :8]}, {}),
        ({"embeddings": (table(700) * 30).astype(np.int8)}, {"normalize": True}),
        ({}, {"max_length": 7}),
        ({}, {"max_length": None}),
        ({"weights": table(5000, 3, 1)[:, 0]}, {}),
        ({"embeddings": table(9), "mapping": np.arange(5000) % 9}, {}),
        (
            {
                "embeddings": table(9).astype(np.float16),
                "mapping": np.arange(5000) % 9,
                "weights": table(5000, 3, 1)[:, 0],
            },
            {"normalize": True},
        ),
    ],
)
def test_forms_of_a_table(tmp_path, change, config):
    rows = rows_of("xlm_roberta")
    change = {
        name: np.ascontiguousarray(
            one if name == "embeddings" and "mapping" in change else one[:rows]
        )
        for name, one in change.items()
    }
    if "embeddings" in change and "mapping" not in change:
        change["embeddings"] = np.resize(
            change["embeddings"], (rows, change["embeddings"].shape[1])
        )
    folder = model2vec_folder(tmp_path / "m", "xlm_roberta", config=config, **change)
    near(vectors(folder), like_model2vec(folder, TEXTS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [{}, {"normalize": True, "max_length": 7}, {"max_length": None}])
def test_model2vec_names_no_type_of_a_model_made_from_vectors(tmp_path, kind, config):
    """As of StaticModel.save_pretrained, and of to_static_model after training."""
    folder = model2vec_folder(tmp_path / "m", kind)
    tokenizer = tokenizer_of(kind)
    tokenizer.enable_truncation(config.get("max_length") or 512)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"max_length": 512, "normalize": False, "embedding_dtype": "float32"} | config
    put_json(folder / "config.json", written)
    kinds = ["StaticEmbedding", "Normalize"] if written["normalize"] else ["StaticEmbedding"]
    write_modules_file(folder, dict(zip((".", "1_Normalize"), kinds, strict=False)))
    near(vectors(folder), like_model2vec(folder, TEXTS))
    assert report(folder)["sentence"]["static"] == "model2vec"


@pytest.mark.parity
@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation_of_a_static_model_is_that_of_its_tokenizer(tmp_path, side):
    """As of StaticEmbedding.from_model2vec: the file of the tokenizer says it, and no other."""
    from sentence_transformers import SentenceTransformer

    folder = static_folder(tmp_path / "m")
    tokenizer = tokenizer_of()
    tokenizer.enable_truncation(9, direction=side)
    tokenizer.save(str(folder / "tokenizer.json"))
    model = SentenceTransformer(str(folder), device="cpu")
    near(vectors(folder), model.encode(TEXTS))
    done = call("embed", "-m", folder, "word " * 10)
    assert "1 of 1 texts truncated to 9 tokens (11 dropped)" in done.err


def test_numbers_as_sentence_transformers_keeps_them(tmp_path):
    """In a part of the folder; with the names of model2vec, whose weights it folds in."""
    expected = vectors(static_folder(tmp_path / "a"))
    inner = static_folder(tmp_path / "b", place="0_StaticEmbedding", name="embeddings")
    assert np.array_equal(vectors(inner), expected)


@pytest.mark.parametrize("make", [static_folder, model2vec_folder])
def test_a_vector_depends_on_its_text_alone(tmp_path, make):
    folder = make(tmp_path / "m")
    dice = random.Random(3)
    words = " ".join(REAL).split()
    texts = [" ".join(dice.choices(words, k=k)) for k in [*range(1, 40), 400, 1100, 2100]] * 3
    file, out = tmp_path / "t.txt", tmp_path / "v.npy"

    def run(order, *options):
        file.write_text("".join(f"{texts[at]}\n" for at in order))
        assert (
            call("embed", "-q", "-m", folder, "-i", file, "-o", out, "--overwrite", *options).code
            == 0
        )
        return np.load(out)

    order = [*range(len(texts))]
    expected = run(order)
    for options in (("--window", 1), ("--window", 17), ("--threads", 2)):
        dice.shuffle(order)
        assert np.array_equal(run(order, *options), expected[order])
    embedder = bertcli.Embedder.load(folder)
    assert np.array_equal(embedder.encode(texts), expected)
    assert np.array_equal(embedder.encode(texts[5]), expected[5])
    manifest = json_in(tmp_path / "v.npy.manifest.json")
    assert manifest["same_bits"] is True
    assert manifest["fingerprint"]["options"]["backend"] == "static"


def test_modules_behind_the_table(tmp_path):
    folder = static_folder(tmp_path / "m", more=["Dense", "Normalize"])
    (folder / "1_Dense").mkdir()
    (folder / "1_Dense" / "config.json").write_text(
        '{"activation_function": "torch.nn.modules.activation.ReLU"}'
    )
    weight = table(5, 4)
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    plain = vectors(static_folder(tmp_path / "plain"))
    expected = np.maximum(plain @ weight.T, 0)
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-12)
    near(vectors(folder), expected)
    near(vectors(folder, "--no-normalize", "--dim", 3), np.maximum(plain @ weight.T, 0)[:, :3])


@pytest.mark.parametrize("argv", [["embed", "a"], ["similar", "a", "--corpus", "c.txt"]])
def test_torch_is_not_imported(tmp_path, argv):
    folder = model2vec_folder(tmp_path / "m")
    (tmp_path / "c.txt").write_text("a\nb\n")
    argv = [*argv, "-q", "-m", str(folder)]
    code = f"import sys; from bertcli.cli.app import main; code = main({argv!r});"
    code += "sys.exit(code or bool({'torch', 'openvino', 'transformers'} & {*sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL
    )
    assert done.returncode == 0


def test_truncation_is_counted(tmp_path):
    """Also that of characters, which model2vec cuts before any token is made."""
    folder = model2vec_folder(tmp_path / "m", config={"max_length": 4})
    long = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    done = call("embed", "-m", folder, "a", long)
    whole = len(good("tokenize", "-m", folder, "--no-special-tokens", long).ids[0])
    assert f"1 of 2 texts truncated to 4 tokens ({whole - 4} dropped)" in done.err
    assert done.rows[1]["truncated"] == whole - 4 and done.rows[1]["n_tokens"] == 4
    word = "a" + " " * 99 + "b"
    (row,) = call("embed", "-q", "-m", folder, word).rows
    assert row["truncated"] == 1
    assert "is the limit" in bad("embed", "-m", folder, "--on-truncate", "error", "a", word).error
    near(vectors(folder, texts=[long, word]), like_model2vec(folder, [long, word]))
    near(
        vectors(folder, "--max-length", 9, texts=[long]),
        like_model2vec(model2vec_folder(tmp_path / "n", config={"max_length": 9}), [long]),
    )


def test_searches_and_duplicates(tmp_path):
    folder = static_folder(tmp_path / "m")
    corpus, stored = tmp_path / "c.txt", tmp_path / "v.npy"
    corpus.write_text("the capital of France\na good book\nbook a good\n")
    for _ in range(2):
        done = good(
            "similar", "-q", "-m", folder, "--corpus", corpus, "--vectors", stored, "good book"
        )
        assert done.rows[0]["hits"][0]["row"] in (1, 2)
    found = good("duplicates", "-q", "-m", folder, corpus).rows
    assert [(row["keep"], row["rows"]) for row in found] == [(1, [2])]
    other = model2vec_folder(tmp_path / "n")
    assert "another model" in bad("similar", "-q", "-m", other, "--vectors", stored, "a").error


def test_evaluation_takes_the_vectors(tmp_path):
    folder, pairs = model2vec_folder(tmp_path / "m"), tmp_path / "p.jsonl"
    rows = [{"text": "a good book", "pair": one, "score": at} for at, one in enumerate(FEW * 8)]
    pairs.write_text(jsonl(rows))
    found = json.loads(good("evaluate", pairs, "-m", folder, "--json").out)
    assert "spearman" in json.dumps(found)


def test_a_run_is_resumed(tmp_path):
    folder, out = static_folder(tmp_path / "m"), tmp_path / "o.npy"
    assert call("embed", "-q", "-m", folder, *TEXTS, "-o", out).code == 0
    assert call("embed", "-q", "-m", folder, *TEXTS, "-o", out, "--resume").code == 0
    weights = folder / "model.safetensors"
    save_file({name: one * 2 for name, one in load_file(weights).items()}, weights)
    assert "weights" in bad("embed", "-q", "-m", folder, *TEXTS, "-o", out, "--resume").err


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--layers", "0"], "--layers"),
        (["--layer-combine", "sum"], "--layer-combine"),
        (["--pooling", "cls"], "--pooling cls"),
        (["--token-vectors"], "--token-vectors or --word-vectors"),
        (["--word-vectors", "mean"], "--token-vectors or --word-vectors"),
        (["--dtype", "int8"], "--dtype int8"),
        (["--device", "cuda"], "--device cuda"),
        (["--sparse"], "--sparse"),
    ],
)
def test_choices_without_a_meaning(tmp_path, options, what):
    done = bad("embed", "-m", model2vec_folder(tmp_path / "m"), "a", *options, code=2)
    assert done.error.startswith(f"{what} is not possible: this model is a table")


@pytest.mark.parametrize(
    "argv",
    [
        ["classify", "a"],
        ["tag", "a"],
        ["fill-mask", "a [MASK]"],
        ["next-sentence", "a", "b"],
        ["score", "a"],
        ["score", "a", "--pair", "b"],
        ["inspect", "--attention", "a"],
    ],
)
@pytest.mark.parametrize("make", [static_folder, model2vec_folder])
def test_commands_that_need_an_encoder(tmp_path, make, argv):
    said = bad(*argv, "-m", make(tmp_path / "m")).error
    assert "a table of token vectors without an encoder" in said


@pytest.mark.parametrize("frozen", [(), ("--frozen",), ("--full",)])
def test_training_needs_an_encoder(tmp_path, frozen):
    data = tmp_path / "d.jsonl"
    rows = [{"text": "good", "label": "a"}, {"text": "bad", "label": "b"}] * 9
    data.write_text(jsonl(rows))
    folder = static_folder(tmp_path / "m")
    done = call("train", data, "-o", tmp_path / "o", "-m", folder, "--eval-fraction", 0, *frozen)
    assert (done.code, done.out) == (1, "")
    assert "a table of token vectors without an encoder" in done.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": table(5)}, "has id 5, but the model has 5 word embeddings"),
        (
            {"embeddings": table(5), "weights": np.ones(300, np.float32)},
            "has id 5, but the model has 5 word embeddings",
        ),
        ({"embeddings": table(5)[0]}, "embeddings is no table"),
        (
            {"embeddings": table(5), "mapping": np.arange(5000)},
            "names rows that embeddings does not",
        ),
    ],
)
def test_tables_that_do_not_fit(tmp_path, change, message):
    assert message in bad("embed", "-m", model2vec_folder(tmp_path / "m", **change), "a").error


def test_a_folder_without_a_table(tmp_path):
    folder = static_folder(tmp_path / "m", name="words")
    assert "no table of token vectors" in bad("embed", "-m", folder, "a").error
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in bad("embed", "-m", folder, "a").error
    other = static_folder(tmp_path / "n", more=["CNN"])
    assert "unsupported module CNN" in bad("embed", "-m", other, "a").error


@pytest.mark.parametrize("place", ["", "0_StaticEmbedding"])
def test_inspect(tmp_path, place):
    folder = static_folder(tmp_path / "m", place=place, more=["Normalize"])
    shown = " ".join(good("inspect", folder).out.split())
    assert "name StaticEmbedding; library sentence-transformers" in shown
    assert f"dimensions {WIDTH}" in shown and "pooling mean; normalize yes" in shown
    said = json.loads(good("inspect", folder, "--json", "--tensors", "--verify").out)
    assert said["architecture"]["name"] == "StaticEmbedding" and said["warnings"] == []
    assert said["table"] == {"tokens": rows_of("bert"), "dimensions": WIDTH}
    assert said["tensors"][0]["name"] == "embedding.weight"
    assert [check["ok"] for check in said["verify"]] == [True, None, True]
    assert "BertNormalizer" in good("inspect", folder, "--tokenizer").out
    assert "an encoder" in bad("inspect", folder, "--tree").error
    weights = folder / place / "model.safetensors"
    broken = load_file(weights)["embedding.weight"][:9]
    broken[3, 3] = np.nan
    save_file({"embedding.weight": broken}, weights)
    assert "but only 9 word embeddings" in good("inspect", folder).out
    done = call("inspect", folder, "--verify")
    assert done.code == 1 and "NaN or infinite: embedding.weight (1)" in done.out
