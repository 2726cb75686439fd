"""Ids of extra embeddings, such as emotions or syllables, that a record gives for its words.

    extra_ids(Record("a b", extra={"emotion_ids": [0, 2]}), "emotion_ids", 3)     # [0, 2]

A field holds an id for each word, or one number for all. Words stand between white space, or are
the items of a text that is split; those of a pair follow those of the text. A document of sentences
has an id for each word of them all, or for each sentence a list or a number.

A list with more ids than words has one for each token of the model, without special ones. Whether
it fits, the tokenizer knows: see `tokenizing.extra_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from bertcli.errors import SKIP, InputError, counted
from bertcli.files.typed_json import BadJsonError, parse, shown
from bertcli.records.records import Record, Text

MOST = 1 << 20  # ids of an embedding; a typing error would else ask for all memory
WORD = re.compile(r"\S+")


def word_starts(text: Text) -> list[int]:
    """Return where the words of a text begin; of a text that is split, their numbers."""
    if isinstance(text, list):
        return list(range(len(text)))
    return [word.start() for word in WORD.finditer(text)]


def word_count(record: Record) -> int:
    """Return the number of words of a record."""
    return sum(len(word_starts(text)) for text in (record.text, record.pair or ""))


def extra_ids(record: Record, field: str, size: int = MOST) -> int | list[int]:
    """Return the ids of a record's words or tokens, or the one of them all.

    Raises InputError, naming the field, for fewer than words, and unless all are 0 to size - 1.
    """
    where = record.where
    value: Any = (record.extra or {}).get(field)
    if value is None or value == "":
        raise InputError(
            f"{where}: field {field!r} is missing",
            "the model needs an id for each word, or a number for the whole text",
        )
    value = _listed(value, field, where) if isinstance(value, str) else value
    for number in value if isinstance(value, list) else [value]:
        if type(number) is not int:
            raise InputError(
                f"{where}: field {field!r} holds {shown(number)}, not a whole number", SKIP
            )
        if not 0 <= number < size:
            raise InputError(
                f"{where}: field {field!r} holds {shown(number)}, but its ids are 0 to {size - 1}",
                SKIP,
            )
    count = word_count(record)
    if isinstance(value, list) and len(value) < count:
        raise unfit_ids(record, field, len(value), counted(count, "word"))
    ids: int | list[int] = value
    return ids


def unfit_ids(record: Record, field: str, count: int, needed: str) -> InputError:
    """Return the error for a list with another number of ids than the text needs."""
    return InputError(
        f"{record.where}: field {field!r} has {counted(count, 'id')}, but the text has {needed}",
        "give an id for each word between white space, for each token, or a number for all",
    )


def sentence_ids(record: Record, sentences: Sequence[str], field: str) -> Iterator[int | list[int]]:
    """Yield the ids of the words or tokens of each sentence of a document, as `extra_ids` does.

    Raises InputError, naming the field, unless the document has ids for its sentences.
    """
    listed = (record.extra or {}).get(field)
    if isinstance(listed, list) and any(isinstance(ids, list) for ids in listed):
        if len(listed) != len(sentences):
            raise InputError(
                f"{record.where}: field {field!r} has {counted(len(listed), 'list')} of ids, but "
                f"the document has {counted(len(sentences), 'sentence')}",
                "give a list for each sentence, or one for the whole document",
            )
        for sentence, ids in zip(sentences, listed, strict=True):
            yield extra_ids(record._replace(text=sentence, extra={field: ids}), field)
        return
    values, at = extra_ids(record._replace(text="\n".join(sentences)), field), 0
    if isinstance(values, int) or len(sentences) == 1:
        yield from [values] * len(sentences)
        return
    counts = [len(word_starts(sentence)) for sentence in sentences]
    if len(values) != sum(counts):
        raise unfit_ids(record, field, len(values), counted(sum(counts), "word"))
    for count in counts:
        yield values[at : at + count]
        at += count


def _listed(text: str, field: str, where: str) -> object:
    """Return the ids in a cell of a table: JSON, or numbers separated by spaces or commas."""
    try:
        if text.strip().startswith("["):
            return parse(text)
        ids = [int(number) for number in text.replace(",", " ").split()]
    except (BadJsonError, ValueError):
        raise InputError(
            f"{where}: field {field!r} is {text[:40]!r}, not a list of ids",
            "give whole numbers separated by spaces or commas, or a JSON list",
        ) from None
    return ids[0] if len(ids) == 1 else ids
