"""One vector a word: its pieces pooled, its characters known."""

from pathlib import Path

import numpy as np
import pytest

from bertcli.embedding.options import EmbedOptions
from bertcli.embedding.word_pooling import COLUMNS, WORD_POOLINGS, pool_words, words_of
from bertcli.errors import UsageError
from bertcli.hub import DEFAULT_MODEL, find_model
from bertcli.records.records import Record
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.tokenizer import Tokenizer

SAMPLE = Path(__file__).parents[2] / "samples" / "tiny-bert"
LAYOUT = Layout(columns=("input_ids", *COLUMNS))


@pytest.fixture(scope="module")
def encode():
    tokenizer = Tokenizer.load(find_model(DEFAULT_MODEL).path)
    return lambda *texts: tokenizer.encode([Record(*texts)], LAYOUT)[0]


def vectors_of(encoded, *rest):
    return np.random.default_rng(1).normal(size=(encoded.length, *rest, 5)).astype(np.float32)


def test_words_and_where_they_stand(encode):
    text = "Don't  unfathomably 世界 𝔘nify!"
    words = words_of(encode(text))
    assert [word.text for word in words] == [
        *("Don", "'", "t", "unfathomably", "世", "界", "𝔘nify", "!")
    ]
    assert all(text[slice(*word.span)] == word.text for word in words)
    assert {word.sequence for word in words} == {0}


def test_special_tokens_are_in_no_word(encode):
    encoded = encode("unfathomably good")
    words = words_of(encoded)
    covered = [at for word in words for at in range(encoded.length)[word.tokens]]
    assert covered == list(range(1, encoded.length - 1))
    assert words_of(encode("")) == []


def test_words_of_a_pair_count_from_their_own_sentence(encode):
    words = words_of(encode("a b", "b unfathomably"))
    assert [(word.text, word.sequence, word.span) for word in words] == [
        *(("a", 0, (0, 1)), ("b", 0, (2, 3)), ("b", 1, (0, 1)), ("unfathomably", 1, (2, 14)))
    ]


def test_split_texts_keep_their_words(encode):
    words = words_of(encode(["New York!", "unfathomably"]))
    assert [(word.text, word.span) for word in words] == [
        *(("New York!", (0, 9)), ("unfathomably", (0, 12)))
    ]


@pytest.mark.parametrize("how", WORD_POOLINGS)
@pytest.mark.parametrize("rest", [(), (3,)])
def test_pieces_are_pooled(encode, how, rest):
    encoded = encode("unfathomably good")
    vectors, words = vectors_of(encoded, *rest), words_of(encoded)
    found = pool_words(vectors, words, how)
    assert found.shape == (2, *rest, 5)
    pieces = vectors[words[0].tokens]
    assert len(pieces) > 2
    expected = {
        "first": pieces[0],
        "last": pieces[-1],
        "mean": sum(pieces) / len(pieces),
        "max": np.maximum.reduce(pieces),
    }[how]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
    np.testing.assert_array_equal(found[1], vectors[words[1].tokens][0])


def test_no_words_give_no_vectors(encode):
    encoded = encode("")
    assert pool_words(vectors_of(encoded), words_of(encoded), "mean").shape == (0, 5)


def test_an_unknown_way_is_named():
    with pytest.raises(UsageError, match="unknown --word-vectors 'median'"):
        EmbedOptions(words="median")
