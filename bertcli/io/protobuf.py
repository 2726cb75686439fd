"""Protocol buffers, read without their schema: numbers of fields and what they hold.

    found = fields(message)
    number(found, 3), messages(found, 1)   # 0 and [] where there is no such field

A message that is cut off raises LookupError or ValueError.
Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

INTEGER, EIGHT, LENGTH_GIVEN, FOUR = 0, 1, 2, 5  # wire types

Fields = dict[int, list[int | bytes]]  # number of a field -> its values


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
    """Return a field that is a whole number; one that is not there is zero."""
    value = message.get(key, [0])[-1]
    if not isinstance(value, int):
        raise ValueError("a number is expected")
    return value


def messages(message: Fields, key: int) -> list[bytes]:
    """Return the values of a field that are bytes: texts, or messages inside."""
    return [value for value in message.get(key, []) if isinstance(value, bytes)]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, lowest first; then comes the place after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
