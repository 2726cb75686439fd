"""`embed --on-truncate chunk`: a vector for each piece of a text, that of the piece alone."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
from front import (
    TINY,
    bad,
    call,
    good,
    json_in,
    jsonl,
)

from bertcli.vectors.run_folder import RunFiles

pytestmark = pytest.mark.usefixtures("usual_engine")

CHUNKS = ("--max-length", 12, "--overlap", 3, "--at", "sentence")
EMBED = ("embed", "-q", "-m", TINY, "--device", "cpu", "--threads", 1)
CHUNKED = (*EMBED, *CHUNKS, "--on-truncate", "chunk")
PLACE = ("id", "chunk", "start", "end")


@pytest.fixture
def docs(tmp_path):
    """Return a file of documents with ids and without, empty, short and long."""
    path = tmp_path / "docs.jsonl"
    texts = [f"The fox {n} is quick. Paris is a b c. NLP? " * n for n in range(9)]
    rows = [{"id": f"d{n}", "text": text, "tag": n} for n, text in enumerate(texts)]
    del rows[4]["id"]
    path.write_text(jsonl(rows), "utf-8")
    return path


def piped(docs, *options, **more):
    """Return what embed makes of the chunks of `bertcli chunk`, as JSONL."""
    chunks = good("chunk", "-q", "-m", TINY, "-i", docs, *CHUNKS, "--keep-fields", **more).out
    return good(*EMBED, "--keep-fields", "chunk,start,end,tag", "-f", "jsonl", *options,
                stdin=chunks).out  # fmt: skip


def test_it_is_chunk_and_embed_to_the_last_bit(docs):
    done = good(*CHUNKED, "-i", docs, "--keep-fields", "tag", "-f", "jsonl")
    assert done.out == piped(docs)
    rows = done.rows
    assert {row["id"] for row in rows} == {"d0", "d1", "d2", "d3", 4, "d5", "d6", "d7", "d8"}
    assert [row["chunk"] for row in rows[:4]] == [0, 0, 1, 0]
    assert list(rows[0]) == ["id", "embedding", "n_tokens", "chunk", "start", "end", "tag"]


def test_every_format_has_the_place_of_every_row(docs, tmp_path):
    expected = good(*CHUNKED, "-i", docs, "-f", "jsonl").rows
    vectors = np.array([row["embedding"] for row in expected], np.float32)
    places = [{name: row[name] for name in PLACE} for row in expected]
    for form in ("npy", "npz", "safetensors", "jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{form}"
        good(*CHUNKED, "-i", docs, "-o", out)
        if form in ("npy", "npz", "safetensors"):
            index = Path(f"{out}.index.jsonl").read_text().splitlines()
            found = [json.loads(line) for line in index]
            assert found == [{"row": row, **place} for row, place in enumerate(places)]
            assert list(found[0]) == ["row", *PLACE]
    assert np.array_equal(np.load(tmp_path / "out.npy"), vectors)
    assert np.array_equal(np.load(tmp_path / "out.npz")["embeddings"], vectors)
    assert np.load(tmp_path / "out.npz")["ids"].tolist() == [str(row["id"]) for row in places]
    table = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [{name: row[name] for name in PLACE[1:]} for row in table] == [
        {name: row[name] for name in PLACE[1:]} for row in places
    ]
    header = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert header == "id,n_tokens,truncated,chunk,start,end,embedding"
    counts = json_in(tmp_path / "out.npy.manifest.json")["counts"]
    assert (counts["records"], counts["truncated"]) == (len(expected), 0)


@pytest.mark.parametrize("form", ["npy", "npz", "jsonl"])
def test_a_run_that_ends_anywhere_is_resumed(docs, tmp_path, form):
    whole, out = tmp_path / f"whole.{form}", tmp_path / f"out.{form}"
    argv = (*CHUNKED, "-i", docs, "--window", 5)
    good(*argv, "-o", whole)
    commit, codes = RunFiles.commit, []
    for _ in range(99):
        left = [3]  # commits until the next end

        def ending(folder, state, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            commit(folder, state)

        with mock.patch.object(RunFiles, "commit", ending):
            codes.append(call(*argv, "-o", out, "--resume").code)
        if codes[-1] != 130:
            break
    assert codes[-1] == 0 and len(codes) > 2
    for end in ("", *([] if form == "jsonl" else [".index.jsonl"])):
        assert Path(f"{out}{end}").read_bytes() == Path(f"{whole}{end}").read_bytes()


def test_another_division_is_another_run(docs, tmp_path):
    out = tmp_path / "out.npy"
    good(*CHUNKED, "-i", docs, "-o", out)
    options = json_in(Path(f"{out}.manifest.json"))["fingerprint"]["options"]
    assert (options["on_truncate"], options["overlap"], options["at"]) == ("chunk", 3, "sentence")
    failed = bad(*CHUNKED, "-i", docs, "-o", out, "--resume", "--at", "word")
    assert 'options.at was "sentence", now "word"' in failed.error


def test_a_prompt_counts(tmp_path):
    text = "the quick brown fox is a quick fox " * 3
    argv = (*EMBED, text, "-f", "jsonl", "--max-length", 12)
    rows = good(*argv, "--on-truncate", "chunk", "--prompt", "paris is: ").rows
    assert max(row["n_tokens"] for row in rows) == 12
    assert [row["start"] for row in rows[1:]] == [row["end"] for row in rows[:-1]]
    pieces = [text[row["start"] : row["end"]] for row in rows]
    alone = good(*EMBED, *pieces, "-f", "jsonl", "--prompt", "paris is: ").rows
    assert [row["embedding"] for row in alone] == [row["embedding"] for row in rows]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("a", "--pair", "b"), "--on-truncate chunk cannot be combined with --pair"),
        (("--pairs", "x.tsv"), "--on-truncate chunk cannot be combined with --pairs"),
        (("a", "--pre-split"), "--on-truncate chunk cannot be combined with --pre-split"),
        (("a", "--token-vectors"), "--on-truncate chunk makes one vector per chunk"),
        (("a", "--word-vectors", "mean"), "--on-truncate chunk makes one vector per chunk"),
        (("a", "--max-length", 9, "--overlap", 7), "--overlap 7 must be less than the 7 tokens"),
        (
            ("a", "--engine", "ray", "-o", "x.npy"),
            "--on-truncate chunk cannot be combined",
        ),
    ],
)
def test_what_cannot_be(argv, message):
    failed = bad("embed", "-m", TINY, "-f", "jsonl", "--on-truncate", "chunk", *argv, code=2)
    assert failed.error.startswith(message)


def test_a_pair_in_the_input_is_refused_or_skipped(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text":"a"}\n{"text":"a","pair":"b"}\n{"text":"c"}\n')
    argv = ("embed", "-m", TINY, "-i", path, "--on-truncate", "chunk", "-f", "jsonl")
    done = call(*argv)
    assert done.code == 1
    assert f"error: {path}:2: a pair of texts cannot be divided into chunks\n" in done.err
    done = call(*argv, "--on-error", "skip")
    assert (done.code, [row["id"] for row in done.rows]) == (1, [0, 2])


def test_an_overlap_alone_is_told_to_have_no_effect():
    done = call("embed", "a", "-m", TINY, "-f", "jsonl", "--overlap", 2)
    assert "warning: --overlap has no effect without --on-truncate chunk\n" in done.err


def test_pairs_of_a_sentence_model_get_a_note():
    told = "note: a pair becomes one vector of both texts"
    assert told in call("embed", "a", "--pair", "b", "-f", "jsonl").err
    assert told in call("embed", "--pairs", "-", "-f", "jsonl", stdin="a\tb\n").err
    assert told not in call("embed", "a", "-f", "jsonl").err
    assert told not in call("embed", "a", "--pair", "b", "-f", "jsonl", "-m", TINY).err


def test_truncation_names_the_ways_to_encode_all():
    done = call("embed", "a b c d e f", "-m", TINY, "-f", "jsonl", "--max-length", 4)
    assert "--on-truncate window encodes all of the text, chunk gives each" in done.err
    done = bad("embed", "a b c d", "-m", TINY, "-q", "-f", "jsonl", "--max-length", 4,
               "--on-truncate", "error")  # fmt: skip
    assert done.hint == "--on-truncate warn truncates texts, window and chunk encode all of them"
