"""Many lines of JSON at once: the values of one line at a time, or a closer look is needed."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from bertcli.io.typed_json import parse, parse_lines

numbers = st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.floats())
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5))
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
indents = st.sampled_from([None, 1])
written = st.builds(json.dumps, values, ensure_ascii=st.booleans(), indent=indents)
LETTERS = '{}[]":,\\u0d8e1E+-. \t\r\n\v\x00\x7fé\ud800NaNtruefalsnl'
strange = st.text(st.sampled_from(LETTERS), max_size=12)


ODD = ["18446744073709551616", "[-9223372036854775809]", "1" * 5000, "NaN", "-Infinity", "1e999"]
ODD += ['"\\ud800"', '"\\udc00x"', "", "{", "[1] 2", '{"a":1}{', "'a'", "\ufeff1"]


@given(st.lists(st.one_of(written, strange, st.sampled_from(ODD)), max_size=5))
@example(['{"a":1,"b":2,"a":[3]}', "-0", "-0.0", "1E5", "9007199254740993.0", "5e-324"])
@example(['"\\ud83d\\ude00\\u0000\x7f"', "18446744073709551615", "-9223372036854775808"])
def test_values_are_those_of_one_line_at_a_time(texts):
    found = parse_lines(texts)
    if found is not None:
        assert repr(found) == repr([parse(text) for text in texts])
