"""`bertcli.Embedder` from Python: the vectors of `bertcli embed`, its options and its errors."""

import logging
import re
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from front import (
    PACKAGE,
    TINY,
    call,
    contents,
    good,
    jsonl,
)

from bertcli import BertcliError, Embedder, Record
from bertcli.errors import InputError, ModelError, OutputError, UsageError

TEXTS = (PACKAGE / "samples" / "texts.txt").read_text().splitlines()


pytestmark = pytest.mark.usefixtures("usual_engine")


@pytest.fixture(scope="module")
def embedder():
    return Embedder.load(TINY)


def written(tmp_path, lines, *options):
    """Return what the command writes for these records."""
    given, out = tmp_path / "given.jsonl", tmp_path / "out.npy"
    given.write_text(jsonl(lines))
    good("embed", "-q", "-m", TINY, "-i", given, "-o", out, "--overwrite", *options)
    return np.load(out)


OPTIONS = [
    ({}, ()),
    ({"pooling": "cls"}, ("--pooling", "cls")),
    ({"pooling": "mean+max", "normalize": True}, ("--pooling", "mean+max", "--normalize")),
    ({"layers": -2}, ("--layers", "-2")),
    (
        {"layers": (0, -1), "layer_combine": "concat", "dim": 7},
        ("--layers", "0,-1", "--layer-combine", "concat", "--dim", "7"),
    ),
    (
        {"layers": "1,-1", "layer_combine": "stack"},
        ("--layers", "1,-1", "--layer-combine", "stack"),
    ),
    ({"prompt": "so: ", "special_tokens": False}, ("--prompt", "so: ", "--no-special-tokens")),
    (
        {"max_length": 6, "on_truncate": "window", "stride": 1},
        ("--max-length", "6", "--on-truncate", "window", "--stride", "1"),
    ),
    ({"precision": "int8"}, ("--precision", "int8")),
    ({"precision": "ubinary"}, ("--precision", "ubinary")),
]


@pytest.mark.parametrize(("options", "argv"), OPTIONS)
def test_the_vectors_are_those_of_the_command_to_the_last_bit(tmp_path, embedder, options, argv):
    right = written(tmp_path, [{"text": text} for text in TEXTS], *argv)
    for found in (
        embedder.encode(TEXTS, **options),
        Embedder.load(TINY, **options).encode(TEXTS),
    ):
        assert found.dtype == right.dtype
        assert np.array_equal(found, right)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_a_window_weighs_as_much_as_its_tokens(embedder, special_tokens):
    words = ["love"] * 30
    added = 2 * special_tokens
    options = {"normalize": False, "special_tokens": special_tokens}
    cut = {"max_length": 8 + added, "on_truncate": "window", "stride": 0}
    sizes = [8, 8, 8, 6]
    windows = embedder.encode([" ".join(words[:size]) for size in sizes], **options)
    expected = np.average(windows, axis=0, weights=sizes)
    found = embedder.encode(" ".join(words), **options, **cut)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_pairs_words_and_records(tmp_path, embedder):
    lines = [{"text": "I love", "pair": "NLP!"}, {"text": "a"}, {"text": "", "pair": "b"}]
    right = written(tmp_path, lines)
    given = [("I love", "NLP!"), "a", ["", "b"]]
    assert np.array_equal(embedder.encode(given), right)
    records = [Record("I love", "NLP!"), Record("a"), Record("", "b")]
    assert np.array_equal(embedder.encode(records), right)
    words = embedder.encode([["I", "love"], (["I", "love"], ["NLP!"])], pre_split=True)
    assert np.array_equal(words, embedder.encode(["I love", ("I love", "NLP!")]))


def test_a_single_text_is_a_single_vector(embedder):
    whole = embedder.encode(TEXTS)
    assert embedder.encode(TEXTS[0]).shape == whole[0].shape
    assert np.array_equal(embedder.encode(TEXTS[0]), whole[0])
    assert np.array_equal(embedder.encode(Record(TEXTS[0])), whole[0])


def test_no_text_has_no_vector(embedder):
    assert embedder.encode([]).shape == (0, 32)
    assert embedder.encode(iter([]), dim=3).shape == (0, 3)
    assert embedder.encode([], token_vectors=True) == []


@pytest.mark.parametrize(
    "options", [{"token_vectors": True}, {"pooling": "none"}, {"word_vectors": "mean", "dim": 4}]
)
def test_a_vector_for_each_token_or_word(embedder, options):
    (word,) = [f"--{name.replace('_', '-')}" for name in options if name != "dim"]
    argv = [] if options.get("token_vectors") else [options.get("pooling") or "mean"]
    more = ["--dim", 4] if "dim" in options else []
    rows = good("embed", "-q", "-m", TINY, word, *argv, *more, *TEXTS).rows
    found = embedder.encode(TEXTS, **options)
    assert [len(some) for some in found] == [len(row["vectors"]) for row in rows]
    for some, row in zip(found, rows, strict=True):
        assert np.array_equal(some, np.array(row["vectors"], np.float32).reshape(some.shape))


def test_a_vector_for_each_chunk(embedder):
    texts = ["I love NLP! It is raining. Is it?", "", "a", "the dog " * 9]
    options = ("--max-length", 8, "--on-truncate", "chunk", "--at", "sentence", "--overlap", 1)
    rows = good("embed", "-q", "-m", TINY, *options, *texts, "-f", "jsonl").rows
    how = {"max_length": 8, "on_truncate": "chunk", "at": "sentence", "overlap": 1}
    found = embedder.encode(texts, **how)
    assert [len(some) for some in found] == [
        sum(row["id"] == at for row in rows) for at in range(len(texts))
    ]
    right = np.array([row["embedding"] for row in rows], np.float32)
    assert np.array_equal(np.concatenate(found), right)
    assert embedder.encode([], on_truncate="chunk") == []
    with pytest.raises(InputError, match="a list of words cannot be divided into chunks"):
        embedder.encode([["the", "dog"]], on_truncate="chunk", pre_split=True)


def test_any_iterable_is_read_in_windows(embedder):
    taken = []

    def many():
        for number in range(2500):
            taken.append(number)
            yield f"text {number % 7} ünd"

    found = Embedder.load(str(TINY), window=100).encode(many())
    assert len(found) == len(taken) == 2500
    assert np.array_equal(found[:7], found[7:14])
    assert np.array_equal(found[0], embedder.encode("text 0 ünd"))


def test_what_truncation_dropped_is_logged(embedder, caplog):
    with caplog.at_level(logging.WARNING, "bertcli"):
        embedder.encode(TEXTS, max_length=40)
        assert caplog.messages == []
        embedder.encode(["a b c d", "a"], max_length=4)
        assert caplog.messages == ["1 of 2 texts truncated to 4 tokens (2 dropped)"]
        embedder.encode(["a b c d", "a"], max_length=4, on_truncate="ignore")
        assert len(caplog.messages) == 1


ERRORS = [
    ({"pooling": "x"}, ("--pooling", "x")),
    ({"dim": 33}, ("--dim", "33")),
    ({"device": "cuda:7"}, ("--device", "cuda:7")),
    ({"layers": 9}, ("--layers", "9")),
    ({"max_length": 4, "on_truncate": "error"}, ("--max-length", "4", "--on-truncate", "error")),
    ({"prompt_name": "x"}, ("--prompt-name", "x")),
    ({"special_tokens": False}, ("--no-special-tokens",)),
]


def in_python(text):
    """Return a message of the command as `Embedder` words it: keywords, not options."""
    text = re.sub("--(pooling|on-truncate) (x|warn)", r"\1='\2'", text)
    text = re.sub(r"--(dim|max-length) (?=[\d'])", r"\1=", text)
    text = re.sub(r"--(device|layers|prompt-name|special-tokens)", r"\1", text)
    text = text.replace("--no-special-tokens", "special_tokens=False")
    return re.sub("(max|on|prompt|special)-", r"\1_", text)


@pytest.mark.parametrize(("options", "argv"), ERRORS)
def test_errors_are_those_of_the_command(embedder, options, argv):
    text = "" if "special_tokens" in options else "a b c d e f g"
    said = call("embed", "-q", "-m", TINY, *argv, text)
    code = said.code
    with pytest.raises(BertcliError) as failed:
        embedder.encode([text], **options)
    assert [in_python(said.error), in_python(said.hint)] == [str(failed.value), failed.value.hint]
    said = f"{failed.value} {failed.value.hint}".replace("--force-reinstall torch --index-url", "")
    assert "--" not in said
    assert failed.value.exit_code == code


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([None], "text 1: the text is null, not a string"),
        (["a", 3], "text 2: the text is 3, not a string"),
        (["a", "\ud800"], "text 2: character 0 is half of a surrogate pair"),
        ([("a", None), "b", 3.5], "text 3: the text is 3.5"),
    ],
)
def test_what_is_no_text_is_named(embedder, texts, says):
    with pytest.raises(InputError, match=says):
        embedder.encode(texts)


@pytest.mark.parametrize(
    "options", [{"dtype": "x"}, {"on_truncate": "x"}, {"precision": "x"}, {"layers": "a"}]
)
def test_an_unknown_value_is_refused(embedder, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        embedder.encode(["a"], **options)


@pytest.mark.parametrize(
    "options",
    [{"dim": 0}, {"dim": 1.5}, {"window": 0}, {"threads": -1}, {"batch_tokens": 0}, {"stride": -1}],
)
def test_a_number_that_cannot_be_is_refused(embedder, options):
    """``window=0`` read its texts for ever, ``dim=0`` was the whole vector."""
    (name,) = options
    with pytest.raises(UsageError, match=f"^{name}.* is not a whole number"):
        Embedder.load(TINY, **options).encode(["a"])


@pytest.mark.parametrize(
    ("options", "error", "hint"),
    [
        ({"normalise": True}, "unknown option 'normalise'", "did you mean normalize"),
        ({"output_value": "x"}, "unknown option 'output_value'", "one of "),
    ],
)
def test_options_that_are_not_ours_are_refused(embedder, options, error, hint):
    with pytest.raises(UsageError, match=error) as failed:
        embedder.encode(["a"], **options)
    assert re.search(hint, failed.value.hint)


def test_vectors_as_tensors(embedder):
    vectors = embedder.encode(TEXTS)
    tensors = embedder.encode(TEXTS, convert_to_tensor=True)
    assert isinstance(tensors, torch.Tensor) and (tensors.numpy() == vectors).all()
    (one,) = embedder.encode(["a b"], token_vectors=True, convert_to_tensor=True)
    assert isinstance(one, torch.Tensor) and one.ndim == 2
    assert embedder.encode("a", convert_to_tensor=True).shape == (32,)


def test_an_embedder_is_shown_in_one_line(embedder):
    assert repr(embedder) == f"Embedder({str(TINY)!r}, 32 dimensions, at most 128 tokens)"


@pytest.mark.parity
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_the_methods_are_those_of_sentence_transformers(tmp_path, similarity):
    from sentence_folders import saved, sentence_model
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    chain = modules.Pooling(32, pooling_mode="mean")
    prompts = {"query": "find this: ", "passage": "this: "}
    theirs = sentence_model(chain, prompts=prompts, similarity_fn_name=similarity)
    ours = Embedder.load(saved(theirs, tmp_path / "theirs"))
    near = partial(np.testing.assert_allclose, atol=1e-5)
    for name in ("encode", "encode_query", "encode_document"):
        for options in (
            {},
            {"batch_size": 2, "show_progress_bar": False, "convert_to_numpy": True},
            {"normalize_embeddings": True, "truncate_dim": 7, "prompt_name": "passage"},
            {"prompt": "so: ", "normalize_embeddings": False},
        ):
            found, right = (getattr(each, name)(TEXTS, **options) for each in (ours, theirs))
            near(found, right)
    near(ours.similarity(found, found[:3]), theirs.similarity(found, found[:3]), rtol=1e-5)
    near(ours.similarity(found[0], found[1]), theirs.similarity(found[0], found[1]), rtol=1e-5)
    assert ours.get_embedding_dimension() == theirs.get_embedding_dimension()
    ours.save(tmp_path / "saved")
    again = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    near(again.encode_query(TEXTS), ours.encode_query(TEXTS))
    with pytest.raises(OutputError, match="already exists"):
        ours.save(tmp_path / "saved")


def test_a_model_is_not_saved_into_itself(tmp_path):
    folder = shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "link").symlink_to(folder)
    ours = Embedder.load(folder)
    before = contents(folder)
    for place in (folder / "copy", folder / "a" / "copy", tmp_path / "link" / "copy"):
        with pytest.raises(OutputError, match="in the folder of the model that is saved"):
            ours.save(place)
    with pytest.raises(OutputError, match="already exists"):
        ours.save(folder)
    assert contents(folder) == before
    ours.save(tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


@pytest.mark.parity
def test_truncate_dim_is_of_the_vectors_that_the_model_makes(tmp_path):
    """A model that ends in Normalize: they are cut, and not of length 1 again unless asked for."""
    from sentence_folders import saved, sentence_model
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    chain = modules.Pooling(32, pooling_mode="mean"), modules.Normalize()
    folder = saved(sentence_model(*chain), tmp_path / "m")
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), Embedder.load(folder)
    near = partial(np.testing.assert_allclose, atol=1e-6)
    for options in ({}, {"normalize_embeddings": True}, {"normalize_embeddings": False}):
        near(
            ours.encode(TEXTS, truncate_dim=7, **options),
            theirs.encode(TEXTS, truncate_dim=7, **options),
        )
    assert (np.linalg.norm(ours.encode(TEXTS, truncate_dim=7), axis=1) < 0.9).all()
    near(Embedder.load(folder, truncate_dim=7).encode(TEXTS), ours.encode(TEXTS, truncate_dim=7))
    near(np.linalg.norm(ours.encode(TEXTS, dim=7), axis=1), 1)
    cut = Embedder.load(folder, truncate_dim=9)
    near(cut.encode(TEXTS, dim=7), ours.encode(TEXTS, dim=7))
    near(cut.encode(TEXTS, truncate_dim=None), ours.encode(TEXTS))


def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ModelError, match="folder not found"):
        Embedder.load(tmp_path / "nowhere")


@pytest.mark.parity
def test_the_default_model_is_that_of_sentence_transformers(default_folder):
    from sentence_transformers import SentenceTransformer

    ours = Embedder.load("sentence-transformers/all-MiniLM-L6-v2").encode(TEXTS)
    theirs = SentenceTransformer(str(default_folder), device="cpu").encode(TEXTS)
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
