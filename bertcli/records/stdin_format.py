"""What stdin holds, as it has no suffix: texts, or JSON objects.

    objects, stream = begins_with_object(stream, decode, limit)   # the stream, still from its start

No more is read than up to the end of the first line that is not blank, and of that only one byte
where it is no object: typed lines are texts as soon as they are there.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import IO

from bertcli.files.streams import LineDecoder, read_chunk, stream_of
from bertcli.files.typed_json import BadJsonError, parse

BLANK = re.compile(rb"(\xef\xbb\xbf)?[\s\0]*")  # a byte order mark may come first
READ_AS_JSONL = "stdin begins with a JSON object: read as JSONL (--input-format txt: as text)"


def begins_with_object(
    stream: IO[bytes], decode: LineDecoder, limit: int
) -> tuple[bool, IO[bytes]]:
    """Return whether the first line that is not blank is a JSON object, and the whole stream.

    About ``limit`` bytes are read for that at most.
    """
    head, name = bytearray(), decode.name
    while len(head) <= limit and (chunk := read_chunk(stream, name)):
        head += chunk
        if _is_decided(head, decode.separator):
            break
    rest = iter(partial(read_chunk, stream, name), b"")
    return _is_object(head, decode), stream_of(chain([bytes(head)], rest), stream)


def _is_decided(head: bytearray, separator: bytes) -> bool:
    start = _start(head)
    return start < len(head) and (head[start] != ord("{") or head.find(separator, start) > 0)


def _is_object(head: bytearray, decode: LineDecoder) -> bool:
    start = _start(head)
    if head[start : start + 1] != b"{":
        return False
    end = head.find(decode.separator, start)
    try:
        line = bytes(head[start : end if end > 0 else None]).decode(decode.encoding, decode.errors)
        return isinstance(parse(line), dict)
    except (BadJsonError, UnicodeDecodeError):
        return False


def _start(head: bytearray) -> int:
    found = BLANK.match(head)
    return found.end() if found else 0
