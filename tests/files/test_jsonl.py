"""Many rows of JSON at once: the lines of one row at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertcli.files.jsonl import FEW, to_json, to_lines
from bertcli.files.tables import Numbers, NumbersText

nested = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
    )
    | st.text(st.characters(), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
numbers = st.lists(st.integers(0, 99), max_size=3)
made = st.one_of(numbers.map(Numbers), numbers.map(json.dumps).map(NumbersText))
rows = st.dictionaries(st.text(st.characters(), max_size=3), st.one_of(nested, made), max_size=4)


@given(rows)
def test_many_rows_are_lines_of_one_at_a_time(row):
    assert to_lines([row] * FEW) == to_json(row) * FEW


@pytest.mark.parametrize("value", ["".join(map(chr, range(0x110000))), 2**63, 2**64, -(2**64)])
def test_any_character_and_any_number(value):
    assert to_lines([{"é": value}] * FEW) == to_json({"é": value}) * FEW
