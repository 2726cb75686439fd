"""OpenAI's embeddings API: its answers, and batches of requests as JSON Lines.

    to_json(embedding_list([vector], "all-MiniLM-L6-v2", tokens=7))

A line of a batch is a request, whose texts become rows with the field ``request``:

    {"custom_id": "a", "url": "/v1/embeddings", "body": {"input": ["one", "two"]}}

The rows of a request become one line again, with the body that `bertcli serve` answers. Numbers are
written with the fewest digits that read back to the same float32. Source:
https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
import orjson

from bertcli.errors import SKIP, InputError, OutputError, option
from bertcli.formats.jsonl import numbered_lines_of_file, object_in, value_of
from bertcli.formats.tables import Row, without_headers
from bertcli.io.typed_json import TEXT, Check, JsonObject, is_text

ENCODINGS = ("float", "base64")
PATH = "/v1/embeddings"
REQUEST = "request"  # field of a row: what the answer needs of its request
INPUT = Check(
    lambda value: (
        is_text(value) or (isinstance(value, list) and len(value) > 0 and all(map(is_text, value)))
    ),
    "a text or a list of texts",
)


def embedding_list(
    vectors: Iterable[np.ndarray],
    model: str,
    tokens: int,
    truncated: Sequence[int] = (),
    encoding: str = "float",
) -> dict[str, Any]:
    """Return the answer for vectors [D] in the order of the inputs.

    ``tokens`` is the number of tokens of all inputs, ``truncated`` has the indices of truncated
    ones. With ``encoding`` "base64", a vector is the base64 of its little-endian float32 values.
    """
    data = [
        {"object": "embedding", "index": index, "embedding": encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    answer: dict[str, Any] = {"object": "list", "data": data, "model": model}
    answer["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
    if truncated:
        answer["truncated"] = [*truncated]
    return answer


def encoded(vector: np.ndarray, encoding: str) -> Any:
    """Return a vector as an array, or as base64."""
    if encoding == "base64":
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return np.ascontiguousarray(vector)


def to_json(value: Any) -> bytes:
    """Return a value as JSON."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


# --- batches ---


def read_rows(
    lines: Iterable[tuple[int, str]], file: str, skip: Callable[[InputError], None]
) -> Iterator[tuple[int, Row]]:
    """Yield a row per text of each request, with line numbers."""
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            yield from [(number, row) for row in rows_of_request(line, where, number)]
        except InputError as error:
            skip(error)


def rows_of_request(line: str, where: str, number: int) -> list[Row]:
    """Return the rows of a line. Raises InputError unless it is a request for embeddings."""
    request = JsonObject(object_in(value_of(line, where, SKIP), where), where, InputError, SKIP)
    key = request.needed("custom_id", TEXT)
    request.choice("method", ["POST"])
    request.choice("url", [PATH])
    body = request.object("body")
    given = body.needed("input", INPUT)
    texts = [given] if isinstance(given, str) else given
    shared = {
        "line": number,
        "texts": len(texts),
        "model": body.text("model") or "",
        "encoding_format": body.choice("encoding_format", ENCODINGS) or "float",
        "dimensions": body.integer("dimensions", 1),
    }
    return [
        {"id": key, "text": text, REQUEST: {"index": index, **shared}}
        for index, text in enumerate(texts)
    ]


def check_width(rows: Iterable[Mapping[str, Any] | None], width: int) -> None:
    """Raise OutputError for a request that asks for vectors of another width."""
    for row in rows:
        dimensions = (row or {}).get(REQUEST, {}).get("dimensions")
        if dimensions not in (None, width):
            line = (row or {})[REQUEST]["line"]
            raise OutputError(
                f"line {line} asks for {dimensions} dimensions, and the vectors have {width}",
                f"give {option('dim', dimensions)}, and requests of other widths another run",
            )


@contextmanager
def writer(file: IO[bytes]) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Yield a function that writes the answer to each request once all of its rows are there."""
    waiting: list[Row] = []

    def write(rows: Sequence[Row]) -> None:
        for row in without_headers(rows):
            if waiting and request_of(row) != request_of(waiting[0]):
                write_answers()
            waiting.append(row)
            if len(waiting) == row.get(REQUEST, {}).get("texts", 1):
                write_answers()
        file.flush()

    def write_answers() -> None:
        file.write(to_json(answer(waiting)) + b"\n")
        waiting.clear()

    yield write
    if waiting:  # texts were left out
        write_answers()


def request_of(row: Row) -> tuple[Any, ...]:
    """Return what rows of the same request have in common."""
    return row.get("file"), row.get(REQUEST, {}).get("line", row["id"])


def answer(rows: Sequence[Row]) -> Row:
    """Return the line that answers a request, from the rows of its texts."""
    request = rows[0].get(REQUEST, {})
    number = request.get("line", rows[0]["id"])
    vectors = [np.array(orjson.loads(str(row["embedding"])), np.float32) for row in rows]
    check_width(rows, len(vectors[0]))
    indices = [row.get(REQUEST, {}).get("index", 0) for row in rows]
    truncated = [index for index, row in zip(indices, rows, strict=True) if row.get("truncated")]
    tokens = sum(row["n_tokens"] for row in rows)
    encoding = request.get("encoding_format", "float")
    body = embedding_list(vectors, request.get("model", ""), tokens, truncated, encoding)
    for index, item in zip(indices, body["data"], strict=True):
        item["index"] = index
    response = {"status_code": 200, "request_id": f"bertcli-{number}", "body": body}
    return {
        "id": f"batch_req_{number}",
        "custom_id": str(rows[0]["id"]),
        "response": response,
        "error": None,
    }


def answered_vectors(path: str) -> Iterator[np.ndarray]:
    """Yield the vectors of the answers in a file, [n, D] for each request of n texts."""
    for lines in numbered_lines_of_file(path):
        for number, line in lines:
            response = object_in(value_of(line, f"{path}:{number}"), f"{path}:{number}")["response"]
            vectors = [decoded(item["embedding"]) for item in response["body"]["data"]]
            yield np.stack(vectors)


def decoded(vector: Any) -> np.ndarray:
    """Return a vector [D] of an answer: a list of numbers, or base64."""
    if isinstance(vector, str):
        return np.frombuffer(base64.b64decode(vector), "<f4")
    return np.array(vector, np.float32)
