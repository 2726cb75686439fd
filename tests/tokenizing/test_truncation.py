"""Windows on plain lengths against those that the tokenizers library cuts."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertcli.tokenizing.truncation import TooShortError, Window, windows

CUTS = st.sampled_from(["longest_first", "only_first", "only_second"])
SIDES = st.sampled_from(["right", "left"])
LENGTHS = st.integers(0, 30)


@pytest.fixture(scope="module")
def core():
    """A tokenizer whose ids are places: word "7" has id 7; a second text begins at 100."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    core = Tokenizer(models.WordLevel({str(n): n for n in range(200)}, unk_token="0"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return core


def theirs(core, first, second, room, strategy, side, stride):
    """Return the windows of the library as spans; None when it refuses."""
    core.enable_truncation(room, stride=stride, strategy=strategy, direction=side)
    texts = [" ".join(map(str, range(first)))]
    texts += [] if second is None else [" ".join(map(str, range(100, 100 + second)))]
    try:
        whole = core.encode(*texts)
    except BaseException as refused:  # a stride that is too large is a panic there
        assert "Truncation error" in str(refused) or "`stride` must be" in str(refused)
        return None
    return [spans(encoding.ids) for encoding in (whole, *whole.overflowing)]


def spans(ids):
    firsts = [at for at in ids if at < 100]
    seconds = [at - 100 for at in ids if at >= 100]
    for part in (firsts, seconds):
        assert part == list(range(part[0], part[0] + len(part))) if part else True
    return tuple((part[0], part[-1] + 1) if part else None for part in (firsts, seconds))


def ours(*asked, **options):
    try:
        found = windows(*asked, **options)
    except TooShortError:
        return None
    return [tuple((a, b) if a < b else None for a, b in window) for window in found]


@settings(max_examples=400)
@given(LENGTHS, st.integers(1, 20), SIDES, st.integers(0, 19))
def test_singles(core, first, room, side, stride):
    assume(stride < room)
    for strategy in ("longest_first", "only_first"):
        expected = theirs(core, first, None, room, strategy, side, stride)
        assert ours(first, None, room, strategy, side=side, stride=stride) == expected


@settings(max_examples=600)
@given(LENGTHS, LENGTHS, st.integers(1, 24), CUTS, SIDES, st.integers(0, 12))
def test_pairs(core, first, second, room, strategy, side, stride):
    assume(stride < room)
    expected = theirs(core, first, second, room, strategy, side, stride)
    found = ours(first, second, room, strategy, side=side, stride=stride)
    if expected is None or found is None:
        assert found == expected
        return
    size = [sum(b - a for a, b in filter(None, window)) for window in expected]
    # With nothing kept of a sequence the library makes windows of the whole of it.
    assert found == [w for w, n in zip(expected, size, strict=True) if n <= room]
    assert all(n <= room for n in size) or room == 1 or min(first, second) == 0


@given(LENGTHS, LENGTHS, st.integers(2, 24), SIDES, st.integers(0, 5))
def test_windows_lose_nothing(first, second, room, side, stride):
    """Every token of either sequence is in a window, and no window is too long."""
    try:
        found = windows(first, second, room, "longest_first", side=side, stride=stride)
    except TooShortError:
        assert stride >= room // 2 or stride >= min(first, second)
        return
    for which, length in enumerate((first, second)):
        there = {at for window in found for at in range(*window[which])}
        assert there == set(range(length))
    assert all(sum(stop - start for start, stop in window) <= room for window in found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_nothing_to_cut(strategy):
    assert windows(3, 4, 7, strategy, stride=2) == [Window((0, 3), (0, 4))]
    assert windows(3, None, 3, strategy) == [Window((0, 3), (0, 0))]


def test_what_cannot_be_cut():
    with pytest.raises(TooShortError, match="only_second cannot shorten a text that has no pair"):
        windows(9, None, 5, "only_second")
    with pytest.raises(TooShortError, match="the second text alone has 6 tokens, and 5 fit"):
        windows(9, 6, 5, "only_first")
    with pytest.raises(TooShortError, match="windows of 2 tokens cannot share 3"):
        windows(9, 9, 4, "longest_first", stride=3)
    with pytest.raises(ValueError, match="unknown truncation strategy 'middle'"):
        windows(9, 6, 5, "middle")
