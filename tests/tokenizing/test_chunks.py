"""Texts in pieces: all characters are there, none is too long, boundaries are where they should be.

What the tokens of a piece are is asked of the tokenizers library, of each piece alone.
"""

from itertools import pairwise

import hostile
import pytest
from front import put_json
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers_made import MADE

from bertcli.errors import InputError
from bertcli.records.record import Record
from bertcli.tokenizing.chunks import LEVELS, Chunker, ChunkSettings, boundaries
from bertcli.tokenizing.tokenizer import Tokenizer

AT = ("token", *LEVELS)
PROSE = (
    "Dr. Smith paid $3.50 to J. R. Ewing, e.g. for tea. He left! Did he? “Yes.” Then (really.) he "
    "slept.\n\nOn May 3. Nobody knew the internationalization of unaffable electroencephalographs "
    "in 1999. It was over… and done.\r\n\r\nThe end\n of a line is no end.\n \n"
    "我们走吧。好的！「行。」東京都に行きます。 हम जाते हैं। ठीक है। هل أنت هنا؟ نعم."
)


@pytest.fixture(scope="module", params=[*hostile.VOCABULARIES, *MADE])
def tokenizer(request, tmp_path_factory):
    if request.param in MADE:
        return Tokenizer.load(MADE[request.param](tmp_path_factory.mktemp(request.param)))
    made = hostile.copy_vocabulary(request.param, tmp_path_factory.mktemp(request.param))
    lower = {"do_lower_case": hostile.VOCABULARIES[request.param]}
    put_json(made / "tokenizer_config.json", lower)
    return Tokenizer.load(made)


@pytest.fixture(scope="module")
def default(default_folder):
    return Tokenizer.load(default_folder)


def stop(error):
    raise error


def divided(tokenizer, text, max_length=None, overlap=0, at="token", **options):
    chunker = Chunker(tokenizer, ChunkSettings(max_length, overlap, at, **options))
    return chunker.chunks([Record(text)], stop)


def is_exact(tokenizer):
    """Whether white space has no tokens, and counts of blocks add up."""
    return type(tokenizer.core.pre_tokenizer).__name__ == "BertPreTokenizer"


def checked(tokenizer, text, max_length, overlap=0, at="token", **options):
    """Return the pieces of a text, after a check of all that holds for any."""
    found = divided(tokenizer, text, max_length, overlap, at, **options)
    special = options.get("special_tokens", True)
    encodings = tokenizer.core.encode_batch([one.text for one in found], add_special_tokens=special)
    assert [one.n_tokens for one in found] == [len(encoding.ids) for encoding in encodings]
    assert max(one.n_tokens for one in found) <= max_length
    assert [one.number for one in found] == list(range(len(found)))
    assert (found[0].start, found[-1].end) == (0, len(text))
    for before, after in pairwise(found):
        assert before.start < after.start <= before.end < after.end
        if not overlap:
            assert before.end == after.start
            assert after.text.strip(" ") or not after.text or not is_exact(tokenizer)
    return found


def repeated(tokenizer, found):
    """Return how many tokens each piece repeats of the one before."""
    texts = [b.text[: a.end - b.start] for a, b in pairwise(found)]
    return [len(each.ids) for each in tokenizer.core.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("overlap", [0, 3, 12])
def test_real_texts(tokenizer, at, overlap):
    for text in (*hostile.REAL, PROSE, "  ".join(hostile.REAL)):
        for length in (20, 64):
            found = checked(tokenizer, text, length, overlap, at)
            if overlap:
                assert max(repeated(tokenizer, found), default=0) <= overlap


@given(text=hostile.texts, length=st.integers(12, 40), overlap=st.integers(0, 9), data=st.data())
def test_any_text(tokenizer, text, length, overlap, data):
    at = data.draw(st.sampled_from(AT))
    assume(is_exact(tokenizer) or len(text) < 300)  # one piece a token takes its time
    try:
        checked(tokenizer, text, length, overlap, at)
    except InputError as error:
        assert "alone has more than" in str(error)


def test_a_word_that_is_divided_is_counted_as_it_is_then(default):
    word = "electroencephalographically" * 3
    for length in range(4, 20):
        checked(default, f"the {word} of {word}", length)
    found = divided(default, "unaffable unaffable", 4)  # una ##ffa ##ble; but ble is b ##le
    assert [one.text for one in found] == ["unaffa", "ble ", "unaffa", "ble"]


def test_pieces_are_full(default):
    text = "the cat sat on the mat and slept " * 500
    found = checked(default, text, 66)
    assert {one.n_tokens for one in found[:-1]} == {66}
    assert {one.text[-1] for one in found[:-1]} == {" "}
    found = checked(default, text, 66, 10)
    assert {one.n_tokens for one in found[:-1]} == {66}
    assert set(repeated(default, found)) == {10}


def test_an_empty_text_and_white_space_are_one_piece(default):
    for text in ("", " ", "\n\n \t", "\u0301\u200b"):
        (one,) = checked(default, text, 3)
        assert (one.start, one.end, one.n_tokens) == (0, len(text), 2)


def test_white_space_belongs_to_what_stands_before_it(default):
    found = checked(default, "  one \n two  three   ", 3)
    assert [one.text for one in found] == ["  one \n ", "two  ", "three   "]


def test_levels(default):
    text = "One two three. Four five six? Seven.\n\nEight nine ten! Eleven twelve."
    by = {at: [one.text for one in checked(default, text, 13, at=at)] for at in AT}
    first, last = "One two three. Four five six? Seven.\n\n", "Eight nine ten! Eleven twelve."
    assert by["paragraph"] == [first, last]
    assert by["sentence"] == [first, last]
    assert by["word"] == by["token"] == [f"{first}Eight ", "nine ten! Eleven twelve."]
    by = {at: [one.text for one in checked(default, text, 10, at=at)] for at in AT}
    assert by["paragraph"] == [first[:30], first[30:], last]
    assert by["sentence"] == [first[:30], f"{first[30:]}{last[:16]}", last[16:]]
    assert by["word"] == [first[:30], f"{first[30:]}{last[:23]}", last[23:]]
    assert by["token"] == [first[:30], f"{first[30:]}{last[:29]}", "."]


def test_a_unit_that_is_too_long_is_divided_at_the_next_level(default):
    text = "Short one. " + "Word " * 20 + "end. " + "unaffable" * 4
    assert [one.text for one in checked(default, text, 10, at="sentence")][:3] == [
        "Short one. ",
        "Word " * 8,
        "Word " * 8,
    ]
    last = checked(default, "unaffable" * 8, 6, at="paragraph")
    assert last[0].n_tokens == 6


def test_an_overlap_is_of_whole_units_and_never_keeps_one_from_being_whole(default):
    text = "One red cat. Two big dogs. The old man. Her own car. His new house. " * 3
    found = checked(default, text, 14, 5, "sentence")
    assert [one.text for one in found][:3] == [
        "One red cat. Two big dogs. The old man. ",
        "The old man. Her own car. His new house. ",
        "His new house. One red cat. Two big dogs. ",
    ]
    long = "A b c d e f g h i jj. " * 3  # 11 tokens: no room for an overlap of a sentence
    found = checked(default, long, 14, 9, "sentence")
    assert found[0].text == long[:22]
    assert all(one.text.endswith(". ") for one in found)


def test_a_grapheme_that_is_too_long_is_divided_and_a_character_refused(default):
    letters = "\u0939\u093f\u0301" * 2  # three tokens each
    assert "".join(one.text for one in checked(default, letters, 4)) == letters
    with pytest.raises(
        InputError, match=r"text 7: character 2 \('\\ud55c'\) alone has more than 4"
    ):
        Chunker(default, ChunkSettings(4)).chunks([Record("a 한", line=7)], stop)


def test_boundaries_of_sentences():
    cuts = [0, *boundaries(PROSE, 0, len(PROSE), "sentence"), len(PROSE)]
    found = [PROSE[start:end].strip() for start, end in pairwise(cuts)]
    assert [one for one in found if one] == [
        "Dr. Smith paid $3.50 to J. R. Ewing, e.g. for tea.",
        "He left!",
        "Did he?",
        "“Yes.”",
        "Then (really.) he slept.",
        "On May 3. Nobody knew the internationalization of unaffable electroencephalographs in "
        "1999.",
        "It was over… and done.",
        "The end\n of a line is no end.",
        "我们走吧。",
        "好的！",
        "「行。」",
        "東京都に行きます。",
        "हम जाते हैं।",
        "ठीक है।",
        "هل أنت هنا؟",
        "نعم.",
    ]


def test_special_tokens_in_the_text_are_not_divided(default_folder):
    text = "a[SEP]b [MASK]c [CLS]" * 9
    parsed = Tokenizer.load(default_folder)
    for one in checked(parsed, text, 5):
        assert one.text.count("[") == one.text.count("]")
    checked(Tokenizer.load(default_folder, parse_special=False), text, 5)
    parsed.add_tokens(["new york", AddedToken("中国。", single_word=True), "a.b."])
    for length in (4, 5, 9):
        checked(parsed, "in new york, new york 中国。中国。 a.b.a.b. " * 9, length)


def test_without_special_tokens(default):
    found = checked(default, "one two three four", 2, special_tokens=False)
    assert [one.text for one in found] == ["one two ", "three four"]


@pytest.mark.parametrize(
    "piece", ["word ", "中", "x", ".", "a\u0301", "base64/+", "👍", " ", "unaffable", "[SEP]", "[S"]
)
def test_time_grows_with_the_text_and_not_with_its_square(default, piece):
    """What is tokenized of a long text is a few times its length."""
    text, chunker = piece * (60_000 // len(piece)), Chunker(default, ChunkSettings(64))
    found = chunker.chunks([Record(text)], stop)
    assert "".join(one.text for one in found) == text
    assert chunker.counted_characters < 4 * len(text)


@pytest.mark.parametrize("piece", ["word ", "中", "x", "👍", " ", "The cat sat there. "])
@pytest.mark.parametrize("family", ["roberta", "xlm_roberta", "modernbert"])
def test_pieces_are_nearly_full_with_any_tokenizer(tmp_path, family, piece):
    """Where sums of tokens are a guess as well."""
    tokenizer = Tokenizer.load(MADE[family](tmp_path))
    found = checked(tokenizer, piece * (6_000 // len(piece)), 64)
    assert all(one.n_tokens >= 55 for one in found[:-1])


def test_a_prompt_counts(default):
    prompt = "a prompt of tokens: "  # six
    chunker = Chunker(default, ChunkSettings(10), lambda texts: [prompt + text for text in texts])
    first, *_ = chunker.chunks([Record("one two three four five")], stop)
    assert (first.text, first.n_tokens) == ("one two ", 10)
