"""What each route answers, and that its numbers are those of the commands."""

import base64
import json
import time
from unittest import mock

import numpy as np
import pytest
from front import call, good, put_json
from served import running
from task_models import LENGTH
from term_models import sparse

from bertcli.embedding.options import EmbedOptions
from bertcli.errors import InputError
from bertcli.model_folder.files import MODEL_FILES
from bertcli.model_folder.find import find_model
from bertcli.server import served_model
from bertcli.server.requests import RequestError
from bertcli.server.served_model import ServedModel

TEXTS = ["I love NLP!", "", "Zürich 東京 😀", "word " * 100, "a [SEP] b"]
IDS = [101, 1045, 2293, 17953, 2361, 999, 102]
LONG = "word " * 300  # 302 tokens, of 256
MODEL = "sentence-transformers/all-MiniLM-L6-v2"

pytestmark = pytest.mark.usefixtures("usual_engine")


def embedded(*texts, options=()):
    """Return the vectors of `bertcli embed`, float32 [n, D]."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    rows = good("embed", "-q", "--input-format", "jsonl", *options, stdin=lines).rows
    return np.array([row["embedding"] for row in rows], np.float32)


def same(found, expected):
    assert np.array_equal(np.array(found, np.float32), expected)


def test_vectors_have_the_bits_of_embed(server):
    answer = server.good("/v1/embeddings", {"input": TEXTS, "model": MODEL})
    assert [row["index"] for row in answer["data"]] == [0, 1, 2, 3, 4]
    same([row["embedding"] for row in answer["data"]], embedded(*TEXTS))
    tokens = sum(map(len, call("tokenize", "-q", "--", *TEXTS).ids))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    assert "truncated" not in answer
    same(server.good("/embed", {"inputs": TEXTS}), embedded(*TEXTS))
    same(server.good("/embed", {"inputs": TEXTS[0]}), embedded(TEXTS[0]))
    same(server.good("/", {"inputs": TEXTS}), embedded(*TEXTS))


def test_base64_and_dimensions(server):
    body = {"input": TEXTS, "encoding_format": "base64", "dimensions": 64}
    data = server.good("/v1/embeddings", body)["data"]
    found = [np.frombuffer(base64.b64decode(row["embedding"]), "<f4") for row in data]
    same(found, embedded(*TEXTS, options=["--dim", 64]))
    same(server.good("/embed", {"inputs": TEXTS, "dimensions": 64}), found)


def test_normalize(server):
    found = server.good("/embed", {"inputs": TEXTS, "normalize": False})
    same(found, embedded(*TEXTS, options=["--no-normalize"]))


@pytest.mark.parametrize("ids", [IDS, IDS[1:-1]], ids=["with special tokens", "without"])
def test_token_ids(server, ids):
    expected = embedded("I love NLP!")
    same(server.good("/embed", {"inputs": ids}), expected)
    answer = server.good("/v1/embeddings", {"input": [ids, ids]})
    same([row["embedding"] for row in answer["data"]], [*expected, *expected])
    assert answer["usage"]["total_tokens"] == 14
    assert np.shape(server.good("/embed_all", {"inputs": ids})) == (1, 7, 384)


def test_long_texts_are_an_error_unless_they_may_be_truncated(server):
    refused = server.ask("/v1/embeddings", {"input": ["short", LONG]})
    assert refused.status == 413
    assert refused.error.startswith("input 1 has 302 tokens, and the model takes 256")
    assert refused.json["error"]["code"] == "context_length_exceeded"
    assert server.ask("/embed", {"inputs": LONG}).status == 413
    assert server.ask("/embed", {"inputs": [1045] * 300}).status == 413
    body = {"input": ["short", LONG, LONG], "truncate": True}
    answer = server.good("/v1/embeddings", body)
    assert answer["truncated"] == [1, 2]
    same([row["embedding"] for row in answer["data"]], embedded("short", LONG, LONG))
    answer = server.ask("/embed", {"inputs": ["short", LONG], "truncate": True})
    assert (answer.status, answer.headers["x-truncated"]) == (200, "1")


def test_the_side_of_truncation(server):
    text = "one " * 200 + "two " * 200
    for side, word in {"Left": "two", "right": "one"}.items():
        body = {"inputs": text, "truncate": True, "truncation_direction": side}
        kept = {"Left": "one " * 54 + "two " * 200, "right": "one " * 200 + "two " * 54}[side]
        same(server.good("/embed", body), embedded(kept))
        ids = {"one": 2028, "two": 2048}
        body["inputs"] = [ids["one"]] * 200 + [ids["two"]] * 200
        same(server.good("/embed", body), embedded(kept)), word


def test_vectors_of_tokens(server):
    rows = good("embed", "-q", "--token-vectors", "-f", "jsonl", TEXTS[0], TEXTS[2]).rows
    found = server.good("/embed_all", {"inputs": [TEXTS[0], TEXTS[2]]})
    for vectors, row in zip(found, rows, strict=True):
        same(vectors, np.array(row["vectors"], np.float32))


def test_similarity(server):
    body = {"inputs": {"source_sentence": "a fox", "sentences": ["a dog", "a fox"]}}
    fox, dog = embedded("a fox", "a dog")
    found = server.good("/similarity", body)
    assert np.allclose(found, [fox @ dog, 1], atol=1e-6)
    assert server.good("/similarity", body["inputs"]) == found
    assert server.good("/", body) == found


def test_a_long_text_of_a_similarity_is_named(server):
    long = "word " * 300
    inputs = {"source_sentence": "short", "sentences": ["ok", long]}
    answer = server.ask("/similarity", {"inputs": inputs})
    assert (answer.status, "sentences 1 has 302 tokens" in answer.error) == (413, True)
    both = {"inputs": inputs | {"source_sentence": long}}
    assert "source_sentence has 302 tokens" in server.ask("/similarity", both).error
    headers = server.ask("/similarity", both | {"parameters": {"truncate": True}}).headers
    assert (headers["x-truncated"], headers["x-truncated-count"]) == ("source_sentence,1", "2")
    many = {"inputs": {"source_sentence": "a", "sentences": ["b"] * 2049}}
    assert "sentences has 2049 texts" in server.ask("/similarity", many).error


def test_tokens_and_texts(server):
    ((first, *_, last),) = server.good("/tokenize", {"inputs": "I love NLP!"})
    nothing = {"start": None, "stop": None}
    assert first == {"id": 101, "text": "[CLS]", "special": True} | nothing
    assert last == {"id": 102, "text": "[SEP]", "special": True} | nothing
    body = {"inputs": ["é NLP!"], "add_special_tokens": False}
    (tokens,) = server.good("/tokenize", body)
    assert [token["text"] for token in tokens] == ["é", "NL", "P", "!"]
    assert [(token["start"], token["stop"]) for token in tokens][:2] == [(0, 1), (2, 4)]
    (tokens,) = server.good("/tokenize", {"inputs": "é!" * 30_000})
    assert [token["id"] for token in tokens] == [101, *[1041, 999] * 30_000, 102]
    assert (tokens[-2]["text"], tokens[-2]["stop"]) == ("!", 60_000)
    assert server.good("/decode", {"ids": IDS}) == ["i love nlp!"]
    body = {"ids": [IDS, IDS], "skip_special_tokens": False}
    assert server.good("/decode", body) == ["[CLS] i love nlp! [SEP]"] * 2


def test_reports(server):
    info = server.good("/info")
    assert (info["model_id"], info["max_input_length"]) == (MODEL, 256)
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert server.good("/v1/models")["data"][0]["id"] == MODEL
    assert server.ask("/health").status == 200
    before = server.metric("bertcli_texts_total")
    server.good("/embed", {"inputs": ["a", "b", "c"]})
    assert server.metric("bertcli_texts_total") == before + 3
    metrics = server.ask("/metrics").content.decode()
    assert 'bertcli_requests_total{route="/embed",status="200"}' in metrics
    assert 'bertcli_request_seconds_bucket{le="+Inf"}' in metrics


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/embed", b"{", 400, "not valid JSON"),
        ("/embed", b"", 400, "not valid JSON"),
        ("/embed", b"[1]", 400, "expected a JSON object"),
        ("/embed", b'{"inputs": "\xff"}', 400, "not valid JSON"),
        ("/embed", b'{"inputs": "\\ud800"}', 400, "not valid JSON"),
        ("/embed", {}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": []}, 400, "inputs is an empty list"),
        ("/embed", {"inputs": [[]]}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": 3}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": ["a", None]}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": [-1]}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": [True]}, 400, "inputs: expected a text"),
        ("/embed", {"inputs": [30522]}, 400, "id 30522 is not in the vocabulary"),
        ("/embed", {"inputs": "a", "truncate": "yes"}, 400, "truncate: expected true or false"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, 400, "truncation_direction"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, 400, "unknown prompt_name 'query'"),
        ("/v1/embeddings", {"input": "a", "model": "gpt"}, 404, "the model 'gpt' is not served"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, 400, "dimensions: expected"),
        ("/v1/embeddings", {"input": "a", "dimensions": 385}, 400, "dimensions is 385"),
        ("/v1/embeddings", {"input": "a", "dimensions": 1e9}, 400, "dimensions: expected"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, 413, "input has 2049 texts"),
        ("/decode", {"ids": [30522]}, 400, "id 30522 is not in the vocabulary"),
        ("/decode", {"ids": "a"}, 400, "ids: expected a list of token ids"),
        ("/tokenize", {"inputs": 1}, 400, "inputs: expected"),
        ("/similarity", {"inputs": {"sentences": ["a"]}}, 400, "source_sentence"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, 400, "sentences"),
        ("/rerank", {"query": "a", "texts": ["b"]}, 424, "this model answers /v1/embeddings"),
        ("/predict", {"inputs": "a"}, 424, "this model answers /v1/embeddings"),
        ("/embed_sparse", {"inputs": "a"}, 424, "this model answers /v1/embeddings"),
        ("/nowhere", {"inputs": "a"}, 404, "/nowhere is unknown"),
    ],
)
def test_what_cannot_be_answered(server, path, body, status, error):
    answer = server.ask(path, body)
    assert (answer.status, error in answer.error) == (status, True), answer


def test_what_the_model_cannot_do_is_tried_once(server):
    seconds = []
    for _ in range(6):
        start = time.monotonic()
        assert server.ask("/rerank", {"query": "a", "texts": ["b"]}).status == 424
        seconds.append(time.monotonic() - start)
    assert min(seconds[1:]) < 0.05  # its files take longer to read


def test_what_could_not_be_opened_is_tried_again(models, monkeypatch):
    folder = find_model(str(models("BertForMaskedLM")), files=MODEL_FILES)
    model = ServedModel(folder, "model", EmbedOptions())
    monkeypatch.setattr(served_model, "RETRY_SECONDS", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(ServedModel, "_open_view", mock.Mock(side_effect=InputError("too many")))
        for _ in range(2):
            with pytest.raises(RequestError, match="too many; this model answers"):
                model.vectors()
        assert ServedModel._open_view.call_count == 1
    time.sleep(0.3)
    assert model.vectors().limit


def test_methods_and_paths(server):
    assert server.ask("/embed").status == 405
    assert server.ask("/health", {}).status == 405
    before = server.metric('bertcli_requests_total{route="other"')
    assert server.ask("/embed_it", {"inputs": "a"}).error == "the path /embed_it is unknown"
    assert server.metric('bertcli_requests_total{route="other"') == before + 1
    same(server.good("/embed/", {"inputs": "a"}), embedded("a"))


@pytest.mark.parametrize("labels", [3, 1])
def test_classifiers(models, labels):
    folder = models("BertForSequenceClassification", num_labels=labels)
    with running("-m", folder) as served:
        pairs = [["I love it", "really"], ["Dull."]]
        rows = good(
            "classify", "-q", "-m", folder, "--scores", "all", "I love it", "--pair", "really"
        )
        (found, other) = served.good("/predict", {"inputs": pairs})
        assert served.good("/predict", {"inputs": pairs[0]}) == found
        assert served.good("/predict", {"inputs": "Dull."}) == other
        scores = [row["score"] for row in found]
        assert scores == sorted(scores, reverse=True) and len(scores) == labels
        if labels == 1:
            assert np.allclose(scores[0], rows.rows[0]["score"], atol=1e-6)
        else:
            expected = rows.rows[0]["scores"]
            assert {row["label"]: row["score"] for row in found} == pytest.approx(expected)
        (raw,) = served.good("/predict", {"inputs": [["Dull."]], "raw_scores": True})
        assert raw[0]["score"] != other[0]["score"]
        assert served.ask("/predict", {"inputs": []}).status == 400
        assert served.ask("/predict", {"inputs": [["a", "b", "c"]]}).status == 400
        long = served.ask("/predict", {"inputs": [["a"], ["word " * 100]]})
        assert (long.status, "inputs 1 has 102 tokens" in long.error) == (413, True)
        cut = served.ask("/predict", {"inputs": "word " * 100, "truncate": True})
        assert (cut.status, cut.headers["x-truncated"]) == (200, "0")
        kind = "classifier" if labels > 1 else "reranker"
        assert kind in served.good("/info")["model_type"]
        assert served.good("/info")["max_input_length"] == LENGTH
        assert served.ask("/health").status == 200


def test_rerank(models):
    folder = models("BertForSequenceClassification", num_labels=1)
    texts = ["Goats found coffee.", "It rains.", "A fox."]
    with running("-m", folder) as served:
        rows = good("rerank", "-q", "coffee", *texts, "-m", folder).rows
        ranks = served.good("/rerank", {"query": "coffee", "texts": texts, "return_text": True})
        assert [rank["index"] for rank in ranks] == [row["row"] for row in rows]
        assert [rank["text"] for rank in ranks] == [row["text"] for row in rows]
        assert [r["score"] for r in ranks] == pytest.approx([r["score"] for r in rows], abs=1e-6)
        raw = served.good("/rerank", {"query": "coffee", "texts": texts, "raw_scores": True})
        assert [{*rank} for rank in raw] == [{"index", "score"}] * 3
        logits = np.array([rank["score"] for rank in raw])
        assert [r["score"] for r in ranks] == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-6)
        assert served.good("/", {"query": "coffee", "texts": texts, "raw_scores": True}) == raw
        assert served.ask("/rerank", {"query": "coffee", "texts": []}).status == 400
        assert served.ask("/rerank", {"query": 1, "texts": ["a"]}).status == 400


def test_a_classifier_ranks_nothing(models):
    folder = models("BertForSequenceClassification", num_labels=3)
    with running("-m", folder) as served:
        answer = served.ask("/rerank", {"query": "a", "texts": ["b"]})
        assert (answer.status, "3 scores" in answer.error) == (424, True)


def test_terms(tmp_path):
    sparse(tmp_path / "splade")
    put_json(tmp_path / "splade" / "modules.json", splade_modules(tmp_path / "splade"))
    with running("-m", tmp_path / "splade") as served:
        row = good("embed", "-q", "--sparse", "-m", tmp_path / "splade", "the fox").rows[0]
        (terms,) = served.good("/embed_sparse", {"inputs": "the fox"})
        values = sorted((term["value"] for term in terms), reverse=True)
        assert values == pytest.approx([*row["terms"].values()])
        assert served.good("/info")["model_type"] == {"embedding": {"pooling": "splade"}}
        assert served.ask("/embed", {"inputs": "a"}).status == 424
        assert served.good("/", {"inputs": "the fox"}) == [terms]


def splade_modules(folder):
    """Write the pooling of a sparse model; return its modules."""
    (folder / "1_SpladePooling").mkdir()
    put_json(folder / "1_SpladePooling" / "config.json", {"pooling_strategy": "max"})
    library = "sentence_transformers.sparse_encoder.models.SpladePooling"
    return [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_SpladePooling", "type": library},
    ]


def test_prompts(tmp_path, default_folder):
    import shutil

    folder = tmp_path / "prompted"
    shutil.copytree(default_folder, folder, symlinks=False)
    put_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "query: "}})
    with running("-m", folder) as served:
        found = served.good("/embed", {"inputs": ["fox"], "prompt_name": "query"})
        same(found, embedded("query: fox"))
        same(served.good("/embed", {"inputs": ["fox"]}), embedded("fox"))
        named = {"inputs": "fox", "prompt_name": "query", "add_special_tokens": False}
        (tokens,) = served.good("/tokenize", named)
        assert [token["text"] for token in tokens] == ["query", ":", "fox"]
        unknown = served.ask("/tokenize", named | {"prompt_name": "x"})
        assert (unknown.status, "unknown prompt_name 'x'" in unknown.error) == (400, True)
