"""Ids of extra embeddings, such as emotions or syllables, for the words of a record.

A field holds one id per word, or one number for all words. Words are separated by white space, or
are the items of a text that is split; the words of a pair follow the words of its text. A document
of sentences has an id per word, or a list or a number per sentence.

A list with more ids than words has one id per token of the model, without special tokens. The
tokenizer checks its length: see `tokenizing.extra_columns`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise

from bertcli.errors import SKIP, InputError, counted
from bertcli.records.record import Record, Text, ids_in

MAX_EXTRA_IDS = 1 << 20  # per embedding; limits the memory that a mistyped id can claim


def word_starts(text: Text) -> list[int]:
    """Return the start of each word of a text, or the word indexes of a text that is split."""
    if isinstance(text, list):
        return list(range(len(text)))
    return [word.start() for word in re.finditer(r"\S+", text)]


def word_count(record: Record) -> int:
    """Return the number of words of a record."""
    return sum(len(word_starts(text)) for text in (record.text, record.pair or ""))


def extra_ids(record: Record, field: str, size: int = MAX_EXTRA_IDS) -> int | list[int]:
    """Return the ids of a record's words or tokens, or its single id.

    Raises InputError, with the field name, for fewer ids than words, and for ids outside 0 to size
    - 1.
    """
    where = f"{record.where}: field {field!r}"
    value = (record.extra or {}).get(field)
    ids = [value] if type(value) is int else ids_in(value, where)
    if any(not 0 <= number < size for number in ids):
        raise InputError(f"{where} holds an id that is not 0 to {size - 1}", SKIP)
    if len(ids) == 1 and not isinstance(value, list):
        return ids[0]
    if len(ids) < word_count(record):
        raise unfit_ids(record, field, len(ids), counted(word_count(record), "word"))
    return ids


def unfit_ids(record: Record, field: str, count: int, needed: str) -> InputError:
    """Return the error for a list whose length does not match the text."""
    return InputError(
        f"{record.where}: field {field!r} has {counted(count, 'id')}, but the text has {needed}",
        "give an id for each word between white space or each token, a list for each sentence, "
        "or a number for all",
    )


def sentence_ids(record: Record, sentences: Sequence[str], field: str) -> Sequence[int | list[int]]:
    """Return the ids of the words of each sentence of a document, as `extra_ids` does.

    Raises InputError, with the field name, unless the document has ids for its sentences.
    """
    value = (record.extra or {}).get(field)
    if isinstance(value, list) and any(isinstance(ids, list) for ids in value):
        if len(value) != len(sentences):
            raise unfit_ids(record, field, len(value), counted(len(sentences), "sentence"))
        return [
            extra_ids(record._replace(text=sentence, extra={field: ids}), field)
            for sentence, ids in zip(sentences, value, strict=True)
        ]
    ids = extra_ids(record._replace(text="\n".join(sentences)), field)
    if isinstance(ids, int):
        return [ids] * len(sentences)
    offsets = [*accumulate((len(word_starts(sentence)) for sentence in sentences), initial=0)]
    if len(sentences) > 1 and len(ids) != offsets[-1]:
        raise unfit_ids(record, field, len(ids), counted(offsets[-1], "word"))
    return [ids[start:end] for start, end in pairwise([*offsets[:-1], len(ids)])]
