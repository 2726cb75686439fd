"""What stdin holds, as it has no suffix: texts, or JSON objects.

    objects, stream = begins_with_object(stream, decode, limit)   # the stream, still from its start

No more is read than up to the end of the first line that is not blank, and of that only one byte
where it is no object: typed lines are texts as soon as they are there.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from functools import partial
from itertools import chain
from typing import IO

from bertcli.files.streams import LineDecoder, read_chunk, stream_of
from bertcli.files.typed_json import BadJsonError, parse

BRACE = ord("{")
BLANK = re.compile(rb"(\xef\xbb\xbf)?[\s\0]*")  # a byte order mark may come first
READ_AS_JSONL = "stdin begins with a JSON object: read as JSONL (--input-format txt: as text)"


def begins_with_object(
    stream: IO[bytes], decode: LineDecoder, limit: int
) -> tuple[bool, IO[bytes]]:
    """Return whether the first line that is not blank is a JSON object, and the whole stream.

    About ``limit`` bytes are read for that at most.
    """
    head, start = bytearray(), -1  # where the line begins, once that is known
    while len(head) <= limit and (chunk := read_chunk(stream, decode.name)):
        new = len(head)
        head += chunk
        if start < 0:
            first = _after_blanks(head, new if new > len(BOM_UTF8) else 0)
            start = first if first < len(head) else -1
        if start >= 0 and (
            head[start] != BRACE or head.find(decode.separator, max(start, new)) > 0
        ):
            break
    rest = iter(partial(read_chunk, stream, decode.name), b"")
    found = start >= 0 and head[start] == BRACE and _is_object(head, start, decode)
    return found, stream_of(chain([bytes(head)], rest), stream)


def _after_blanks(head: bytearray, start: int) -> int:
    found = BLANK.match(head, start)
    return found.end() if found else start


def _is_object(head: bytearray, start: int, decode: LineDecoder) -> bool:
    end = head.find(decode.separator, start)
    try:
        line = bytes(head[start : end if end > 0 else None]).decode(decode.encoding, decode.errors)
        return isinstance(parse(line), dict)
    except (BadJsonError, UnicodeDecodeError):
        return False
