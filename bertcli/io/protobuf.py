"""Protocol buffers, read without a schema: field numbers and their values.

    found = fields(message)
    number(found, 3), messages(found, 1)   # 0 and [] for missing fields

A truncated message raises LookupError or ValueError.
Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

INTEGER, EIGHT, LENGTH_GIVEN, FOUR = 0, 1, 2, 5  # wire types

Fields = dict[int, list[int | bytes]]  # field number -> its values


def fields(message: bytes) -> Fields:
    """Return the fields of a message."""
    values: Fields = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        length = 0
        value: int | bytes
        if kind == INTEGER:
            value, at = varint(message, at)
        else:
            if kind == LENGTH_GIVEN:
                length, at = varint(message, at)
            else:
                length = {EIGHT: 8, FOUR: 4}[kind]
            value = message[at : at + length]
            if len(value) < length:
                raise ValueError("the message is cut off")
            at += length
        values.setdefault(tag >> 3, []).append(value)
    return values


def number(message: Fields, key: int) -> int:
    """Return the value of an integer field; 0 if it is missing."""
    value = message.get(key, [0])[-1]
    if not isinstance(value, int):
        raise ValueError("a number is expected")
    return value


def messages(message: Fields, key: int) -> list[bytes]:
    """Return the values of a field of bytes: strings or nested messages."""
    return [value for value in message.get(key, []) if isinstance(value, bytes)]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a variable-length integer; return it with the offset after it.

    Each byte has seven bits, the lowest first.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
