"""Pairs and masks: what is drawn by chance has its rate, and what must never happen does not."""

from itertools import accumulate, chain
from random import Random

from chances import likely
from hypothesis import given
from hypothesis import strategies as st

from bertcli.training.prepare import (
    InstanceMaker,
    PrepareOptions,
    random_below,
    sentence_pairs,
    truncate_pair,
)

CLS, SEP, MASK = 1, 2, 3
WORDS = range(10, 1010)
ELSEWHERE = 10**6  # ids of another document begin here

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def maker(continuing=(), **options):
    special = CLS, SEP, 0, MASK
    return InstanceMaker(PrepareOptions(**options), special, WORDS, frozenset(continuing))


def elsewhere(tokens, rng):
    return range(ELSEWHERE, ELSEWHERE + max(1, tokens) + random_below(rng, 5))


def made(sizes, **options):
    options = PrepareOptions(**options)
    bounds = [0, *accumulate(sizes)]
    return [*sentence_pairs(range(bounds[-1]), bounds, options, elsewhere, Random(options.seed))]


def consecutive(ids):
    return list(ids) == list(range(ids[0], ids[0] + len(ids)))


# --- pairs --------------------------------------------------------------------------------------


@given(lengths, st.integers(0, 99))
def test_nothing_is_lost_and_nothing_comes_twice(sizes, seed):
    found = made(sizes, max_length=10_000, short_seq_prob=0, seed=seed)
    used = [[*a, *(() if is_random else b)] for a, b, is_random in found]
    assert [*chain.from_iterable(used)] == [*range(sum(sizes))]


@given(lengths, st.integers(0, 99))
def test_pairs_that_follow_begin_and_end_with_sentences(sizes, seed):
    starts = {0, *accumulate(sizes)}
    for a, b, is_random in made(sizes, max_length=2000, short_seq_prob=0, seed=seed):
        assert a[0] in starts
        assert is_random or (b[0] == a[-1] + 1 and b[0] in starts)


def test_half_of_the_pairs_that_could_follow_do_not():
    found = [made([30, 30], max_length=63, seed=seed)[0][2] for seed in range(4000)]
    assert likely(sum(found), len(found), 0.5)


def test_a_sentence_alone_is_followed_by_another_document():
    assert [is_random for _, _, is_random in made([7])] == [True]


@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 60), st.integers(0, 99))
def test_the_longer_segment_is_cut(size_a, size_b, room, seed):
    a, b = range(size_a), range(size_b)
    cut_a, cut_b = truncate_pair(a, b, room, Random(seed))
    assert len(cut_a) + len(cut_b) == min(room, size_a + size_b)
    assert consecutive(cut_a) and consecutive(cut_b)
    if size_a + size_b > room:
        assert abs(len(cut_a) - len(cut_b)) <= 1 or min(size_a, size_b) in (len(cut_a), len(cut_b))


# --- masks --------------------------------------------------------------------------------------


def masked(count, size, **changes):
    ids = [CLS, *([5000] * size), SEP]
    for seed in range(count):
        yield maker(**changes).mask(ids, [range(1, size + 1)], Random(seed))


def test_eighty_ten_ten():
    stands = [ids[at] for ids, positions in masked(2000, 98) for at in positions]
    assert len(stands) == 30_000
    assert likely(stands.count(MASK), len(stands), 0.8)
    assert likely(stands.count(5000), len(stands), 0.1)
    others = [id for id in stands if id in WORDS]
    assert likely(len(others), len(stands), 0.1)
    assert likely(sum(id < 510 for id in others), len(others), 0.5)


def test_words_are_masked_as_often_as_tokens():
    masker, ids = maker([50], whole_word=True), [CLS, *([20, 50] * 49), SEP]
    found = [masker.mask(ids, [range(1, 99)], Random(seed))[1] for seed in range(500)]
    assert {len(positions) for positions in found} == {14}  # 15 cannot be made of pairs
    assert likely(sum(1 in positions for positions in found), 500, 7 / 49)


# --- chance -------------------------------------------------------------------------------------
