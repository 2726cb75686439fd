"""`embed --on-truncate chunk`: a vector for each piece of a text, that of the piece alone."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from front import (
    TINY,
    call,
    good,
    json_in,
    jsonl,
)

pytestmark = pytest.mark.usefixtures("usual_engine")

CHUNKS = ("--max-length", 12, "--overlap", 3, "--at", "sentence")
EMBED = ("embed", "-q", "-m", TINY, "--device", "cpu", "--threads", 1)
CHUNKED = (*EMBED, *CHUNKS, "--on-truncate", "chunk")
LATE = (*EMBED, *CHUNKS, "--on-truncate", "late-chunk")
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


@pytest.mark.parametrize("chunked", [CHUNKED, LATE], ids=["chunk", "late"])
def test_every_format_has_the_place_of_every_row(docs, tmp_path, chunked):
    expected = good(*chunked, "-i", docs, "-f", "jsonl").rows
    vectors = np.array([row["embedding"] for row in expected], np.float32)
    places = [{name: row[name] for name in PLACE} for row in expected]
    for form in ("npy", "npz", "safetensors", "jsonl", "csv", "parquet"):
        out = tmp_path / f"out.{form}"
        good(*chunked, "-i", docs, "-o", out)
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


def test_a_prompt_counts(tmp_path):
    text = "the quick brown fox is a quick fox " * 3
    argv = (*EMBED, text, "-f", "jsonl", "--max-length", 12)
    rows = good(*argv, "--on-truncate", "chunk", "--prompt", "paris is: ").rows
    assert max(row["n_tokens"] for row in rows) == 12
    assert [row["start"] for row in rows[1:]] == [row["end"] for row in rows[:-1]]
    pieces = [text[row["start"] : row["end"]] for row in rows]
    alone = good(*EMBED, *pieces, "-f", "jsonl", "--prompt", "paris is: ").rows
    assert [row["embedding"] for row in alone] == [row["embedding"] for row in rows]


def test_a_pair_in_the_input_is_refused_or_skipped(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text":"a"}\n{"text":"a","pair":"b"}\n{"text":"c"}\n')
    argv = ("embed", "-m", TINY, "-i", path, "--on-truncate", "chunk", "-f", "jsonl")
    done = call(*argv)
    assert done.code == 1
    assert f"error: {path}:2: a pair of texts cannot be divided into chunks\n" in done.err
    done = call(*argv, "--on-error", "skip")
    assert (done.code, [row["id"] for row in done.rows]) == (1, [0, 2])
