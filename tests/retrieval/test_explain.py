"""`similar --explain`: the shares of the tokens of a hit, which add up to its score."""

import json

import numpy as np
import pytest
import torch
from front import TINY, bad, call, good, jsonl, put_json
from sentence_folders import dense, saved, sentence_model, shaken, st
from sentence_transformers import MultiVectorEncoder
from static_folders import model2vec_folder, static_folder
from task_models import texts as random_texts
from term_models import colbert, encoder, native, pylate
from terminal import at_terminal
from torch import nn
from transformers import AutoModel, AutoTokenizer

import bertcli
from bertcli.errors import UsageError
from bertcli.retrieval import explain

TEXTS = random_texts(40, 60, seed=1)[:-1]  # without the empty one
QUERIES = random_texts(5, 12, seed=2)[:-1]


def pooling(*modes, width=32, **options):
    return st.Pooling(width, modes or "mean", **options)


def norm(width):
    return shaken(st.LayerNorm(width), 3)


SENTENCE_MODELS = {
    "mean": [pooling()],
    "normalized": [pooling(), st.Normalize()],
    "sqrt": [pooling("mean_sqrt_len_tokens")],
    "weighted": [pooling("weightedmean")],
    "joined": [pooling("mean", "weightedmean"), dense(64, 9)],
    "bias and residual": [pooling(), dense(32, 8, use_residual=True), st.Normalize()],
    "two layers": [pooling(), dense(32, 20, seed=1), dense(20, 6, bias=False, seed=2)],
    "norms": [pooling(), norm(32), dense(32, 7), st.Normalize(), norm(7)],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    (folder / "corpus.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    encoder(folder / "encoder")
    return folder


def hits_of(root, *argv, queries=QUERIES, **env):
    argv = ("similar", *queries, "--corpus", root / "corpus.txt", "--explain", "-q", *argv)
    return [answer["hits"] for answer in good(*argv, **env).rows]


def check_sums(hits, limit=1e-6):
    for hit in hits:
        assert len(hit["tokens"]) == len(hit["offsets"]) == len(hit["shares"])
        assert sum(hit["shares"]) == pytest.approx(hit["score"], abs=limit, rel=limit)


@pytest.mark.parametrize("name", SENTENCE_MODELS)
@pytest.mark.parametrize("score", ["cosine", "dot"])
def test_shares_of_linear_models_add_up_to_the_score(engine, root, name, score):
    folder = root / f"st {name}"
    if not folder.exists():
        saved(sentence_model(*SENTENCE_MODELS[name]), folder)
    answers = hits_of(root, "-m", folder, "--similarity", score)
    assert [len(hits) for hits in answers] == [10] * len(QUERIES)
    for hits in answers:
        check_sums(hits)


@pytest.mark.parametrize("options", [{"dim": 5}, {"normalize": True, "dim": 9, "dim_last": True}])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_shares_of_shortened_and_combined_layers(root, options, similarity):
    options = {**options, "layers": "0,1,2", "layer_combine": "concat", "prompt": "about: "}
    answers = bertcli.search(
        QUERIES, TEXTS, model=TINY, explain=True, similarity=similarity, quiet=True, **options
    )
    for answer in answers:
        check_sums(answer["hits"])


def test_a_share_is_the_sum_of_the_pairs_of_a_token(root):
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModel.from_pretrained(TINY).eval()

    def states(text):
        with torch.no_grad():
            encoded = tokenizer(text, truncation=True, max_length=128, return_tensors="pt")
            return model(**encoded).last_hidden_state[0].double().numpy()

    for query, hits in zip(QUERIES, hits_of(root, "-m", TINY, "-k", 3), strict=True):
        q = states(query)
        for hit in hits:
            p = states(hit["text"])
            lengths = np.linalg.norm(q.mean(0)) * np.linalg.norm(p.mean(0))
            pairs = (q @ p.T) / (len(q) * len(p) * lengths)
            assert hit["shares"] == pytest.approx(pairs.sum(0).tolist(), abs=1e-6)
            assert [*hit["tokens"][1:-1]] == tokenizer.tokenize(hit["text"])[: len(p) - 2]


@pytest.mark.parametrize("kind", ["pylate", "colbert", "native"])
def test_shares_of_late_interaction_are_the_best_tokens(engine, root, kind):
    folder = root / kind
    if not folder.exists():
        {"pylate": pylate, "colbert": colbert, "native": native}[kind](root / "encoder", folder)
    theirs = MultiVectorEncoder(str(folder), device="cpu")
    answers = hits_of(root, "-m", folder, "--token-vectors")
    for query, hits in zip(QUERIES, answers, strict=True):
        check_sums(hits)
        q = np.asarray(theirs.encode_query([query])[0], np.float64)
        p = np.asarray(theirs.encode_document([hits[0]["text"]])[0], np.float64)
        shares = np.zeros(len(p))
        np.add.at(shares, (q @ p.T).argmax(1), (q @ p.T).max(1))
        assert hits[0]["shares"] == pytest.approx(shares.tolist(), abs=1e-4)


def test_shares_of_plain_token_vectors_and_of_words(root):
    for hits in hits_of(root, "-m", TINY, "--token-vectors"):
        check_sums(hits)
    (answer, *_) = bertcli.search(QUERIES, TEXTS, word_vectors="mean", explain=True, model=TINY)
    for hit in answer["hits"]:
        assert [hit["text"][start:stop] for start, stop in hit["offsets"]] == hit["words"]
        assert sum(hit["shares"]) == pytest.approx(hit["score"], abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("kind", ["bert", "xlm_roberta"])
def test_shares_of_static_models(tmp_path, root, kind):
    folders = [
        static_folder(tmp_path / "s", kind, more=("Normalize",)),
        model2vec_folder(tmp_path / "m", kind, config={"normalize": True}),
    ]
    for folder in folders:
        for hits in hits_of(root, "-m", folder):
            check_sums(hits)
            assert all("[CLS]" not in hit["tokens"] for hit in hits)


def test_offsets_are_those_of_the_text(root):
    folder = root / "prompts"
    prompts = {"query": "query: ", "document": "passage: "}
    saved(sentence_model(pooling(), prompts=prompts), folder)
    (hits, *_) = hits_of(root, "-m", folder)
    for hit in hits:
        check_sums([hit])
        for token, (start, stop) in zip(hit["tokens"], hit["offsets"], strict=True):
            if stop and hit["text"].isascii() and token != "[UNK]":
                assert hit["text"][start:stop].lower() == token.removeprefix("##")
        assert hit["offsets"][:4] == [[0, 0]] * 4  # [CLS] passage :
    folder = root / "prompts that are left out"
    saved(sentence_model(pooling(include_prompt=False), prompts=prompts), folder)
    (hits, *_) = hits_of(root, "-m", folder)
    check_sums(hits)
    assert all(hit["offsets"][0][0] == 0 < hit["offsets"][0][1] for hit in hits)


def test_pairs_name_the_text_of_each_token(tmp_path):
    rows = [{"text": "The cat", "pair": "sat down"}, {"text": "Dogs", "pair": "bark"}]
    (path := tmp_path / "c.jsonl").write_text(jsonl(rows))
    argv = ("similar", "a cat", "--corpus", path, "-m", TINY, "-q", "--explain", "-k", 1)
    (hit,) = good(*argv).rows[0]["hits"]
    if "sequence_ids" in hit:
        assert len(hit["sequence_ids"]) == len(hit["tokens"])
    check_sums([hit])


POOLINGS = {
    "cls": [pooling("cls")],
    "max": [pooling("max")],
    "lasttoken": [pooling("lasttoken")],
    "max+mean": [pooling("max", "mean")],
}


@pytest.mark.parametrize("name", POOLINGS)
def test_other_poolings_are_refused_by_name(root, name):
    folder = saved(sentence_model(*POOLINGS[name]), root / f"pooling {name}")
    argv = ("similar", "a", "--corpus", root / "corpus.txt", "-q", "--explain", "-m", folder)
    refused = bad(*argv, code=2)
    assert refused.error.endswith(f"means of token vectors, and the pooling is {name}")
    assert "--token-vectors" in refused.hint
    for hits in hits_of(root, "-m", folder, "--token-vectors"):
        check_sums(hits)
    with pytest.raises(UsageError, match="the pooling is pooler"):
        bertcli.search("a", TEXTS, model=TINY, pooling="pooler", explain=True)


def test_what_cannot_be_explained_is_refused(root):
    folder = saved(sentence_model(pooling(), dense(32, 8, nn.Tanh())), root / "tanh")
    argv = ("similar", "a", "--corpus", root / "corpus.txt", "-q", "--explain")
    assert "a Dense module with Tanh" in bad(*argv, "-m", folder, code=2).error
    for option in ("--hybrid", "--lexical", "--sparse", "--mine"):
        assert "--explain cannot be combined" in bad(*argv, option, code=2).error
    assert "--explain cannot be combined" in bad(*argv, "--rerank", "x", code=2).error
    for options in ({"hybrid": True}, {"sparse": True}, {"on_truncate": "window"}):
        with pytest.raises(UsageError, match="explain cannot be combined with"):
            bertcli.search("a", TEXTS, model=TINY, explain=True, **options)
    with pytest.raises(UsageError, match="explain cannot be combined with rerank"):
        bertcli.search("a", TEXTS, model=TINY, explain=True, rerank="x")


def test_stored_vectors_are_explained_by_the_texts_beside_them(root, tmp_path):
    argv = ("similar", QUERIES[0], "-m", TINY, "-q", "--explain")
    corpus = ("--corpus", root / "corpus.txt")
    (expected,) = good(*argv, *corpus).rows
    for option, name in (("--vectors", "v.npy"), ("--index", "i")):
        for _ in range(2):  # computed, then read
            (found,) = good(*argv, *corpus, option, tmp_path / name).rows
            assert found == expected
    assert good(*argv, "--index", tmp_path / "i").rows[0]["hits"][0].keys() == {
        *("row", "id", "score", "text", "tokens", "offsets", "shares")
    }
    refused = bad(*argv, "--vectors", tmp_path / "v.npy")
    assert refused.error.endswith("has no text, and --explain reads texts")
    assert "--keep-fields" in refused.hint
    kept = tmp_path / "kept.parquet"
    good("embed", "-q", "-m", TINY, "-i", root / "corpus.txt", "--keep-fields", "-o", kept)
    (found,) = good(*argv, "--vectors", kept).rows
    check_sums(found["hits"])


def test_vectors_of_other_texts_are_warned_about(root, tmp_path):
    np.save(tmp_path / "v.npy", np.random.default_rng(0).normal(size=(len(TEXTS), 32)))
    argv = ("similar", "a", "-m", TINY, "--explain", "--corpus", root / "corpus.txt")
    done = call(*argv, "--vectors", tmp_path / "v.npy")
    assert done.code == 0
    assert done.err.count("its stored vector differs from that of its text") == 1


def test_only_the_hits_are_encoded_again(root, monkeypatch):
    encoded = []

    def count(embedder, records, contributions=explain.text_contributions):
        encoded.extend(records := list(records))
        return contributions(embedder, records)

    monkeypatch.setattr(explain, "text_contributions", count)
    answers = hits_of(root, "-m", TINY, "-k", 2)
    rows = {hit["row"] for hits in answers for hit in hits}
    assert len(encoded) == len(rows) < len(TEXTS)  # a hit of two queries is encoded once


def test_tables_and_other_formats(root, tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(jsonl([{"text": "The cat  sat\non the mat", "shares": 1}, {"text": "dogs"}]))
    argv = ("similar", "a cat", "--corpus", corpus, "--explain", "-q", "-k", 1)
    lines = [line.strip() for line in good(*argv, "-f", "table").out.splitlines()]
    assert any(line.endswith("The cat sat on the mat") for line in lines)
    assert any(line.startswith("cat=0.") for line in lines)
    code, screen = at_terminal("similar", "a cat", *argv[2:], columns=100)
    assert code == 0 and b"\x1b[1;37;48;5;22mcat\x1b[0m" in screen
    code, screen = at_terminal("similar", "a cat", *argv[2:], columns=100, env={"NO_COLOR": "1"})
    assert code == 0 and b"48;5" not in screen and b"cat=0." in screen
    refused = bad(*argv, "--keep-fields", "shares", "-f", "jsonl")
    assert "'shares' cannot be kept, as the output has a field" in refused.error
    row = good(*argv, "-f", "csv").out.splitlines()
    assert row[0] == "query,rank,score,row,id,text,tokens,offsets,shares"
    good(*argv, "-o", out := tmp_path / "o.parquet")
    import pyarrow.parquet

    (row,) = pyarrow.parquet.read_table(out).to_pylist()
    check_sums([row])
    done = good(*argv, "-o", tmp_path / "o.jsonl", "--resume")
    assert done.out == ""
    check_sums(json.loads((tmp_path / "o.jsonl").read_text())["hits"])


def test_a_long_text_shows_the_passage_with_the_largest_shares(tmp_path):
    text = f"{'Nothing of note here. ' * 20}The zebra ran away. {'And more of nothing. ' * 8}"
    put_json(corpus := tmp_path / "c.json", [{"text": text}])
    argv = ("similar", "zebra", "--corpus", corpus, "--explain", "-q", "-f", "table")
    assert "zebra ran away" in " ".join(good(*argv, COLUMNS="60").out.split())
