"""Many clients at once, and bodies that make no sense.

SERVE_REQUESTS=10000 sends that many requests of each test.
"""

import base64
import contextlib
import http.client
import json
import os
import random
import socket
import string
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from front import call, good, until
from served import running

REQUESTS = int(os.environ.get("SERVE_REQUESTS", "600"))
CLIENTS = 32
ALPHABET = [
    *string.ascii_letters,
    *string.punctuation,
    *"äßñ東京한국😀\u0301\u200b\0\n\t",
    *" " * 12,
]
WORDS = ["the", "fox", "unbelievable", "Zürich", "12.5%", "[SEP]", "##s", "東京", "😀", "\u202eabc"]

pytestmark = [pytest.mark.usefixtures("usual_engine"), pytest.mark.slow]


def random_text(chosen):
    """Return a text of 0 to 400 tokens, most of them short."""
    if chosen.random() < 0.3:
        return "".join(chosen.choices(ALPHABET, k=chosen.randint(0, 60)))
    longest = chosen.choice([1, 3, 3, 10, 10, 10, 30, 300])
    return " ".join(chosen.choices(WORDS, k=chosen.randint(0, longest)))


def vectors_by_text(texts):
    """Return the vectors that `bertcli embed` makes of texts."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    done = call("embed", "-q", "--input-format", "jsonl", stdin=lines)
    return {
        text: np.array(row["embedding"], np.float32)
        for text, row in zip(texts, done.rows, strict=True)
    }


def test_many_clients_get_the_bits_of_embed(server):
    chosen = random.Random(1)
    texts = list(dict.fromkeys(random_text(chosen) for _ in range(min(REQUESTS, 2000))))
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    rows = good("tokenize", "-q", "--input-format", "jsonl", stdin=lines).rows
    tokens = {text: len(row["input_ids"]) for text, row in zip(texts, rows, strict=True)}
    expected = vectors_by_text(texts)

    def client(number):
        """Send requests on one connection; return the number of texts compared."""
        chosen = random.Random(number)
        connection = server.connect()
        compared = 0
        for _ in range(REQUESTS // CLIENTS + 1):
            some = chosen.choices(texts, k=chosen.choice([1, 1, 1, 2, 5]))
            too_long = [index for index, text in enumerate(some) if tokens[text] > 256]
            may_cut = chosen.random() < 0.7
            body = {"truncate": may_cut}
            encoding = chosen.choice(["float", "base64"])
            path = chosen.choice(["/embed", "/v1/embeddings"])
            if path == "/embed":
                body["inputs"] = some if len(some) > 1 else some[0]
            else:
                body |= {"input": some, "encoding_format": encoding}
            answer = server.ask(path, body, connection=connection)
            if too_long and not may_cut:
                assert answer.status == 413
                assert f" {too_long[0]} has {tokens[some[too_long[0]]]} tokens" in answer.error
                continue
            assert answer.status == 200, answer
            found = answer.json
            if path == "/v1/embeddings":
                assert found.get("truncated", []) == too_long
                found = [row["embedding"] for row in found["data"]]
                if encoding == "base64":
                    found = [np.frombuffer(base64.b64decode(text), "<f4") for text in found]
            for text, vector in zip(some, found, strict=True):
                assert np.array_equal(np.array(vector, np.float32), expected[text]), text
            compared += len(some)
        connection.close()
        return compared

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) > REQUESTS / 2
    assert server.metric("bertcli_queue_requests") == 0


def test_pairs_have_the_same_scores_under_load(models):
    folder = models("BertForSequenceClassification", num_labels=3)
    chosen = random.Random(2)
    words = [word for word in WORDS if word.isprintable()]
    texts = [" ".join(chosen.choices(words, k=chosen.randint(1, 12))) for _ in range(40)]
    inputs = [[text] if chosen.random() < 0.3 else [text, chosen.choice(texts)] for text in texts]
    with running("-m", folder) as served:
        alone = [served.good("/predict", {"inputs": [pair]})[0] for pair in inputs]

        def client(number):
            chosen = random.Random(number)
            for _ in range(10):
                rows = chosen.choices(range(40), k=chosen.randint(1, 5))
                found = served.good("/predict", {"inputs": [inputs[row] for row in rows]})
                assert found == [alone[row] for row in rows]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(client, range(8)))


# --- requests that make no sense ---

PATHS = """
/v1/embeddings /embed /embed_all /embed_sparse /similarity /predict /rerank /tokenize /decode /
/health /metrics /info
""".split()  # noqa: SIM905
KEYS = """
input inputs query texts ids model truncate truncation_direction normalize prompt_name raw_scores
dimensions encoding_format source_sentence sentences parameters add_special_tokens return_text
skip_special_tokens
""".split()  # noqa: SIM905
VALUES = [
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308),
    *(
        "",
        "a",
        "right",
        "base64",
        "\0",
        "word " * 300,
        [],
        {},
        [[]],
        [None],
        ["a", 1],
        [["a", "b"]],
    ),
    *(["a"] * 3000, [101, 102], [[101], [10**9]], [2**32], {"a": {"b": []}}, [["a"] * 3]),
]


def random_body(chosen):
    """Return the bytes of a body: an object of wrong values, or no JSON at all."""
    match chosen.randrange(12):
        case 0:
            return bytes(chosen.randrange(256) for _ in range(chosen.randint(0, 200)))
        case 1:
            depth = chosen.choice([10, 1000, 200_000])
            return b'{"inputs":' + b"[" * depth + b"]" * chosen.choice([0, depth]) + b"}"
        case 2:
            return b'{"inputs": ' + b"9" * chosen.choice([20, 5000]) + b"}"
        case 3:
            return chosen.choice([b"NaN", b'{"inputs": NaN}', b'{"inputs": "\\udc00"}', b"null"])
    names = chosen.choices(KEYS, k=chosen.randint(0, 5))
    body = json.dumps({name: chosen.choice(VALUES) for name in names}).encode()
    if chosen.random() < 0.2:
        place = chosen.randint(0, len(body))
        body = body[:place] + bytes([chosen.randrange(256)]) + body[place + 1 :]
    return body


def head(path, *lines):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: a", *lines, "", ""]).encode()


def raw(server, content, *, end=socket.SHUT_WR):
    """Send bytes, close the connection or half of it, and return what comes back."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
        try:
            client.sendall(content)
            if end is None:
                return b""
            with contextlib.suppress(OSError):  # ENOTCONN if the server has reset the connection
                client.shutdown(end)
            parts = []
            while part := client.recv(1 << 16):
                parts.append(part)
            return b"".join(parts)
        except ConnectionError:
            return b""


def nonsense(server, chosen):
    """Send a request of a kind that no client sends."""
    path = chosen.choice(PATHS)
    body = random_body(chosen)
    length = f"Content-Length: {len(body)}"
    match chosen.randrange(8):
        case 0:
            raw(server, head(path, length) + body)
        case 1:
            raw(server, head(path, length) + body[: len(body) // 2])
        case 2:
            raw(server, head(path, length) + body, end=None)
        case 3:
            raw(server, head(path, "Transfer-Encoding: chunked") + b"5\r\nab\r\n" + body)
        case 4:
            raw(server, head(path, "Content-Length: -1", "Content-Length: x"))
        case 5:
            raw(server, head(path, "Transfer-Encoding: chunked") + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")
        case 6:
            raw(server, bytes(chosen.randrange(256) for _ in range(100)) + b"\r\n\r\n")
        case 7:
            raw(server, b"GET / HTTP/1.1\r\n" + b"A: " + b"a" * 100_000 + b"\r\n\r\n")


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForSequenceClassification"])
def test_requests_that_make_no_sense(models, architecture):
    statuses = set()

    def client(number, count):
        chosen = random.Random(number)
        for _ in range(count):
            if chosen.random() < 0.2:
                nonsense(served, chosen)
                continue
            method = chosen.choice(["POST"] * 9 + ["GET", "PUT", "OPTIONS", "HEAD"])
            try:
                answer = served.ask(chosen.choice(PATHS), random_body(chosen), method=method)
            except (http.client.HTTPException, ConnectionError):
                continue
            statuses.add(answer.status)

    memory = []  # MB, after each quarter
    with running("-m", models(architecture, num_labels=1)) as served:
        for quarter in range(4):
            with ThreadPoolExecutor(8) as pool:
                numbers = range(8 * quarter, 8 * quarter + 8)
                list(pool.map(client, numbers, [REQUESTS // 32 + 1] * 8))
            memory.append(served.memory())
        until(lambda: served.metric("bertcli_queue_requests") == 0)
        served.good("/tokenize", {"inputs": "a"})
    assert statuses <= {200, 400, 404, 405, 413, 424}, statuses
    assert memory[3] < memory[1] + 40, memory  # after a warm-up
    print(f"{architecture}: {memory} MB")
