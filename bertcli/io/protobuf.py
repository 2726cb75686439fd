"""Protocol buffers, read without a schema: field numbers and their values.

    found = fields(message)
    number(found, 3), messages(found, 1)   # 0 and [] for missing fields

A truncated message raises LookupError or ValueError.
Source: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

# Wire types.
INTEGER = 0
EIGHT_BYTES = 1
LENGTH_PREFIXED = 2
FOUR_BYTES = 5

Fields = dict[int, list[int | bytes]]  # field number -> its values


def fields(message: bytes) -> Fields:
    """Return the fields of a message."""
    values: Fields = {}
    offset = 0
    while offset < len(message):
        tag, offset = varint(message, offset)
        wire_type = tag & 7
        length = 0
        value: int | bytes
        if wire_type == INTEGER:
            value, offset = varint(message, offset)
        else:
            if wire_type == LENGTH_PREFIXED:
                length, offset = varint(message, offset)
            else:
                length = {EIGHT_BYTES: 8, FOUR_BYTES: 4}[wire_type]
            value = message[offset : offset + length]
            if len(value) < length:
                raise ValueError("the message is cut off")
            offset += length
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


def varint(data: bytes, offset: int) -> tuple[int, int]:
    """Read a variable-length integer; return it with the offset after it.

    Each byte has seven bits, the lowest first.
    """
    value = 0
    shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, offset
