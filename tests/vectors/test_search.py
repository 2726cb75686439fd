"""The nearest texts: by cosine, whatever the blocks, and never with another model's vectors."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertcli.cli import app
from bertcli.errors import InputError
from bertcli.hub import DEFAULT_MODEL, MODEL_FILES, find_model
from bertcli.records.records import Record
from bertcli.vectors.nearest import Nearest, check_maker, nearest, texts_at

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = str(SAMPLES / "tiny-bert")
TEXTS = ["The cat sat on the mat", "Stocks fell on Friday", "A kitten plays", "", "Dogs bark"]


def normal(rows, width=6, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(app, "COMMANDS", ("embed", "similar"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("".join(text + "\n" for text in TEXTS))

    def run(*argv):
        code = app.main([*argv])
        return code, *capfd.readouterr()

    return run


def found(out):
    return [json.loads(line) for line in out.splitlines()]


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=5),
    k=st.integers(1, 50),
    seed=st.integers(0, 9),
    doubled=st.lists(st.integers(0, 39), max_size=6),
)
def test_the_best_rows_whatever_the_blocks(cuts, k, seed, doubled):
    """Equal vectors score alike, and the earlier row comes first."""
    corpus, queries = normal(40, seed=seed), normal(3, seed=99)
    corpus = np.concatenate([corpus, corpus[doubled]])
    blocks = [block for block in np.split(corpus, sorted(cuts)) if len(block)]
    units = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries.astype(float), corpus)]
    scores = (units[0] @ units[1].astype(float).T).round(9)
    for best, row in zip(nearest(queries, blocks, k), scores, strict=True):
        order = np.lexsort((np.arange(len(row)), -row))[:k]
        assert np.allclose([match.score for match in best], row[order], atol=1e-6)
        assert len({match.row for match in best}) == min(k, len(corpus))
    exact = nearest(queries, [corpus], k)
    assert nearest(queries, blocks, k) == exact
    for best in exact:
        assert best == sorted(best, key=lambda match: (-match.score, match.row))


@pytest.mark.parity
def test_the_scores_are_those_of_semantic_search():
    from sentence_transformers.util import semantic_search

    queries, corpus = normal(4, 20), normal(500, 20, seed=1)
    theirs = semantic_search(queries, corpus, top_k=7)
    for best, hits in zip(nearest(queries, np.split(corpus, 5), 7), theirs, strict=True):
        assert [match.row for match in best] == [hit["corpus_id"] for hit in hits]
        assert [match.score for match in best] == pytest.approx(
            [hit["score"] for hit in hits], abs=1e-6
        )


def test_a_vector_of_zeros_is_like_nothing():
    found = nearest(normal(1), [np.zeros((1, 6), np.float32), -normal(1)], 2)[0]
    assert [(match.row, match.score) for match in found] == [(0, 0), (1, -1)]


def test_other_dimensions():
    with pytest.raises(InputError, match="the vectors have 5 dimensions, and the query has 6"):
        nearest(normal(1), [normal(2, 5)], 1)
    with pytest.raises(InputError, match="the vectors have 2 x 6 dimensions"):
        nearest(normal(1), [np.ones((3, 2, 6))], 1)


def test_rows_that_are_not_finite():
    near, broken = Nearest(normal(1), 1), normal(3)
    near.add(normal(4))
    broken[1, 2] = np.nan
    with pytest.raises(InputError, match="row 5 contains NaN or infinity"):
        near.add(broken)


def made(tmp_path, **fingerprint):
    path = tmp_path / "v.npy"
    Path(f"{path}.manifest.json").write_text(json.dumps({"fingerprint": fingerprint}))
    return str(path)


def test_vectors_of_the_same_model(tmp_path):
    mine = {"weights": {"model.safetensors": "aa"}, "tokenizer": {"vocab.txt": "bb"}}
    theirs = {"weights": {"other name.bin": "aa"}, "tokenizer": {"vocab.txt": "bb"}}
    assert check_maker(made(tmp_path, **theirs, options={"dim": 3}), mine) == {"dim": 3}


@pytest.mark.parametrize("kind", ["weights", "tokenizer"])
@pytest.mark.parametrize("other", [{"x": "cc"}, {}, None])
def test_vectors_of_another_model(tmp_path, kind, other):
    mine = {"weights": {"x": "aa"}, "tokenizer": {"x": "bb"}}
    path = made(tmp_path, model="owl", **{**mine, kind: other})
    with pytest.raises(InputError, match=rf"by another model, owl: sha256 of its {kind}") as caught:
        check_maker(path, mine)
    assert "--model owl" in caught.value.hint


def test_vectors_of_nobody(tmp_path):
    path = tmp_path / "v.npy"
    for manifest in (None, "{}", '{"fingerprint": 7}'):
        if manifest:
            Path(f"{path}.manifest.json").write_text(manifest)
        with pytest.raises(InputError, match="no manifest next to it says which model made it"):
            check_maker(str(path), {})


def test_texts_by_their_rows():
    records = [Record(text) for text in "abc"]
    assert texts_at("v", iter(records), [2, 0], 3) == {0: records[0], 2: records[2]}
    with pytest.raises(InputError, match="v: has 4 rows, and the corpus has 3 texts"):
        texts_at("v", records, [1], 4)
    with pytest.raises(InputError, match="v: has 4 rows, and the corpus has 0 texts"):
        texts_at("v", [], [1], 4)


def test_command_finds_kittens(run):
    code, out, err = run("similar", "young cats", "finance", "--corpus", "c.txt", "-k", "2", "-q")
    assert (code, err) == (0, "")
    rows = found(out)
    assert list(rows[0]) == ["query", "rank", "score", "row", "id", "text"]
    assert [row["text"] for row in rows[:2]] == ["A kitten plays", "The cat sat on the mat"]
    assert [row["rank"] for row in rows] == [1, 2, 1, 2]
    assert rows[0]["row"] == rows[0]["id"] == 2


def test_vectors_are_written_and_reused(run, monkeypatch):
    argv = ("similar", "young cats", "--corpus", "c.txt", "--vectors", "v.npy", "-q")
    code, first, _ = run(*argv)
    assert (code, len(found(first))) == (0, len(TEXTS))
    assert np.load("v.npy").shape == (len(TEXTS), 384)
    monkeypatch.setattr("bertcli.vectors.search.EmbedRun", None)  # would be a TypeError
    code, again, err = run(*argv)
    assert (code, again, err) == (0, first, "")
    assert run("similar", "young cats", "--corpus", "c.txt", "-q")[1] == first


@pytest.mark.parametrize("form", ["jsonl", "parquet", "safetensors", "npz", "csv"])
def test_vectors_in_every_format(run, form):
    assert run("embed", "-i", "c.txt", "-o", f"v.{form}", "-q")[0] == 0
    argv = ("similar", "young cats", "--corpus", "c.txt", "-q", "-k", "2")
    code, out, _ = run(*argv, "--vectors", f"v.{form}")
    assert code == 0
    assert out == run(*argv)[1]


@pytest.mark.parametrize("options", [("--pooling", "cls"), ("--dim", "64"), ("--layers", "2")])
@pytest.mark.parametrize("precision", ["float32", "int8", "binary"])
def test_queries_are_encoded_as_the_corpus_was(run, options, precision):
    """A text of the corpus as the query finds itself, whatever its vectors are made of."""
    done = run("embed", "-i", "c.txt", "-o", "v.npy", *options, "--precision", precision, "-q")
    assert done[0] == 0
    argv = ("similar", TEXTS[2], "--corpus", "c.txt", "--vectors", "v.npy", "-k", "1", "-q")
    code, out, _ = run(*argv)
    (row,) = found(out)
    least = {"float32": 0.999999, "int8": 0.999, "binary": 0.6}[precision]
    assert (code, row["row"]) == (0, 2)
    assert row["score"] > least


@pytest.mark.parity
def test_prompts_are_those_of_encode_query_and_encode_document(run, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import semantic_search

    folder = tmp_path / "prompted"
    shutil.copytree(find_model(DEFAULT_MODEL, files=MODEL_FILES).path, folder)
    prompts = {"prompts": {"query": "Find things like: ", "document": "A thing: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(str(folder), device="cpu")
        query, corpus = model.encode_query(["young cats"]), model.encode_document(TEXTS)
    hits = semantic_search(query, corpus, top_k=5)[0]
    code, out, _ = run("similar", "young cats", "--corpus", "c.txt", "-m", str(folder), "-q")
    assert code == 0
    assert [row["row"] for row in found(out)] == [hit["corpus_id"] for hit in hits]
    ours = [row["score"] for row in found(out)]
    assert ours == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_texts_have_the_prompt_of_passages_too(run, tmp_path):
    """As sentence-transformers documents; 6.2 itself finds an empty prompt 'document' first."""
    folder = tmp_path / "prompted"
    shutil.copytree(TINY, folder)
    prompts = {"prompts": {"passage": "A thing: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    argv = ("similar", "cats", "--corpus", "c.txt", "-q", "-m")
    assert run(*argv, str(folder))[1] == run(*argv, TINY, "--corpus-prompt", "A thing: ")[1]
    assert run(*argv, str(folder))[1] != run(*argv, TINY)[1]


def test_corpus_with_fields_and_prompts(run, tmp_path):
    lines = [json.dumps({"name": f"n{at}", "body": text}) for at, text in enumerate(TEXTS)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    names = ("--text-field", "body", "--id-field", "name", "-k", "1", "-q")
    argv = ("similar", "young cats", "--corpus", "c.jsonl", *names)
    (row,) = found(run(*argv)[1])
    assert (row["id"], row["text"]) == ("n2", TEXTS[2])
    (other,) = found(run(*argv, "--query-prompt", "Q: ", "--corpus-prompt", "D: ")[1])
    assert other["score"] != row["score"]


def test_command_for_people_and_other_formats(run):
    argv = ("similar", "young cats", "--corpus", "c.txt", "-k", "2", "-q", "-f")
    code, out, _ = run(*argv, "table")
    assert code == 0
    assert "young cats" in out
    assert "A kitten plays" in out
    assert run(*argv, "csv")[1].startswith("query,rank,score,row,id,text\nyoung cats,1,0.45")


def test_more_asked_for_than_there_is(run):
    assert len(found(run("similar", "x", "--corpus", "c.txt", "-k", "99", "-q")[1])) == len(TEXTS)


@pytest.mark.parametrize("more", [(), ("--vectors", "v.npy")])
def test_texts_that_are_cut_are_counted(run, tmp_path, more):
    (tmp_path / "long.txt").write_text("cat " * 400 + "\ncat\n")
    code, _, err = run("similar", "cat", "--corpus", "long.txt", *more)
    assert code == 0
    assert "warning: 1 of 2 texts truncated to 256 tokens" in err


def test_an_empty_corpus(run, tmp_path):
    (tmp_path / "none.txt").write_text("")
    code, out, err = run("similar", "x", "--corpus", "none.txt")
    assert (code, out) == (0, "")
    assert "note: no records" in err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("x",), 2, "Missing option '--corpus'"),
        (("--corpus", "c.txt"), 2, "Missing argument 'QUERY...'"),
        (("x", "--corpus", "nowhere.txt"), 1, "error: nowhere.txt: file not found"),
        (("x", "--corpus", "c.txt", "-f", "npy"), 2, "this command cannot write npy"),
        (
            ("x", "--corpus", "c.txt", "-f", "table", "-o", "x"),
            2,
            "a table cannot be written to a file",
        ),
        (("x", "--corpus", "c.txt", "--top-k", "0"), 2, "--top-k"),
        (
            ("x", "--corpus", "-", "--vectors", "v.npy"),
            2,
            "--vectors cannot be written for a corpus",
        ),
        (("x", "--corpus", "c.txt", "--vectors", "v.txt"), 1, "cannot be written as txt"),
    ],
)
def test_command_errors(run, argv, code, message):
    found, out, err = run("similar", *argv)
    assert (found, out) == (code, "")
    assert message in " ".join(err.split())


def test_vectors_of_another_model_are_refused(run):
    assert run("embed", "-i", "c.txt", "-o", "v.npy", "-m", TINY, "-q")[0] == 0
    code, out, err = run("similar", "x", "--corpus", "c.txt", "--vectors", "v.npy")
    assert (code, out) == (1, "")
    assert "v.npy: was made by another model" in err
    assert TINY in err


def test_vectors_of_other_texts_are_refused(run, tmp_path):
    argv = ("similar", "x", "--corpus", "c.txt", "--vectors", "v.npy", "-m", TINY)
    assert run(*argv)[0] == 0
    (tmp_path / "c.txt").write_text("one\n")
    code, _, err = run(*argv)
    assert code == 1
    assert "v.npy: has 5 rows, and the corpus has 1 texts" in err
