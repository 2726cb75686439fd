"""The nearest texts: by cosine, whatever the blocks, and never with another model's vectors."""

import json
import os
import re
import shutil
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from front import (
    bad,
    call,
    good,
    json_in,
    jsonl,
    put_json,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal import at_terminal
from vector_files import normal

from bertcli.cli import app
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.model_folder.hub_cache import DEFAULT_MODEL
from bertcli.retrieval.nearest import Nearest

SAMPLES = Path(__file__).parents[2] / "samples"
TINY = str(SAMPLES / "tiny-bert")
TEXTS = ["The cat sat on the mat", "Stocks fell on Friday", "A kitten plays", "", "Dogs bark"]


def nearest(queries, blocks, k):
    """The nearest rows of all blocks for each query."""
    found = Nearest(queries, k)
    for vectors in blocks:
        found.add(vectors)
    return found.matches()


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.txt").write_text("".join(text + "\n" for text in TEXTS))

    def run(*argv):
        code = app.main([*argv])
        return code, *capfd.readouterr()

    return run


def found(out):
    """The hits of all queries."""
    return [hit for line in out.splitlines() for hit in json.loads(line)["hits"]]


@pytest.mark.parametrize("struck", ["sync_folder", "move"])
def test_vectors_of_a_search_that_was_killed_while_it_kept_them(run, tmp_path, struck):
    argv = ["similar", "-m", TINY, "kitten", "--vectors", "v.npy", "-q", "--corpus", "c.txt"]
    whole = run(*argv)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for path in tmp_path.glob("v.*"):
        path.unlink()
    with mock.patch(f"bertcli.io.output_files.{struck}", side_effect=KeyboardInterrupt):
        assert run(*argv)[0] == 130
    assert run(*argv) == whole
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


@pytest.mark.parametrize("queries", ["kitten\n", ""])
@pytest.mark.parametrize("command", ["similar", "map", "duplicates"])
def test_vectors_that_were_changed_give_no_result(command, queries, run, tmp_path):
    """Also where they are read before the check is done, and cannot be read."""
    made = ("-m", TINY, "--vectors", "v.npy", "-q")
    good("similar", "kitten", *made, "--corpus", "c.txt")
    whole = Path("v.npy").read_bytes()
    texts = () if command == "similar" else ("c.txt",)
    nan = np.float32("nan").tobytes()
    for changed in (
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole[:-4] + nan,
        whole[:-100],
        whole[:50],
    ):
        Path("v.npy").write_bytes(changed)
        output = ("-o", "x.html") if command == "map" else ()
        done = bad(command, *texts, *made, *output, stdin=queries)
        assert done.error.startswith("v.npy: was changed after it was made: its sha256 differs")
        assert not Path("x.html").exists()


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=5),
    k=st.integers(1, 50),
    seed=st.integers(0, 9),
    doubled=st.lists(st.integers(0, 39), max_size=6),
)
def test_the_best_rows_whatever_the_blocks(cuts, k, seed, doubled):
    """Equal vectors score alike, and the earlier row comes first."""
    corpus, queries = normal(40, 6, seed=seed), normal(3, 6, seed=99)
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


@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize("lengths", ["one", "nearly one", "random"])
@pytest.mark.parametrize("k", [1, 10, 700])
def test_the_best_of_many_rows_are_those_of_float64(lengths, k, dot):
    """The products in float32 leave out no row, also among thousands of equal ones."""
    draw = np.random.default_rng(3)
    corpus = draw.normal(size=(3000, 24))
    corpus /= np.linalg.norm(corpus, axis=1, keepdims=True)
    if lengths == "nearly one":
        corpus *= draw.uniform(1 - 4e-6, 1 + 4e-6, size=(3000, 1))
    if lengths == "random":
        corpus *= draw.uniform(0.5, 2, size=(3000, 1))
    corpus[1000:2500] = corpus[0]
    corpus[2500:2600] = corpus[0] + draw.normal(size=(100, 24)) * 1e-7  # differ by their rounding
    corpus = corpus.astype(np.float32)
    queries = np.concatenate([draw.normal(size=(300, 24)), corpus[:2]]).astype(np.float32)
    found = Nearest(queries, k, dot=dot)
    for block in np.split(corpus, [100, 2200, 2700]):
        found.add(block)
    wide = queries.astype(np.float64), corpus.astype(np.float64)
    if not dot:
        wide = tuple(x / np.linalg.norm(x, axis=1, keepdims=True) for x in wide)
    scores = (wide[0] @ wide[1].T).round(9)
    for best, row in zip(found.matches(), scores, strict=True):
        assert [match.score for match in best] == pytest.approx(np.sort(row)[::-1][:k], abs=2e-9)
        assert best == sorted(best, key=lambda match: (-match.score, match.row))
        assert row[[match.row for match in best]] == pytest.approx(
            [match.score for match in best], abs=2e-9
        )


def test_many_hits_that_do_not_exist_take_no_memory():
    found = Nearest(normal(300, 8, seed=1), 10**9)
    for seed in range(2):
        found.add(normal(50, 8, seed=seed))
    assert {len(matches) for matches in found.matches()} == {100}
    assert found._best_scores.shape == (300, 100)


def test_a_vector_of_zeros_is_like_nothing():
    found = nearest(normal(1, 6), [np.zeros((1, 6), np.float32), -normal(1, 6)], 2)[0]
    assert [(match.row, match.score) for match in found] == [(0, 0), (1, -1)]


def test_command_finds_kittens(run):
    code, out, err = run("similar", "young cats", "finance", "--corpus", "c.txt", "-k", "2", "-q")
    assert (code, err) == (0, "")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [list(answer) for answer in answers] == [["query", "hits"]] * 2
    assert [answer["query"] for answer in answers] == ["young cats", "finance"]
    assert [len(answer["hits"]) for answer in answers] == [2, 2]
    hits = answers[0]["hits"]
    assert list(hits[0]) == ["row", "id", "score", "text"]
    assert [hit["text"] for hit in hits] == ["A kitten plays", "The cat sat on the mat"]
    assert hits[0]["row"] == hits[0]["id"] == 2


def test_vectors_are_written_and_reused(run, monkeypatch):
    argv = ("similar", "young cats", "--corpus", "c.txt", "-m", TINY, "-q", "--vectors", "v.npy")
    code, first, _ = run(*argv)
    assert (code, len(found(first))) == (0, len(TEXTS) - 1)
    assert np.load("v.npy").shape == (len(TEXTS), 32)
    monkeypatch.setattr("bertcli.retrieval.search.Search.vector_run", None)  # would be a TypeError
    code, again, err = run(*argv)
    assert (code, again, err) == (0, first, "")
    assert run(*argv[:-2])[1] == first


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        *((("--pooling", "cls"), precision) for precision in ("float32", "int8", "binary")),
        *((("--layers", "1"), precision) for precision in ("float32", "int8", "binary")),
        *((("--dim", "24"), precision) for precision in ("float32", "int8")),
    ],
)
def test_queries_are_encoded_as_the_corpus_was(run, options, precision):
    """A text of the corpus as the query finds itself, whatever its vectors are made of."""
    tiny = ("-m", TINY, "-q")
    done = run("embed", "-i", "c.txt", "-o", "v.npy", *options, "--precision", precision, *tiny)
    assert done[0] == 0
    argv = ("similar", TEXTS[2], "--corpus", "c.txt", "--vectors", "v.npy", "-k", "1", *tiny)
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
    put_json(folder / "config_sentence_transformers.json", prompts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(str(folder), device="cpu")
        query, corpus = model.encode_query(["young cats"]), model.encode_document(TEXTS)
    hits = semantic_search(query, corpus, top_k=5)[0]
    argv = ("--corpus", "c.txt", "-m", str(folder), "-q", "--no-skip-empty")
    code, out, _ = run("similar", "young cats", *argv)
    assert code == 0
    assert [row["row"] for row in found(out)] == [hit["corpus_id"] for hit in hits]
    ours = [row["score"] for row in found(out)]
    assert ours == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_texts_have_the_prompt_of_passages_too(run, tmp_path):
    """As sentence-transformers documents; 6.2 itself finds an empty prompt 'document' first."""
    folder = tmp_path / "prompted"
    shutil.copytree(TINY, folder)
    prompts = {"prompts": {"passage": "A thing: "}}
    put_json(folder / "config_sentence_transformers.json", prompts)
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


@pytest.mark.parametrize("more", [(), ("--vectors", "v.npy")])
def test_texts_that_are_cut_are_counted(run, tmp_path, more):
    (tmp_path / "long.txt").write_text("cat " * 400 + "\ncat\n")
    code, _, err = run("similar", "cat", "--corpus", "long.txt", "-m", TINY, *more)
    assert code == 0
    assert "warning: 1 of 2 texts truncated to 128 tokens" in err


def test_an_empty_corpus(run, tmp_path):
    (tmp_path / "none.txt").write_text("")
    argv = ("similar", "x", "--corpus", "none.txt", "-m", TINY)
    code, out, err = run(*argv)
    assert (code, out) == (0, '{"query":"x","hits":[]}\n')
    assert "note: no records" in err
    assert run(*argv, "-f", "csv", "-q")[1] == "query,rank,score,row,id,text\n"


def test_vectors_of_another_model_are_refused(run):
    assert run("embed", "-i", "c.txt", "-o", "v.npy", "-m", TINY, "-q")[0] == 0
    for more in (("--corpus", "c.txt"), ()):
        code, out, err = run("similar", "x", *more, "--vectors", "v.npy")
        assert (code, out) == (1, "")
        assert "v.npy: was made by another model" in err
        assert TINY in err


def test_vectors_of_other_texts_are_refused(run, tmp_path):
    argv = ("similar", "x", "--corpus", "c.txt", "--vectors", "v.npy", "-m", TINY)
    assert run(*argv)[0] == 0
    (tmp_path / "c.txt").write_text("one\n")
    code, _, err = run(*argv)
    assert code == 1
    assert "v.npy: has 5 rows, and the corpus has 1 text" in err


# --- queries from everywhere, vectors alone -----------------------------------------------------

SMALL = ("similar", "-m", TINY, "-q")


@pytest.fixture
def corpus(tmp_path):
    """Records with ids and a field; their vectors are in v.npy."""
    lines = [{"id": f"n{at}", "text": text, "kind": at % 2} for at, text in enumerate(TEXTS)]
    (tmp_path / "c.jsonl").write_text(jsonl(lines))
    good("embed", "-i", tmp_path / "c.jsonl", "-o", tmp_path / "v.npy", "-m", TINY, "-q")
    return tmp_path


def test_queries_from_arguments_a_file_and_a_pipe_are_the_same(corpus):
    where = ("--corpus", corpus / "c.jsonl", "--vectors", corpus / "v.npy")
    expected = good(*SMALL, *TEXTS, *where).out
    (corpus / "q.txt").write_text("".join(text + "\n" for text in TEXTS))
    lines = [json.dumps({"id": at, "asked": text}) + "\n" for at, text in enumerate(TEXTS)]
    (corpus / "q.jsonl").write_text("".join(lines))
    assert good(*SMALL, "-i", corpus / "q.txt", *where).out == expected
    assert good(*SMALL, *where, stdin=(corpus / "q.txt").read_bytes()).out == expected
    assert good(*SMALL, "-i", corpus / "q.txt", *where[:2]).out == expected
    rows = good(*SMALL, "-i", corpus / "q.jsonl", "--query-field", "asked", *where).rows
    assert [row.pop("id") for row in rows] == [*range(5)]
    assert rows == [json.loads(line) for line in expected.splitlines()]


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors", "jsonl", "csv", "parquet"])
def test_vectors_alone_answer_with_the_ids_kept_beside_them(corpus, form):
    out = corpus / f"other.{form}"
    good("embed", "-i", corpus / "c.jsonl", "-o", out, "-m", TINY, "-q")
    argv = (*SMALL, TEXTS[4], "--corpus", corpus / "c.jsonl", "--vectors", out)
    with_texts = good(*argv, "--no-skip-empty").rows
    assert good(*argv[:-2], "--no-skip-empty").rows == with_texts
    (answer,) = good(*SMALL, TEXTS[4], "--vectors", out).rows
    expected = [{key: hit[key] for key in ("row", "id", "score")} for hit in with_texts[0]["hits"]]
    assert answer == {"query": TEXTS[4], "hits": expected}
    assert expected[0]["id"] == "n4"
    table = good(*SMALL, TEXTS[4], "--vectors", out, "-f", "csv", "-k", 1).out.splitlines()
    assert table[0] == "query,rank,score,row,id"


def test_rows_without_an_id_have_their_number(corpus):
    (corpus / "c.txt").write_text("one\ntwo\n")
    for form in ("npy", "npz", "jsonl"):
        out = corpus / f"w.{form}"
        good("embed", "-i", corpus / "c.txt", "-o", out, "-m", TINY, "-q")
        (answer,) = good(*SMALL, "two", "--vectors", out).rows
        assert [(hit["row"], hit["id"]) for hit in answer["hits"]] == [(1, 1), (0, 0)]


def test_vectors_without_a_manifest_are_searched_where_they_fit(corpus):
    where = ("--corpus", corpus / "c.jsonl", "--vectors", corpus / "v.npy")
    expected = good(*SMALL, "a cat", *where).out
    (corpus / "v.npy.manifest.json").unlink()
    assert good(*SMALL, "a cat", *where).out == expected
    done = call("similar", "-m", TINY, "a cat", *where)
    assert "warning: " in done.err and "v.npy: no manifest says which model made it" in done.err
    (corpus / "v.npy.manifest.json").write_text("{}")
    assert good(*SMALL, "a cat", *where).out == expected
    refused = bad("similar", "a cat", *where, "-q")
    assert "v.npy: has 32 dimensions, and the model 384" in refused.error
    assert "--model" in refused.hint


@pytest.mark.parametrize("changed", [{"pooling": [1]}, {"layers": 5}, {"special_tokens": "x"}])
def test_a_manifest_whose_options_are_of_another_type(corpus, changed):
    manifest = json_in(corpus / "v.npy.manifest.json")
    manifest["fingerprint"]["options"] |= changed
    put_json(corpus / "v.npy.manifest.json", manifest)
    refused = bad(*SMALL, "a cat", "--corpus", corpus / "c.jsonl", "--vectors", corpus / "v.npy")
    assert f"fingerprint.options.{next(iter(changed))}: expected " in refused.error


def test_a_threshold_leaves_out_what_is_less_alike(corpus):
    where = ("--corpus", corpus / "c.jsonl")
    (answer,) = good(*SMALL, TEXTS[0], *where).rows
    least = answer["hits"][2]["score"]
    for more in ((), ("--vectors", corpus / "v.npy")):
        (fewer,) = good(*SMALL, TEXTS[0], *where, *more, "--threshold", least).rows
        assert fewer["hits"] == answer["hits"][:3]
    none = good(*SMALL, TEXTS[0], *where, "--threshold", 1.1)
    assert none.rows == [{"query": TEXTS[0], "hits": []}]
    assert "no results" in good(*SMALL, "x", *where, "--threshold", 1.1, "-f", "table").out


def test_fields_of_the_corpus_are_kept_on_request(corpus):
    for more in ((), ("--vectors", corpus / "v.npy")):
        argv = (*SMALL, TEXTS[1], "--corpus", corpus / "c.jsonl", *more, "-k", 1, "--keep-fields")
        (answer,) = good(*argv).rows
        hit = answer["hits"][0]
        assert list(hit) == ["row", "id", "score", "text", "kind"]
        assert (hit["id"], hit["kind"]) == ("n1", 1)
        assert good(*argv, "kind", "-f", "csv").out.splitlines()[0].endswith(",id,text,kind")
    (corpus / "taken.jsonl").write_text('{"text": "a", "score": 1}\n')
    refused = bad(*SMALL, "a", "--corpus", corpus / "taken.jsonl", "--keep-fields")
    assert "field 'score' cannot be kept" in refused.error


def test_queries_that_are_cut_are_counted(corpus):
    done = call("similar", "-m", TINY, "one " * 200, "--vectors", corpus / "v.npy")
    assert "warning: 1 of 1 queries truncated to 128 tokens (474 dropped)" in done.err


@pytest.mark.parametrize("more", [(), ("--vectors", "new.npy")])
def test_a_prompt_on_a_terminal(corpus, more, tmp_path, monkeypatch):
    """Ctrl-D ends."""
    monkeypatch.chdir(tmp_path)
    long = "one two three " * 30
    (tmp_path / "c.jsonl").write_text(jsonl({"text": text, "kind": "K"} for text in (long, *TEXTS)))
    ask = b"query> "
    argv = ("similar", "-m", TINY, "--corpus", "c.jsonl", "-k", 2, "--keep-fields")
    dialog = [(ask, long.encode()[:60] + b"\n"), (ask, b"9\n"), (ask, b"\x04")]
    code, seen = at_terminal(*argv, *more, stdin=None, typed=dialog, env=[("BERTCLI_QUIET", "1")])
    assert code == 0, seen
    first, again, *_ = re.sub(rb"\x1b\[[0-9;?]*[a-z]", b"", seen).split(ask)[1:]
    assert first.count(b"0.") == again.count(b"0.") == 2
    assert b"score" in again
    assert (tmp_path / "new.npy").exists() == bool(more)


def test_no_prompt_where_the_output_is_no_table(corpus):
    argv = ("similar", "-m", TINY, "--vectors", corpus / "v.npy", "-f", "jsonl")
    code, seen = at_terminal(*argv, stdin=None)
    assert (code, seen.splitlines()[0].endswith(b" no input")) == (2, True)


# --- notes, stores, empty texts, dot products ---------------------------------------------------


@pytest.fixture
def notes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes" / "sub").mkdir(parents=True)
    (tmp_path / "notes" / "a.txt").write_text("stocks fell\n\nthe cat sat\n")
    paragraphs = [f"Paragraph {at} about stations and rails and trains.\n\n" for at in range(40)]
    (tmp_path / "notes" / "sub" / "b.md").write_text("".join(paragraphs))
    (tmp_path / "notes" / "c.xlsx").write_bytes(b"PK\x03\x04")
    return tmp_path / "notes"


@pytest.mark.parametrize("more", [(), ("--vectors", "v.npy")])
def test_a_folder_of_notes_answers_with_passages(notes, more):
    done = call("similar", "where do trains stop", "--corpus", "notes", "-k", 2, *more)
    assert "notes: skipped 1 file of unknown type: c.xlsx" in done.err
    for hit in done.rows[0]["hits"]:
        assert (hit["id"], hit["file"]) == ("notes/sub/b.md",) * 2
        document = (notes / "sub" / "b.md").read_text()
        assert hit["text"] == document[hit["start"] : hit["end"]]
        assert hit["line"] == 1 + document[: hit["start"]].count("\n")
        assert hit["text"].startswith("Paragraph") and hit["text"].endswith("trains.\n\n")
    (answer,) = good("similar", "-q", "a cat", "--corpus", "notes/*.txt", "-k", 1).rows
    assert answer["hits"][0] | {"file": "notes/a.txt", "line": 3} == answer["hits"][0]
    table = call("similar", "a cat", "--corpus", "notes", "-k", 1, "-f", "table")
    assert "notes/a.txt:3" in table.out
    if more:
        (alone,) = good("similar", "-q", "where do trains stop", *more, "-k", 2).rows
        fields = [{**hit, "text": 0} for hit in done.rows[0]["hits"]]
        assert [{**hit, "text": 0} for hit in alone["hits"]] == fields


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_vectors_with_their_fields_are_a_search_store(corpus, form):
    store = corpus / f"store.{form}"
    argv = ("embed", "-q", "-m", TINY, "-i", corpus / "c.jsonl", "-o", store)
    good(*argv, "--keep-fields")
    (answer,) = good(*SMALL, "a cat", "--corpus", corpus / "c.jsonl", "--keep-fields").rows
    (stored,) = good(*SMALL, "a cat", "--vectors", store).rows
    kinds = [{**hit, "kind": str(hit["kind"])} for hit in answer["hits"]]
    assert [{**hit, "kind": str(hit["kind"])} for hit in stored["hits"]] == kinds
    (without,) = good(*SMALL, "a cat", "--vectors", store, "--keep-fields", "kind").rows
    assert without == stored
    assert "available: kind" in bad(*SMALL, "a", "--vectors", store, "--keep-fields", "x").hint


def test_empty_texts_are_no_hits_unless_asked_for(corpus):
    where = ("--corpus", corpus / "c.jsonl")
    for more in ((), ("--vectors", corpus / "v.npy")):
        (answer,) = good(*SMALL, "", *where, *more).rows
        assert sorted(hit["row"] for hit in answer["hits"]) == [0, 1, 2, 4]
        (answer,) = good(*SMALL, "", *where, *more, "--no-skip-empty", "-k", 1).rows
        assert answer["hits"][0]["row"] == 3
    left_out = call("similar", "-m", TINY, "a", *where, "--skip-empty")
    assert "note: 1 empty text left out" in left_out.err
    assert sorted(hit["row"] for hit in left_out.rows[0]["hits"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_stored_texts_that_are_empty_take_no_place_of_hits(tmp_path, form):
    texts = ["", "a", " ", "b c", "", "d"]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    vectors = tmp_path / f"v.{form}"
    good("embed", "-q", "-m", TINY, "-i", corpus, "--keep-fields", "text", "-o", vectors)
    argv = ("similar", "-q", "-m", TINY, "", "a", "--vectors", vectors)
    for count in (1, 2, 5):
        for answer in good(*argv, "-k", count).rows:
            found = [hit["row"] for hit in answer["hits"]]
            assert len(found) == min(count, 3) and {*found} <= {1, 3, 5}
    with_empty = good(*argv, "-k", 1, "--no-skip-empty").rows
    assert [answer["hits"][0]["row"] for answer in with_empty] == [0, 1]


@pytest.mark.parametrize("command", ["similar", "duplicates"])
def test_what_a_run_that_was_killed_at_its_end_left_is_removed(command, corpus):
    vectors = corpus / "v.npy"
    argv = {
        "similar": ("similar", "a cat", "--corpus", corpus / "c.jsonl"),
        "duplicates": ("duplicates", corpus / "c.jsonl"),
    }[command]
    argv = (*argv, "-m", TINY, "-q", "--vectors", vectors)
    expected = good(*argv).out
    names = sorted(os.listdir(corpus))
    for left in ("bertcli.lock", "vectors", "index"):
        (corpus / "v.npy.run").mkdir()
        for name in {"bertcli.lock", left}:
            (corpus / "v.npy.run" / name).touch()
        assert good(*argv).out == expected
        assert sorted(os.listdir(corpus)) == names


def test_the_similarity_is_that_of_the_model(corpus):
    folder = corpus / "model"
    shutil.copytree(TINY, folder)
    config = folder / "config_sentence_transformers.json"
    config.write_text('{"similarity_fn_name": "dot"}')
    vectors = {text: good("embed", "-q", "-m", folder, text).rows[0] for text in TEXTS}
    query, *others = (np.array(vectors[text]["embedding"]) for text in TEXTS)
    where = ("-m", folder, TEXTS[0], "--corpus", corpus / "c.jsonl")
    done = call("similar", *where)
    scores = {hit["text"]: hit["score"] for hit in done.rows[0]["hits"]}
    assert scores[TEXTS[0]] == pytest.approx(query @ query, rel=1e-5)
    assert scores[TEXTS[2]] == pytest.approx(query @ others[1], rel=1e-5)
    assert "note: scores are dot products" in done.err
    cosines = good("similar", "-q", *where, "--similarity", "cosine").out
    config.write_text('{"similarity_fn_name": "euclidean"}')
    assert good("similar", "-q", *where).out == cosines
    assert "euclidean similarity, the model's, is not available" in call("similar", *where).err


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_vectors_with_texts_show_them_without_a_corpus(tmp_path, suffix):
    corpus = tmp_path / "in.jsonl"
    corpus.write_text(jsonl({"id": text, "text": f"{text} fox", "n": 1} for text in ("a", "b")))
    vectors = tmp_path / f"v.{suffix}"
    good("embed", "-q", "-m", TINY, "-i", corpus, "--keep-fields", "-o", vectors)
    (answer,) = good("similar", "a fox", "-m", TINY, "--vectors", vectors).rows
    assert [hit["text"] for hit in answer["hits"]] == ["a fox", "b fox"]
    assert answer["hits"][0]["id"] == "a"


def test_names_of_files_as_queries_are_refused_with_the_option_that_reads_them(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("one\n")
    hint = "--corpus a.txt --corpus b.txt searches files; -i reads queries"
    two = bad("similar", "a.txt", "b.txt", code=2)
    assert (two.error, two.hint) == ("a.txt and b.txt are files, not queries", hint)
    three = bad("similar", "a.txt", "b.txt", "c.txt", "--corpus", "a.txt", code=2)
    assert (three.error, three.hint) == ("a.txt and 2 other queries are files", hint)
    one = bad("similar", "hi", "b.txt", code=2)
    assert (one.error, one.hint) == ("nothing to search", "--corpus b.txt searches that file")
    alone = bad("similar", "b.txt", code=2)
    assert alone.hint == "--corpus b.txt searches that file"
    assert call("similar", "hi", "b.txt", "-m", TINY, "--corpus", "a.txt").code == 0
