"""Models whose pooling leaves out the prompt, against sentence-transformers: by every road."""

import numpy as np
import pytest
import torch
from front import PACKAGE, good, jsonl
from sentence_folders import saved, sentence_model, st

from bertcli import Embedder

pytestmark = pytest.mark.parity
TEXTS = (PACKAGE / "samples" / "texts.txt").read_text().splitlines()
QUERIES = ["a capital city", "the fox", "something to read"]
PROMPTS = {"query": "find this good book: ", "document": "a text. "}
WINDOW = 16  # tokens; the prompt and half of a text, about


@pytest.fixture(scope="module", params=["cls", "mean", "weightedmean"])
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def theirs(mode):
    return sentence_model(st.Pooling(32, mode, include_prompt=False), prompts=PROMPTS)


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    return saved(theirs, tmp_path_factory.mktemp("model") / "m")


def near(found, right):
    np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "openvino"])
def test_python_pools_what_stands_behind_the_prompt(theirs, folder, backend):
    ours = Embedder.load(folder, backend=backend)
    near(ours.encode(TEXTS), theirs.encode(TEXTS))
    for name in PROMPTS:
        near(ours.encode(TEXTS, prompt_name=name), theirs.encode(TEXTS, prompt_name=name))
    near(ours.encode(TEXTS, prompt="so: "), theirs.encode(TEXTS, prompt="so: "))
    near(ours.encode_query(TEXTS), theirs.encode_query(TEXTS))
    near(ours.encode_document(TEXTS), theirs.encode_document(TEXTS))
    near(ours.encode(TEXTS), theirs.encode(TEXTS))


def test_commands_pool_what_stands_behind_the_prompt(engine, theirs, folder, tmp_path):
    options = ("-m", folder, "-q")
    rows = good("embed", *TEXTS, "--prompt-name", "query", *options).rows
    near([row["embedding"] for row in rows], theirs.encode(TEXTS, prompt_name="query"))
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("".join(f"{text}\n" for text in TEXTS))
    scores = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document(TEXTS))
    found = good("similar", *QUERIES, "--corpus", corpus, "--top-k", 12, *options).rows
    for row, right in zip(found, scores.tolist(), strict=True):
        hits = {hit["row"]: hit["score"] for hit in row["hits"]}
        near([hits[number] for number in range(len(TEXTS))], right)

    files = [tmp_path / name for name in ("queries.jsonl", "corpus.jsonl", "qrels.tsv")]
    for path, texts in zip(files, (QUERIES, TEXTS), strict=False):
        letter = path.name[0]
        path.write_text(jsonl({"_id": f"{letter}{at}", "text": t} for at, t in enumerate(texts)))
    best = scores.argmax(1).tolist()
    lines = [f"q{at}\tc{row}\t1\n" for at, row in enumerate(best)]
    files[2].write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    given = ("--queries", files[0], "--corpus", files[1], "--qrels", files[2])
    assert good("evaluate", *given, *options).rows[0]["mrr@10"] == 1


@pytest.mark.parametrize("prompt", ["find this good book: ", "find " * 20])
def test_windows_behind_the_prompt_are_pooled_whole(theirs, folder, mode, prompt):
    """Only tokens of the prompt are left out, also where it fills more than a window."""
    text = " ".join(TEXTS[:5])
    tokenizer, bert = theirs.tokenizer, theirs[0].auto_model
    of_prompt = len(tokenizer.tokenize(prompt))
    tokens = tokenizer(prompt + text, add_special_tokens=False)["input_ids"]
    vectors, weights = [], []
    for start in range(0, len(tokens), WINDOW - 2):
        part = tokens[start : start + WINDOW - 2]
        omitted = max(0, min(of_prompt - start, len(part)))
        ids = [tokenizer.cls_token_id, *part, tokenizer.sep_token_id]
        with torch.no_grad():
            states = bert(torch.tensor([ids])).last_hidden_state
        features = {"token_embeddings": states, "attention_mask": torch.ones(1, len(ids))}
        features |= {"prompt_length": 1 + omitted} if omitted else {}
        vectors.append(theirs[1](features)["sentence_embedding"][0].numpy())
        weights.append(max(1, len(part) - omitted))
    options = {"on_truncate": "window", "max_length": WINDOW}
    (found,) = Embedder.load(folder, backend="torch").encode([text], prompt=prompt, **options)
    near(found, np.average(vectors, 0, weights))
    argv = ("--on-truncate", "window", "--max-length", WINDOW, "--prompt", prompt, "-m", folder)
    (row,) = good("embed", "-q", text, *argv).rows
    near(row["embedding"], found)
    several = good("embed", "-q", "short", text, *TEXTS, *argv).rows
    near(several[1]["embedding"], found)
