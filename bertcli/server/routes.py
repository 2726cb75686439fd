"""The routes: each turns the body of a request into work for the model, and results into an answer.

    work = embed(model, read_body(b'{"inputs": "a text"}'), most_texts=2048)
    work.answer(work.runner.run(work.rows))             # [[0.03, ...]]

Sources: https://platform.openai.com/docs/api-reference/embeddings, and docs/openapi.json of
https://github.com/huggingface/text-embeddings-inference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson

from bertcli.embedding.sentence_modules import unit_vectors
from bertcli.errors import InputError
from bertcli.formats.openai_batch import ENCODINGS, embedding_list, to_json
from bertcli.io.typed_json import TEXT, JsonObject
from bertcli.records.record import Record
from bertcli.server.batching import Runner
from bertcli.server.requests import (
    RequestError,
    is_ids,
    refuse_empty,
    refuse_many,
    text_list,
    texts_or_ids,
    texts_or_pairs,
    truncated_texts,
    truncation_side,
)
from bertcli.server.served_model import (
    UNSUPPORTED,
    EmbeddingRunner,
    LogitRunner,
    ServedModel,
    View,
)
from bertcli.tokenizing.batch import Encoded, Layout
from bertcli.versions import __version__


@dataclass(frozen=True)
class Work:
    """What a request needs of the model."""

    answer: Callable[[Sequence[Any]], Any]  # from the results of all rows to a JSON value
    rows: Sequence[Encoded] = ()
    runner: Runner | None = None  # None: no rows
    truncated: Sequence[Any] = ()  # indices of truncated texts, or names of those without one

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(row.length for row in self.rows)


Route = Callable[[ServedModel, JsonObject, int], Work]

TOKEN_COLUMNS = ("input_ids", "tokens", "offset_mapping", "sequence_ids")  # that tokenize reads
TOKENS_PER_PIECE = 10_000


# --- OpenAI ---


def openai_embeddings(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return vectors as OpenAI does. ``truncate``, and ``truncated`` in the answer, are ours."""
    name = body.text("model") or model.name
    if name not in model.names:
        raise RequestError(
            f"the model {name!r} is not served; this is {model.name!r}",
            status=404,
            code="model_not_found",
        )
    encoding = body.choice("encoding_format", ENCODINGS) or "float"
    runner = model.vectors(dim=body.integer("dimensions", 1))
    work = embedding_work(runner, body, "input", most_texts)

    def answer(vectors: Sequence[np.ndarray]) -> Any:
        return embedding_list(vectors, name, work.tokens, work.truncated, encoding)

    return replace(work, answer=answer)


# --- text-embeddings-inference ---


def embed(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return a vector for each text."""
    return embedding_work(changed_vectors(model, body), body, "inputs", most_texts)


def embed_all(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the vectors of all tokens of each text."""
    return embedding_work(changed_vectors(model, body, "token"), body, "inputs", most_texts)


def embed_sparse(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the terms of each text, with their weights."""
    work = embedding_work(changed_vectors(model, body, "sparse"), body, "inputs", most_texts)

    def answer(terms: Sequence[np.ndarray]) -> Any:
        return [
            [{"index": int(index), "value": weight} for index, weight in of_text]
            for of_text in terms
        ]

    return replace(work, answer=answer)


def similarity(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the cosine of a sentence with each of several others."""
    inputs = body.object("inputs") or body
    options = body.object("parameters") or body
    source = inputs.needed("source_sentence", TEXT)
    sentences = text_list(inputs, "sentences")
    runner = changed_vectors(model, options)
    source_work = work_on(runner, [source], options, "source_sentence", 1, is_list=False)
    work = work_on(runner, sentences, options, "sentences", most_texts)
    truncated = [*("source_sentence" for _ in source_work.truncated), *work.truncated]

    def answer(vectors: Sequence[np.ndarray]) -> Any:
        directions = unit_vectors(np.stack(vectors))
        return np.asarray(directions[1:] @ directions[0], np.float32)

    return Work(answer, [*source_work.rows, *work.rows], runner, truncated)


def predict(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the labels of each text or pair with their scores, the highest first."""
    runner = model.logits()
    pairs, is_single = texts_or_pairs(body, "inputs")
    raw = body.switch("raw_scores") or False
    work = work_on(runner, pairs, body, "inputs", most_texts)

    def answer(logits: Sequence[np.ndarray]) -> Any:
        predictions = []
        for of_text in logits:
            scores = zip(runner.scores(of_text, raw=raw), runner.labels, strict=True)
            ranked = sorted(scores, key=lambda pair: -pair[0])
            predictions.append([{"score": score, "label": label} for score, label in ranked])
        return predictions[0] if is_single else predictions

    return replace(work, answer=answer)


def rerank(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the texts, the most relevant to the query first."""
    runner = model.logits()
    if len(runner.labels) != 1:
        raise RequestError(
            f"the model gives a pair {len(runner.labels)} scores, and rerank needs one; this model "
            "answers /predict",
            status=UNSUPPORTED,
            code="unsupported_by_model",
        )
    query = body.needed("query", TEXT)
    texts = text_list(body, "texts")
    raw = body.switch("raw_scores") or False
    with_text = body.switch("return_text") or False
    work = work_on(runner, [(query, text) for text in texts], body, "texts", most_texts)

    def answer(logits: Sequence[np.ndarray]) -> Any:
        scores = [runner.scores(of_text, raw=raw)[0] for of_text in logits]
        ranks = []
        for index in sorted(range(len(texts)), key=lambda index: -scores[index]):
            text = {"text": texts[index]} if with_text else {}
            ranks.append({"index": index, **text, "score": scores[index]})
        return ranks

    return replace(work, answer=answer)


def tokenize(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the tokens of each text, with their offsets in it in characters."""
    texts = [body["inputs"]] if isinstance(body.get("inputs"), str) else body.texts("inputs")
    refuse_empty(body, "inputs")
    if texts is None:
        raise body.bad("inputs", "a text or a list of texts")
    refuse_many(len(texts), most_texts, "inputs")
    special = body.switch("add_special_tokens")
    layout = Layout(TOKEN_COLUMNS, special_tokens=True if special is None else special)
    prompt = ""
    if (name := body.text("prompt_name")) is not None:
        prompt = model.vectors().prompt(name)
    records = [Record(prompt + text, line=line) for line, text in enumerate(texts, 1)]
    rows = model.tokenizer().encode_records(records, layout)
    tokens = [tokens_json(row) for row in rows]
    return Work(lambda _: tokens)


def tokens_json(row: Encoded) -> orjson.Fragment:
    """Return the tokens of a text as JSON, made in pieces: objects of a million take a gigabyte."""
    text = str(row.record.text)
    columns = zip(*(row.columns[name] for name in TOKEN_COLUMNS), strict=True)
    pieces = []
    while some := [*islice(columns, TOKENS_PER_PIECE)]:
        tokens = []
        for number, token, (start, stop), sequence in some:
            is_special = sequence is None
            tokens.append(
                {
                    "id": number,
                    "text": token if is_special else text[start:stop],
                    "special": is_special,
                    "start": None if is_special else start,
                    "stop": None if is_special else stop,
                }
            )
        pieces.append(to_json(tokens)[1:-1])
    return orjson.Fragment(b"[%b]" % b",".join(pieces))


def decode(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Return the texts of lists of token ids."""
    refuse_empty(body, "ids")
    value = body.get("ids")
    rows: Any = [value] if is_ids(value) else value
    if not isinstance(rows, list) or not all(map(is_ids, rows)):
        raise body.bad("ids", "a list of token ids, or a list of such lists")
    refuse_many(len(rows), most_texts, "ids")
    skip = body.switch("skip_special_tokens")
    tokenizer = model.tokenizer()
    try:
        texts = [tokenizer.decode(ids, True if skip is None else skip) for ids in rows]
    except InputError as unknown:
        raise RequestError(str(unknown), code="invalid_token_id") from None
    return Work(lambda _: texts)


def root(model: ServedModel, body: JsonObject, most_texts: int) -> Work:
    """Answer as the route that the model is for, as text-embeddings-inference does at its root."""
    if isinstance(body.get("inputs"), dict):
        return similarity(model, body, most_texts)
    match model.purpose:
        case "classifier":
            return (rerank if "query" in body else predict)(model, body, most_texts)
        case "sparse":
            return embed_sparse(model, body, most_texts)
        case "token":
            return embed_all(model, body, most_texts)
    return embed(model, body, most_texts)


POSTED: Mapping[str, Route] = {
    "/v1/embeddings": openai_embeddings,
    "/embeddings": openai_embeddings,
    "/embed": embed,
    "/embed_all": embed_all,
    "/embed_sparse": embed_sparse,
    "/similarity": similarity,
    "/predict": predict,
    "/rerank": rerank,
    "/tokenize": tokenize,
    "/decode": decode,
    "/": root,
}


def info(model: ServedModel, *, most_requests: int, most_texts: int) -> dict[str, Any]:
    """Return what `GET /info` says of the model and of the limits."""
    runner = model.open()
    if isinstance(runner, EmbeddingRunner):
        runtime = runner.embedder.runtime
        pooling = "splade" if runner.embedder.terms else runner.embedder.options.pooling
        model_type: dict[str, Any] = {"embedding": {"pooling": pooling}}
    else:
        runtime = runner.head.runtime
        labels = {str(index): label for index, label in enumerate(runner.labels)}
        names = {
            "id2label": labels,
            "label2id": {label: int(index) for index, label in labels.items()},
        }
        model_type = {"classifier" if len(labels) > 1 else "reranker": names}
    return {
        "model_id": model.name,
        "model_sha": model.folder.revision,
        "model_dtype": runtime.engine.facts().get("dtype", "float32"),
        "model_type": model_type,
        "routes": model.routes,
        "max_concurrent_requests": most_requests,
        "max_input_length": runner.limit,
        "max_batch_tokens": runtime.budget,
        "max_batch_requests": None,
        "max_client_batch_size": most_texts,
        "auto_truncate": False,
        "tokenization_workers": 1,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }


# --- helpers of several routes ---


def changed_vectors(model: ServedModel, body: JsonObject, view: View = "text") -> EmbeddingRunner:
    """Return the embedder with the options of a request."""
    if view != "text":
        return model.vectors(view, prompt_name=body.text("prompt_name"))
    return model.vectors(
        normalize=body.switch("normalize"),
        dim=body.integer("dimensions", 1),
        prompt_name=body.text("prompt_name"),
    )


def embedding_work(runner: EmbeddingRunner, body: JsonObject, key: str, most_texts: int) -> Work:
    """Return the work on the texts or token ids of a request, which answers with their vectors."""
    return work_on(runner, texts_or_ids(body, key), body, key, most_texts)


def work_on(
    runner: EmbeddingRunner | LogitRunner,
    inputs: Sequence[Any],
    body: JsonObject,
    key: str,
    most_texts: int,
    *,
    is_list: bool = True,
) -> Work:
    """Return the work on inputs of a request, which answers with the results of the runner.

    Raises RequestError for more than ``most_texts`` inputs, and for one that is too long unless the
    request has ``truncate``.
    """
    refuse_many(len(inputs), most_texts, key)
    rows = runner.encoded(inputs, truncation_side(body))
    truncated = truncated_texts(rows, runner.limit, body, key, is_list=is_list)
    return Work(list, rows, runner, truncated)
