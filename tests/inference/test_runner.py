"""Texts as flat arrays: what a runner does with them is what a loop over the texts does."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertcli.inference.runner import DistinctTexts, Tokens, batches

rows = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=4), max_size=12)


def told(texts: Tokens) -> list[list[tuple[int, int]]]:
    """Return the texts as lists of ids and types."""
    both = list(zip(texts.ids.tolist(), texts.types.tolist(), strict=True))
    bounds = texts.offsets.tolist()
    return [both[start:stop] for start, stop in pairwise(bounds)]


@given(rows=rows, budget=st.integers(1, 9), several=st.booleans())
def test_equal_texts_run_once_in_batches_by_length(rows, budget, several):
    given = Tokens.listed(
        [[i for i, _ in row] for row in rows], [[t for _, t in row] for row in rows]
    )
    assert told(given) == rows
    distinct = DistinctTexts(given)
    unlike = [list(row) for row in dict.fromkeys(map(tuple, rows))]
    assert told(distinct.texts) == unlike
    seen: list[int] = []
    for picked in batches(distinct.texts.lengths, budget):
        batch = told(distinct.texts.take(picked))
        assert batch == [unlike[at] for at in picked]
        assert len(batch) == 1 or len(batch) * len(batch[0]) <= budget
        seen += picked.tolist()
        kept = [np.array(row, np.float32).reshape(-1, 2) for row in batch]
        vectors = np.array([[len(row), sum(map(sum, row))] for row in batch], np.float32)
        step = distinct.keep(picked, kept if several else vectors)
        again = [row for row in rows if row in batch]
        assert (step.texts, step.tokens) == (len(again), sum(map(len, again)))
    assert seen == sorted(range(len(unlike)), key=lambda at: -len(unlike[at]))
    assert len(distinct.kept) == len(rows)
    for row, vector in zip(rows, distinct.kept, strict=True):
        wanted = np.reshape(row, (-1, 2)) if several else [len(row), sum(map(sum, row))]
        assert np.array_equal(vector, wanted)
