"""`bertcli distil`: a static student with the numbers of model2vec, for three libraries."""

import json
import shutil
import warnings

import numpy as np
import pytest
import tokenizers_made
from front import TINY, bad, call, good, json_in, left_in, put_json
from model_reference import randomise
from numpy.testing import assert_allclose
from safetensors.numpy import load_file, save_file
from static_folders import model2vec_folder

from bertcli import Embedder
from bertcli.exporting import distil
from bertcli.retrieval.compare import SimilarityAgreement

TEXTS = ["I love NLP!", "", "the capital of France is Paris.", "word " * 600, "[SEP] 龘 [MASK]"]
SAMPLES = TINY.parent / "texts.txt"

# What model2vec 0.10.0 makes of samples/tiny-bert (with skeletoken 0.6.1, transformers 5.23):
#     model = distill("samples/tiny-bert", pca_dims=16, quantize_to="float32")
#     vocabulary, rows = model.tokenizer.get_vocab(), model.embedding
#     {token: rows[vocabulary[token]][:4] for token in EXPECTED}; np.linalg.norm(rows[2:], axis=0)
EXPECTED = {
    "!": [9e-06, -0.000438, -0.000387, -0.000966],
    "the": [0.056526, 0.110314, 0.028347, -0.004311],
    "love": [-0.044442, -0.059139, 0.059303, 0.001276],
    "##s": [-0.031068, 0.023557, -0.020356, 0.019719],
    "paris": [0.19488, -0.016123, 0.017012, 0.005243],
}
SIZES = [0.6814, 0.46251, 0.3836, 0.31467, 0.25547, 0.23034, 0.20406, 0.20707]
SIZES += [0.16458, 0.1566, 0.12878, 0.10495, 0.09979, 0.08349, 0.07617, 0.06587]


def distilled(folder, *options, model=TINY):
    """Make a student; return its table, the ids of its tokens, and its manifest."""
    good("distil", "-q", "-m", model, "-o", folder, *options)
    assert left_in(folder) == sorted(
        ["config.json", "manifest.json", "model.safetensors", "modules.json", "tokenizer.json"]
    )
    vocabulary = json_in(folder / "tokenizer.json")["model"]["vocab"]
    if isinstance(vocabulary, list):
        vocabulary = {token: row for row, (token, _) in enumerate(vocabulary)}
    table = load_file(folder / "model.safetensors")["embeddings"]
    assert table.shape == (len(vocabulary), json_in(folder / "config.json")["hidden_dim"])
    return table, vocabulary, json_in(folder / "manifest.json")


def test_the_table_is_that_of_model2vec(tmp_path, engine):
    table, vocabulary, manifest = distilled(tmp_path / "s", "--dim", 16)
    assert [*vocabulary][:3] == ["[PAD]", "[UNK]", "!"] and len(vocabulary) == 245
    assert not {"[CLS]", "[SEP]", "[MASK]", "[unused1]"} & {*vocabulary}
    for token, numbers in EXPECTED.items():
        assert_allclose(table[vocabulary[token]][:4], numbers, atol=2e-6)
    assert_allclose(np.linalg.norm(table[2:], axis=0), SIZES, atol=2e-5)
    assert not table[vocabulary["[UNK]"]].any()
    assert (manifest["tokens"], manifest["dim"]) == (245, 16)
    assert 0.98 < manifest["variance"] < 0.99


@pytest.mark.parity
def test_model2vec_itself_agrees(tmp_path):
    """Where it is installed; its numbers for the sample stand above."""
    distillation = pytest.importorskip("model2vec.distill", exc_type=ImportError)
    table, _, _ = distilled(tmp_path / "s", "--dim", 16)
    theirs = distillation.distill(str(TINY), pca_dims=16, quantize_to="float32")
    assert_allclose(np.delete(table, 1, 0), np.delete(theirs.embedding, 1, 0), atol=1e-4)
    model = type(theirs).from_pretrained(str(tmp_path / "s"))
    assert_allclose(model.encode(TEXTS), Embedder.load(tmp_path / "s").encode(TEXTS), atol=1e-5)
    assert_allclose(model.encode(TEXTS[:3]), theirs.encode(TEXTS[:3]), atol=1e-4)


def family(folder, kind, name):
    """Make a model with random weights and a tokenizer of another kind."""
    import transformers

    tokenizers_made.MADE[kind](folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    special = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad",)}
    config = transformers.AutoConfig.for_model(
        name, vocab_size=len(tokenizer), num_hidden_layers=2, **sizes, **special
    )
    randomise(transformers.AutoModel.from_config(config)).save_pretrained(folder)
    return folder


@pytest.mark.parity
@pytest.mark.parametrize(
    ("kind", "name"),
    [("", ""), ("roberta", "roberta"), ("xlm_roberta", "xlm-roberta"), ("mpnet", "mpnet")],
)
def test_libraries_load_it_with_the_same_vectors(tmp_path, kind, name):
    from sentence_transformers import SentenceTransformer

    model = family(tmp_path / "m", kind, name) if kind else TINY
    table, vocabulary, _ = distilled(tmp_path / "s", model=model)
    assert table.shape[1] == 32  # as many as there are
    assert not {"<s>", "<mask>", "[MASK]"} & {*vocabulary}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SentenceTransformer(str(tmp_path / "s"), device="cpu").encode(TEXTS)
    vectors = Embedder.load(tmp_path / "s").encode(TEXTS)
    assert_allclose(vectors, theirs, atol=1e-5)
    assert np.linalg.norm(vectors[2]) == pytest.approx(1, abs=1e-6)
    assert "truncated" not in call("embed", "-m", tmp_path / "s", *TEXTS).err
    good("inspect", tmp_path / "s", "--verify")


def test_the_agreement_with_the_model_is_measured_on_each_tenth_text(tmp_path):
    corpus = tmp_path / "c.txt"
    corpus.write_text(SAMPLES.read_text("utf-8") * 4, "utf-8")
    done = call("distil", "-m", TINY, "--corpus", corpus, "-o", tmp_path / "s", "--dim", 8)
    assert done.code == 0
    note, agreement, sample = done.err.splitlines()
    assert sample == "note: agreement is a rough figure: a tenth of the corpus is only 4 texts"
    assert note.startswith(f"note: {tmp_path / 's'}: 245 tokens of 8 dimensions, ")
    manifest = json_in(tmp_path / "s" / "manifest.json")
    said, plain = manifest["agreement"], manifest["agreement_without_corpus"]
    assert said["rows_compared"] == 4 and -1 <= said["similarity_correlation"] <= 1
    assert agreement == (
        "note: agreement with the model on 4 texts: similarities correlate by "
        f"{said['similarity_correlation']:.3f} (without --corpus: "
        f"{plain['similarity_correlation']:.3f}), {said['neighbour_overlap']:.1%} of nearest "
        f"neighbours shared (without: {plain['neighbour_overlap']:.1%})"
    )


def test_the_agreement_without_a_corpus_is_that_of_a_student_without_one(tmp_path):
    lines = SAMPLES.read_text("utf-8").splitlines() * 9
    (tmp_path / "c.txt").write_text("\n".join(lines) + "\n", "utf-8")
    held_out = lines[9::10]
    options = ("--corpus", tmp_path / "c.txt", "--words", 3, "--dim", 8)
    _, _, manifest = distilled(tmp_path / "s", *options)
    distilled(tmp_path / "plain", "--dim", 8)
    for model, name in (("s", "agreement"), ("plain", "agreement_without_corpus")):
        for embedded in (TINY, tmp_path / model):
            good("embed", "-q", "-m", embedded, *held_out, "-o", tmp_path / f"{embedded.name}.npy")
        files = (tmp_path / f"{TINY.name}.npy", tmp_path / f"{model}.npy")
        (found,) = good("compare", *files, "-f", "jsonl").rows
        assert found["similarity_correlation"] == pytest.approx(
            manifest[name]["similarity_correlation"], abs=1e-5
        )
        (tmp_path / f"{TINY.name}.npy").unlink()
        (tmp_path / f"{TINY.name}.npy.manifest.json").unlink()


def test_a_corpus_that_makes_the_student_worse_is_warned_of(tmp_path, monkeypatch):
    """No corpus is good for every student, so both are measured, and the better one is said."""
    figures = iter([(0.4, 0.2), (0.7, 0.45)])

    def agreement(*vectors):
        correlation, overlap = next(figures)
        return SimilarityAgreement(correlation, overlap, 10, 4, None)

    monkeypatch.setattr(distil, "similarity_agreement", agreement)
    corpus = tmp_path / "c.txt"
    corpus.write_text(SAMPLES.read_text("utf-8") * 4, "utf-8")
    done = call("distil", "-m", TINY, "--corpus", corpus, "-o", tmp_path / "s", "--dim", 8)
    assert done.code == 0
    assert done.err.endswith("warning: the student is better without --corpus on these texts\n")
    assert "by 0.400 (without --corpus: 0.700), 20.0% of nearest" in done.err


def test_only_tokens_that_are_a_large_share_of_a_corpus_are_weighted_down(tmp_path):
    """What a corpus is about keeps its weight: a hundredth of the tokens counts two thirds.

    Each tenth text is not counted; a corpus in another format, from stdin, gives the same.
    """
    texts = ["the love"] * 9 + ["paris"]
    corpus = tmp_path / "c.txt"
    corpus.write_text("\n".join(texts) + "\n")
    plain, vocabulary, _ = distilled(tmp_path / "plain")
    table, _, manifest = distilled(tmp_path / "s", "--corpus", corpus)
    shares = np.zeros(len(table))
    shares[[vocabulary["the"], vocabulary["love"]]] = 0.5
    ratio = 0.02 / (0.02 + shares)
    assert_allclose(table, plain * ratio[:, None], rtol=1e-4, atol=1e-7)
    assert manifest["corpus"] == [str(corpus)]
    lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
    good(
        *("distil", "-q", "-m", TINY, "-o", tmp_path / "t", "--corpus", "-"),
        *("--text-field", "body"),
        stdin=lines,
    )
    for name in ("model.safetensors", "tokenizer.json", "config.json", "modules.json"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "t" / name).read_bytes()
    corpus.write_text(("the " * 99 + "paris\n") * 9)
    table, vocabulary, _ = distilled(tmp_path / "s", "--corpus", corpus, "--overwrite")
    kept = np.linalg.norm(table, axis=1) / np.maximum(np.linalg.norm(plain, axis=1), 1e-12)
    assert kept[vocabulary["paris"]] == pytest.approx(2 / 3, abs=1e-3)
    assert kept[vocabulary["the"]] < 0.03 and kept[vocabulary["love"]] == pytest.approx(1)


@pytest.mark.parity
def test_frequent_words_of_a_corpus_become_tokens(tmp_path):
    """Those that were several; case and accents do not count, as the tokenizer has it."""
    from sentence_transformers import SentenceTransformer

    counted = ["Kängaroo!", "kangaroo, the kangaroo"] * 3 + ["the wombat", "wombat", "the koala"]
    held_out = ["the brown dog", "emoji", "Paris is wonderful", "a kangaroo"]
    corpus = tmp_path / "c.txt"
    corpus.write_text("".join("\n".join([*counted, text, ""]) for text in held_out), "utf-8")
    options = ("--corpus", corpus, "--dim", 16)
    _, before, _ = distilled(tmp_path / "plain", *options)
    table, vocabulary, manifest = distilled(tmp_path / "s", *options, "--words", 2)
    assert [*vocabulary] == [*before, "kangaroo", "wombat"]  # the other one is third
    assert (manifest["tokens"], manifest["words"]) == (247, 2)
    assert manifest["agreement"]["rows_compared"] == 4
    assert -1 <= manifest["agreement"]["similarity_correlation"] <= 1
    student = Embedder.load(tmp_path / "s")
    (ids,) = good("tokenize", "-m", tmp_path / "s", "Kangaroos KÄNGAROO").ids
    assert ids == [245, vocabulary["##s"], 245]
    texts = [*TEXTS, "A kangaroo.", "Wombats", "koala"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = SentenceTransformer(str(tmp_path / "s"), device="cpu").encode(texts)
    assert_allclose(student.encode(texts), theirs, atol=1e-5)
    row = table[245] / np.linalg.norm(table[245])
    assert_allclose(student.encode("Kangaroo"), row, atol=1e-6)
    said = call("distil", "-m", TINY, *options, "--words", 9, "-o", tmp_path / "t").err
    assert "248 tokens" in said and "agreement with the model on 4 texts" in said
    good("inspect", tmp_path / "s", "--verify")


def test_words_need_a_corpus_and_wordpiece(tmp_path):
    done = bad("distil", "-m", TINY, "-o", tmp_path / "s", "--words", 2, code=2)
    assert done.error == "--words requires --corpus"
    (tmp_path / "c.txt").write_text("the love\n")
    model = family(tmp_path / "m", "roberta", "roberta")
    options = ("--words", 2, "--corpus", tmp_path / "c.txt")
    done = bad("distil", "-m", model, "-o", tmp_path / "s", *options)
    assert done.error == f"{model}: --words requires a vocabulary of WordPiece"
    assert left_in(tmp_path) == ["c.txt", "m"]


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path):
    out = tmp_path / "s"
    distilled(out, "--dim", 8)
    before = (out / "model.safetensors").read_bytes()
    assert "already exists" in bad("distil", "-m", TINY, "-o", out).error
    distilled(out, "--dim", 8, "--overwrite")
    assert (out / "model.safetensors").read_bytes() == before
    (out / "mine.txt").touch()
    assert "mine.txt" in bad("distil", "-m", TINY, "-o", out, "--overwrite").error
    (tmp_path / "c.txt").write_text("the love\n")
    assert left_in(tmp_path) == ["c.txt", "s"]


@pytest.mark.parametrize("dim", [33, 400])
def test_more_dimensions_than_there_are(tmp_path, dim):
    done = bad("distil", "-m", TINY, "-o", tmp_path / "s", "--dim", dim, code=2)
    assert done.error == f"--dim {dim} is not possible"
    assert done.hint == "give a number from 1 to 32"
    assert left_in(tmp_path) == []


def test_a_teacher_whose_vectors_are_shortened_has_no_more_dimensions(tmp_path):
    model = shutil.copytree(TINY, tmp_path / "m")
    put_json(model / "config_sentence_transformers.json", {"truncate_dim": 8})
    put_json(
        model / "modules.json", [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    )
    done = bad("distil", "-m", model, "-o", tmp_path / "s", "--dim", 9, code=2)
    assert done.error == "--dim 9 is not possible"
    table, _, _ = distilled(tmp_path / "s", model=model)
    assert table.shape[1] == 8


@pytest.mark.parametrize("content", ["", "\n\n", "[MASK]\n"])
def test_a_corpus_without_text(tmp_path, content):
    corpus = tmp_path / "c.txt"
    corpus.write_text(content)
    done = bad("distil", "-m", TINY, "-o", tmp_path / "s", "--corpus", corpus)
    assert done.error == "no text in the corpus"
    assert left_in(tmp_path) == ["c.txt"]


def test_records_that_cannot_be_read(tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "the love"}\n{"text": 5}\n')
    argv = ["distil", "-m", TINY, "-o", tmp_path / "s", "--corpus", corpus]
    assert "c.jsonl:2: the text is 5, not a string" in bad(*argv).error
    done = call(*argv, "--on-error", "skip", "-q")
    assert done.code == 1 and (tmp_path / "s" / "manifest.json").exists()


def test_models_that_have_no_student(tmp_path):
    static = model2vec_folder(tmp_path / "static")
    assert "without an encoder" in bad("distil", "-m", static, "-o", tmp_path / "s").error
    judge = tmp_path / "judge"
    shutil.copytree(TINY, judge)
    config = json_in(judge / "config.json")
    put_json(judge / "config.json", config | {"architectures": ["BertForSequenceClassification"]})
    done = bad("distil", "-m", judge, "-o", tmp_path / "s")
    assert "a classifier or cross-encoder, which makes no vectors of texts" in done.error
    broken = tmp_path / "broken"
    shutil.copytree(TINY, broken)
    weights = load_file(broken / "model.safetensors")
    name = next(name for name in weights if name.endswith("output.LayerNorm.bias"))
    weights[name] = np.full_like(weights[name], np.nan)
    save_file(weights, broken / "model.safetensors")
    done = bad("distil", "-m", broken, "-o", tmp_path / "s")
    assert "states of tokens contain NaN or infinity" in done.error
    assert left_in(tmp_path) == ["broken", "judge", "static"]
