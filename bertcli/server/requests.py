"""Bodies of requests: JSON objects whose values are checked, and the errors that refuse them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from bertcli.errors import BertcliError
from bertcli.io.typed_json import JsonObject, is_text, shown
from bertcli.tokenizing.batch import Encoded

Ids: TypeAlias = list[int]  # a text as token ids
LARGEST_ID = 2**32 - 1


class RequestError(BertcliError):
    """A request cannot be answered: the HTTP status, and a code for programs."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 400,
        code: str | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.headers = headers


def read_body(content: bytes) -> JsonObject:
    """Return the JSON object that is the body of a request. RequestError for anything else."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(f"expected a JSON object, found {shown(value)}", code="invalid_type")
    return JsonObject(value, "request", RequestError, hint="")


def texts_or_ids(body: JsonObject, key: str) -> list[str | Ids]:
    """Return the inputs of a request, also of a single one: texts, or lists of token ids.

    Raises RequestError for other values and for none.
    """
    value = body.get(key)
    if is_text(value) or is_ids(value):
        return [value]  # type: ignore[list-item]
    refuse_empty(body, key)
    if isinstance(value, list) and (all(map(is_text, value)) or all(map(is_ids, value))):
        return value
    raise body.bad(key, "a text, a list of texts, token ids, or a list of lists of token ids")


def text_list(body: JsonObject, key: str) -> list[str]:
    """Return a list of texts. Raises RequestError for other values and for an empty list."""
    refuse_empty(body, key)
    texts = body.texts(key)
    if texts is None:
        raise body.bad(key, "a list of strings")
    return texts


def texts_or_pairs(body: JsonObject, key: str) -> tuple[list[tuple[str, str | None]], bool]:
    """Return texts with their pairs (or None), and True if a single one was given.

    As in text-embeddings-inference, a list of strings is one text or pair, and a list of such lists
    is a batch. Raises RequestError for other values and for none.
    """
    value = body.get(key)
    refuse_empty(body, key)
    rows: Any = value
    if is_text(value):
        rows = [[value]]
    elif isinstance(value, list) and all(map(is_text, value)):
        rows = [value]
    if not isinstance(rows, list) or not all(map(is_text_or_pair, rows)):
        raise body.bad(key, "a text, a pair of texts, or a list of lists of one or two texts")
    return [(row[0], row[1] if len(row) == 2 else None) for row in rows], rows is not value


def refuse_empty(body: JsonObject, key: str) -> None:
    """Raise RequestError for an empty list."""
    if body.get(key) == []:
        raise RequestError(f"{key} is an empty list", code="empty_input")


def is_ids(value: Any) -> bool:
    """Return True for a list of token ids that is not empty."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(item) is int and 0 <= item <= LARGEST_ID for item in value)
    )


def is_text_or_pair(value: Any) -> bool:
    """Return True for a list of one or two texts."""
    return isinstance(value, list) and len(value) in (1, 2) and all(map(is_text, value))


def truncation_side(body: JsonObject) -> str | None:
    """Return "left" or "right", or None for the side of the model's tokenizer."""
    side = body.text("truncation_direction")
    if side is not None and side.lower() not in ("left", "right"):
        raise body.bad("truncation_direction", '"left" or "right"')
    return side and side.lower()


def truncated_texts(
    rows: Sequence[Encoded], limit: int, body: JsonObject, key: str, *, is_list: bool = True
) -> Sequence[int]:
    """Return the indices of truncated texts; RequestError for the first without ``truncate``.

    ``is_list`` is False for the only text of a key, whose index is not told.
    """
    may_truncate = body.switch("truncate")
    truncated = [index for index, row in enumerate(rows) if row.dropped_tokens]
    if truncated and not may_truncate:
        row = rows[truncated[0]]
        index = f" {truncated[0]}" if is_list else ""
        raise RequestError(
            f"{key}{index} has {row.length + row.dropped_tokens} tokens, and the model "
            f"takes {limit}",
            '"truncate": true truncates texts',
            status=413,
            code="context_length_exceeded",
        )
    return truncated


def refuse_many(count: int, most: int, key: str) -> None:
    """Raise RequestError for more texts than a request may have."""
    if count > most:
        raise RequestError(
            f"{key} has {count} texts, and a request may have {most}",
            status=413,
            code="too_many_texts",
        )
