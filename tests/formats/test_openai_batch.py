"""Batches of OpenAI's embeddings API: requests in, answers out, with the bodies of the server."""

import json

import pytest
from front import bad, call, good, jsonl, rows_in, struck

READ = ("embed", "-q", "--input-format", "openai-batch")
WRITE = ("-f", "openai-batch")


def request(key, given, **body):
    return {
        "custom_id": key,
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "all-MiniLM-L6-v2", "input": given, **body},
    }


REQUESTS = [
    request("one", "I love NLP!"),
    request("two", ["Zürich", "", "word " * 300], encoding_format="float"),
    request("base", ["a", "b"], encoding_format="base64"),
    request("one", "the same name again"),
]


@pytest.fixture
def batch(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text(jsonl(REQUESTS))
    return path


@pytest.mark.usefixtures("usual_engine")
def test_the_bodies_are_those_of_the_server(batch):
    served = pytest.importorskip("served")
    pytest.importorskip("uvicorn")
    rows = good(*READ, "-i", batch, *WRITE).rows
    assert [row["custom_id"] for row in rows] == ["one", "two", "base", "one"]
    assert [row["response"]["status_code"] for row in rows] == [200] * 4
    assert len({row["id"] for row in rows}) == 4
    assert {row["error"] for row in rows} == {None}
    with served.running() as server:
        bodies = [
            server.good("/v1/embeddings", asked["body"] | {"truncate": True}) for asked in REQUESTS
        ]
    assert [row["response"]["body"] for row in rows] == bodies
    assert bodies[1]["truncated"] == [2]


def test_files_and_streams_have_the_same_bytes(batch, tmp_path):
    stream = good(*READ, "-i", batch, *WRITE).stdout
    assert good(*READ, *WRITE, stdin=batch.read_bytes()).stdout == stream
    for name in ("out.jsonl", "out.ndjson", "out.txt", "out.jsonl.gz"):
        good(*READ, "-i", batch, *WRITE, "-o", tmp_path / name)
    assert (tmp_path / "out.jsonl").read_bytes() == stream
    assert (tmp_path / "out.txt").read_bytes() == stream
    error = bad(*READ, "-i", batch, *WRITE, "-o", tmp_path / "out.csv", code=2).error
    assert ".csv is the suffix of csv, not of openai-batch" in error


def test_a_killed_run_resumes_to_the_same_bytes(tmp_path):
    path = tmp_path / "batch.jsonl"
    path.write_text(jsonl(request(f"r{n}", [f"text {n}", "word " * (n % 40)]) for n in range(300)))
    command = (*READ, "-i", path, *WRITE, "-o", tmp_path / "out.jsonl", "--resume", "--window", 64)
    assert struck("SIGKILL", *command, "--backend", "torch") == -9
    assert not (tmp_path / "out.jsonl").exists()
    good(*command)
    good(*READ, "-i", path, *WRITE, "-o", tmp_path / "again.jsonl", "--window", 64)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "again.jsonl").read_bytes()
    assert len(rows_in(tmp_path / "out.jsonl")) == 300


def test_dimensions_are_those_of_the_run(tmp_path):
    line = json.dumps(request("a", "x", dimensions=8))
    refused = bad(*READ, *WRITE, stdin=line)
    assert refused.error == "line 1 asks for 8 dimensions, and the vectors have 384"
    assert refused.hint.startswith("give --dim 8")
    path = tmp_path / "batch.jsonl"
    path.write_text(line)
    assert bad(*READ, "-i", path, *WRITE, "-o", tmp_path / "out.jsonl").error == refused.error
    (row,) = good(*READ, *WRITE, "--dim", 8, stdin=line).rows
    assert len(row["response"]["body"]["data"][0]["embedding"]) == 8


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        ('{"body": {"input": "a"}}', "custom_id: expected a string, but it is missing"),
        ('{"custom_id": "a"}', "body.input: expected a text or a list of texts"),
        ('{"custom_id": "a", "body": {"input": [1]}}', "body.input: expected a text"),
        ('{"custom_id": "a", "body": {"input": []}}', "body.input: expected a text"),
        ('{"custom_id": "a", "body": {"input": "\\ud800"}}', "body.input: expected a text"),
        ('{"custom_id": "a", "url": "/v1/chat", "body": {"input": "a"}}', 'url: expected "/v1/emb'),
        ('{"custom_id": "a", "body": {"input": "a", "encoding_format": 1}}', "encoding_format"),
    ],
)
def test_what_is_no_request(line, error):
    refused = bad(*READ, *WRITE, stdin=line)
    assert refused.error.startswith("stdin:1: ") and error in refused.error
    lines = f"{line}\n\n{json.dumps(REQUESTS[0])}\n"
    done = call(*READ, *WRITE, "--on-error", "skip", stdin=lines)
    assert (done.code, [row["custom_id"] for row in done.rows]) == (1, ["one"])


def test_other_formats(batch, tmp_path):
    rows = good(*READ, "-i", batch).rows
    assert [(row["id"], row["request"]["index"]) for row in rows][1:3] == [("two", 0), ("two", 1)]
    good(*READ, "-i", batch, "-o", tmp_path / "out.npy")
    (row,) = good("embed", "-q", "--input-format", "txt", *WRITE, stdin="a\n").rows
    assert (row["custom_id"], row["response"]["body"]["usage"]["total_tokens"]) == ("0", 3)
    ids = good("tokenize", "-q", "--input-format", "openai-batch", "-i", batch).ids
    assert len(ids) == 7
    for options in (["--token-vectors"], ["--sparse"], ["--on-truncate", "chunk"]):
        assert bad(*READ, "-i", batch, *WRITE, *options, code=2).error


def test_two_files(batch, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(jsonl(REQUESTS[:1]))
    rows = good(*READ, "-i", other, "-i", other, "-i", batch, *WRITE).rows
    assert [row["custom_id"] for row in rows] == ["one", "one", "one", "two", "base", "one"]
