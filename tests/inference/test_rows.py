"""How texts are laid out for the CPU engine: a text's row follows from its own length alone."""

import random

import numpy as np

from bertcli.inference.cpu_engine import RowLayout
from bertcli.inference.runner import Reading, Tokens

DICE = random.Random(15)
TEXTS = [[DICE.randint(1, 9) for _ in range(length)] for length in (17, 30, 29, 18)]


def test_a_row_is_a_multiple_of_16_or_as_long_as_the_model_takes():
    lengths = RowLayout(Reading(), longest=30).lengths(np.array([1, 16, 17, 30]))
    assert lengths.tolist() == [16, 16, 30, 30]


def test_every_token_has_its_place_and_what_fills_a_row_up_is_of_its_text():
    texts = Tokens.listed(TEXTS)
    ids, _, back, rows, _, read = RowLayout(Reading(), longest=512).of(texts)
    assert rows.shape == (4, 32) and len(ids) % 16 == 0
    total = len(texts.ids)
    assert rows.flatten()[back[:total]].tolist() == [*range(total)]
    for row, text, first in zip(ids[rows], TEXTS, rows[:, 0], strict=True):
        assert row.tolist() == text + [ids[first]] * (32 - len(text))
    assert read.tolist() == [*range(total)]


def test_only_what_is_asked_for_is_read():
    texts = Tokens.listed(TEXTS)
    read = [
        RowLayout(reading, 512).of(texts)[5].tolist()
        for reading in (Reading(first=True), Reading(mean=True), Reading(token=7))
    ]
    marked = [at for at, token in enumerate(texts.ids.tolist()) if token == 7]
    assert read == [[0, 17, 47, 76], [], marked] and marked
