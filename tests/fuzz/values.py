"""JSON texts that no writer of JSON would write, and bytes that went wrong."""

import json
import random
from functools import reduce
from typing import Any


class Raw(str):
    """A piece of JSON text that is written as it is."""


ODD = r"""
null true false -1 0 1 2 0.5 -0.0 1e400 -1e400 5e-324 2147483648 9223372036854775807
9223372036854775808 18446744073709551616 1180591620717411303424 64.5 1e3 1.0 NaN -Infinity ""
"a" "true" "512" "NaN" "\ud800" "\udc00x" "\u0000" "a\u0000b" "\u001b]0;x\u0007" "\u001b[31m"
"\u202eabc" "\u0085" "\n" "\u200d\ud83d\ude00" "../../etc/passwd" "/etc/passwd" "/" "." ".."
"%s%n{}" "[SEP]" "C:\\x" "[red]x[/red]" "[/]" [] {} [null] [[]] [1] ["a"] [""] {"a":1} {"":null}
[NaN] [{}] [{"a":[]}] [true,false] [-1] [1e400] ["\ud800"] [[1,2],[3]] {"0":"a","1":null}
{"0":0} {"-1":"a"} {"9999999999999999999":"a"} {"a":"a"}
""".split()  # noqa: SIM905 - values as they stand in JSON
ODD += ['" "', "1" * 400, "1" * 5000]
LARGE = [
    '"' + "x" * 100_000 + '"',
    '"' + "y" * 300 + '"',
    "[" * 100_000 + "]" * 100_000,
    "[" * 500 + "]" * 500,
    "[" * 90 + "]" * 90,
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    "[" + ",".join(["1"] * 20_000) + "]",
    "{" + ",".join(f'"{n}":{n}' for n in range(5_000)) + "}",
]
NOT_JSON = [
    "",
    " ",
    "{",
    "[",
    "}",
    '"',
    "nul",
    "undefined",
    "[1,]",
    "{a:1}",
    "'a'",
    "\ufeff{}",
    "//",
]


def odd(dice: random.Random) -> Raw:
    """Return a value that nobody expects."""
    kind = dice.random()
    if kind < 0.85:
        return Raw(dice.choice(ODD))
    return Raw(dice.choice(LARGE if kind < 0.97 else NOT_JSON))


def nudged(value: Any, dice: random.Random) -> Any:
    """Return a value of the same type, a bit off."""
    match value:
        case bool():
            return not value
        case int():
            return dice.choice([value + 1, value - 1, value * 2, -value, value // 2, value * 1000])
        case float():
            return dice.choice([-value, value * 1e6, 0.0, value + 1])
        case str():
            return dice.choice([value + "x", value[:-1], value.upper(), value * 50, f" {value} "])
        case list():
            cut = dice.randrange(len(value) + 1)
            return dice.choice([value[:cut], value + value, value[::-1], [value]])
        case dict():
            items = list(value.items())
            dice.shuffle(items)
            return dice.choice([dict(items), dict(items[1:]), {"a": value}])
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside, the value itself among them."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:50]):
            found += places(inner, (*path, at))
    return found


def changed(value: Any, path: tuple[Any, ...], change: Any) -> Any:
    """Return a copy with another value at a path."""
    if not path:
        return change(value)
    copy = value.copy()
    copy[path[0]] = changed(value[path[0]], path[1:], change)
    return copy


def mutated_json(value: Any, dice: random.Random) -> str:
    """Return JSON text of a value in which one to three things are wrong."""
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        path = dice.choice(places(value))
        kind = dice.random()
        if kind < 0.55:
            new = odd(dice)
            value = changed(value, path, lambda old, new=new: new)
        elif kind < 0.75:
            value = changed(value, path, lambda old: nudged(old, dice))
        elif kind < 0.8:
            other = dice.choice(places(value))
            new = reduce(lambda inside, key: inside[key], other, value)
            value = changed(value, path, lambda old, new=new: new)
        elif kind < 0.85:
            value = changed(value, path, lambda old: Raw(f"[{dump(old)}]"))
        else:
            value = changed(value, path[:-1], lambda old: _other_keys(old, dice))
    return dump(value)


def _other_keys(value: Any, dice: random.Random) -> Any:
    """Remove, rename, double or add a key of an object."""
    if not isinstance(value, dict) or not value:
        return Raw(f'{{"a":{dump(value)}}}')
    items = [(json.dumps(key), inner) for key, inner in value.items()]
    at = dice.randrange(len(items))
    match dice.randrange(4):
        case 0:
            del items[at]
        case 1:
            names = ['""', '"\\ud800"', '"a\\u0000"', '"\\u001b]0;x\\u0007"', f'"{"k" * 5000}"']
            items[at] = (dice.choice([*names, '"id"', '"text"', '"-1"', '"1e3"']), items[at][1])
        case 2:
            items.append((items[at][0], odd(dice)))
        case 3:
            items.insert(at, ('"another"', odd(dice)))
    return Raw("{" + ",".join(f"{key}:{dump(inner)}" for key, inner in items) + "}")


def dump(value: Any) -> str:
    """Write JSON in which raw pieces stand as they are."""
    match value:
        case Raw():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}:{dump(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


BYTES = [b"\x00", b"\xff", b"\xff\xfe", b"\n", b"\r\n", b"\x1b]0;x\x07", b'"', b"\xed\xa0\x80"]
BYTES += [b"\xc3", b"\xf0\x9f\x98", b"\x1a", b"\xe2\x80\xa8", b"[", b"{", b",", b"\xef\xbb\xbf"]


def mutated_bytes(data: bytes, dice: random.Random, head: int = 0) -> bytes:
    """Return bytes of which some were lost, doubled or replaced; ``head`` is the likeliest part."""
    if not data or dice.random() < 0.06:
        return dice.choice([b"", b"\0", b"\n", dice.randbytes(64), dice.randbytes(5000), b" " * 99])
    body = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, 30])):
        size = min(head, len(body)) if head and dice.random() < 0.7 else len(body)
        at = dice.randrange(max(1, size))
        match dice.randrange(8):
            case 0 | 1 | 2:
                if at < len(body):
                    body[at] ^= 1 << dice.randrange(8)
            case 3:
                body[at : at + 1] = bytes([dice.choice([0, 1, 127, 128, 255])])
            case 4:
                body[at:at] = dice.choice(BYTES)
            case 5:
                del body[at : at + dice.choice([1, 2, 8, 100])]
            case 6:
                body[at:at] = body[at : at + dice.choice([1, 8, 100])]
            case 7:
                if dice.random() < 0.4:
                    del body[at:]
    return bytes(body)
