"""Clients of other projects, and docs/serve.md."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from front import DEADLINE, environment, good
from test_readme import alike

GUIDE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
TEXTS = ["I love NLP!", "Zürich", ""]

pytestmark = pytest.mark.usefixtures("usual_engine")


@pytest.fixture(scope="module")
def expected():
    rows = good("embed", "-q", "--backend", "openvino", "--", *TEXTS).rows
    return np.array([row["embedding"] for row in rows], np.float32)


def same(found, vectors):
    assert np.array_equal(np.array(found, np.float32), vectors)


def test_openai(server, expected):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="any", max_retries=0)
    answer = client.embeddings.create(input=TEXTS, model="all-MiniLM-L6-v2")  # base64 inside
    same([row.embedding for row in answer.data], expected)
    assert answer.model == "all-MiniLM-L6-v2"
    asked = {"input": TEXTS, "model": "all-MiniLM-L6-v2", "encoding_format": "float"}
    same([row.embedding for row in client.embeddings.create(**asked).data], expected)
    short = client.embeddings.create(**asked, dimensions=8)
    assert {len(row.embedding) for row in short.data} == {8}
    cut = client.embeddings.create(
        input="word " * 300, model="all-MiniLM-L6-v2", extra_body={"truncate": True}
    )
    assert (cut.truncated, cut.usage.total_tokens) == ([0], 256)
    assert client.models.list().data[0].id == "sentence-transformers/all-MiniLM-L6-v2"
    with pytest.raises(openai.NotFoundError, match="is not served"):
        client.embeddings.create(input="a", model="other")
    with pytest.raises(openai.APIStatusError, match="302 tokens") as raised:
        client.embeddings.create(input="word " * 300, model="all-MiniLM-L6-v2")
    assert raised.value.status_code == 413
    client.close()


def test_huggingface_hub(server, expected, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    client = hub.InferenceClient(server.address)
    same(client.feature_extraction(TEXTS), expected)
    same(client.feature_extraction(TEXTS[0]), expected[:1])
    options = {"truncate": True, "truncation_direction": "left", "normalize": True}
    assert client.feature_extraction("word " * 300, **options).shape == (1, 384)
    with pytest.raises(hub.errors.HfHubHTTPError, match="302 tokens"):
        client.feature_extraction("word " * 300)
    client = hub.InferenceClient(f"{server.address}/similarity")
    scores = client.sentence_similarity("I love NLP!", other_sentences=TEXTS)
    assert np.allclose(scores, expected @ expected[0], atol=1e-6)


def test_langchain(server, expected):
    from langchain_openai import OpenAIEmbeddings

    embeddings = OpenAIEmbeddings(
        base_url=f"{server.address}/v1",
        api_key="any",
        model="all-MiniLM-L6-v2",
        check_embedding_ctx_length=False,  # else it sends ids of OpenAI's tokenizer
    )
    same(embeddings.embed_documents(TEXTS), expected)
    same(embeddings.embed_query(TEXTS[0]), expected[0])


def test_llama_index(server, expected):
    name = "llama_index.embeddings.text_embeddings_inference"
    llama_index = pytest.importorskip(name)
    embeddings = llama_index.TextEmbeddingsInference(
        model_name="minilm", base_url=server.address, text_instruction="", query_instruction=""
    )
    same(embeddings.get_text_embedding_batch(TEXTS[:2]), expected[:2])


def test_curl(server, expected):
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    body = json.dumps({"inputs": TEXTS})
    command = ["curl", "-s", f"{server.address}/embed", "-d", body]
    done = subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE)
    same(json.loads(done.stdout), expected)


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
@pytest.mark.parametrize("block", re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL))
def test_the_commands_of_the_guide(server, block):
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        line = command.replace("127.0.0.1:8080", server.host)
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, check=True, timeout=DEADLINE
        )
        assert alike(done.stdout.decode().strip(), shown.strip()), done.stdout.decode()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL))
def test_the_python_of_the_guide(server, code):
    pytest.importorskip(code.split()[1])
    told = "".join(f"{line[2:]}\n" for line in code.splitlines() if line.startswith("# "))
    code = code.replace("127.0.0.1:8080", server.host)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment({"HF_HUB_OFFLINE": "0"}),
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == (told, 0), done.stderr
