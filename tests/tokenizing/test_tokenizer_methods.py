"""Attributes and methods of a tokenizer and of its results, against those of transformers."""

from itertools import product

import pytest
from tokenizers_made import MADE
from transformers import AutoTokenizer

from bertcli.errors import BertcliError, InputError, UsageError
from bertcli.tokenizing.tokenizer import Tokenizer

pytestmark = pytest.mark.parity

TEXTS = ["I love NLP!", "", "I don't like tokenization blah blah", "naïve 東京 [MASK] 👍"]
PAIRS = ["So do I", "x y z", "", "the quick brown fox"]


@pytest.fixture(scope="module", params=["default", *MADE])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def two(name, tmp_path_factory):
    """Ours and theirs, of one folder."""
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.hub_cache import DEFAULT_MODEL

    if name == "default":
        folder = find_model(DEFAULT_MODEL, offline=True).path
    else:
        folder = MADE[name](tmp_path_factory.mktemp(name))
    return Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


def test_attributes(two, name):
    ours, theirs = two
    assert ours.special_tokens_map == theirs.special_tokens_map
    if name != "albert":  # token types of a pair are those of its training: transformers 4, not 5
        assert sorted(ours.model_input_names) == sorted(theirs.model_input_names)
    assert ours.is_fast is theirs.is_fast is True
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    for pair in (False, True):
        assert ours.num_special_tokens_to_add(pair) == theirs.num_special_tokens_to_add(pair)
        assert ours.num_special_tokens_to_add(pair=pair) == theirs.num_special_tokens_to_add(pair)
    with pytest.raises(AttributeError, match="a tokenizer has no attribute 'nonsense_token'"):
        _ = ours.nonsense_token


def test_tokens_to_text(two):
    ours, theirs = two
    for text in TEXTS:
        tokens = theirs.tokenize(text)
        assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)


OPTIONS = [
    {},
    {"padding": True},
    {"padding": True, "padding_side": "left", "truncation": True, "max_length": 8},
    {"truncation": True, "max_length": 9, "return_overflowing_tokens": True, "stride": 1},
    {"add_special_tokens": False},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("pairs", [False, True])
def test_characters_and_words_of_tokens(two, name, options, pairs):
    if name == "roberta_prefix" and "return_overflowing_tokens" in options:
        pytest.skip("there, the first token of each window has the blank before it")
    given = (TEXTS, PAIRS) if pairs else (TEXTS,)
    if pairs and "return_overflowing_tokens" in options:
        options = {**options, "truncation": "only_first", "max_length": 24}
    ours, theirs = (each(*given, **options) for each in two)
    assert len(ours.encodings) == len(theirs.encodings)
    assert ours.is_fast and ours.n_sequences == 1 + pairs
    for row, (mine, wanted) in enumerate(zip(ours.encodings, theirs.encodings, strict=True)):
        assert mine.ids == wanted.ids
        assert mine.tokens == wanted.tokens == ours.tokens(row)
        assert mine.word_ids == wanted.word_ids == ours.word_ids(row)
        assert mine.sequence_ids == wanted.sequence_ids == ours.sequence_ids(row)
        assert mine.offsets == wanted.offsets
        assert mine.special_tokens_mask == wanted.special_tokens_mask
        assert mine.attention_mask == wanted.attention_mask
        for token in range(len(mine.ids)):
            for method in ("token_to_chars", "token_to_word", "token_to_sequence"):
                assert getattr(ours, method)(row, token) == getattr(theirs, method)(row, token)
        for index, sequence in product(range(12), range(1 + pairs)):
            if sequence not in wanted.sequence_ids:
                continue  # there, it would be an index among all tokens
            for method in ("char_to_token", "char_to_word", "word_to_tokens"):
                found = getattr(ours, method)(row, index, sequence)
                assert found == getattr(theirs, method)(row, index, sequence), (method, index)
            chars = ours.word_to_chars(row, index, sequence)
            if found is None:  # there, it is a TypeError
                assert chars is None
            else:
                assert chars == theirs.word_to_chars(row, index, sequence)


def test_the_first_text_needs_no_number(two):
    ours, theirs = (each(TEXTS[0]) for each in two)
    assert ours.char_to_token(3) == theirs.char_to_token(3)
    # How many tokens there are depends on the training of the tokenizer.
    first = next(token for token in range(9) if theirs.token_to_chars(token) is not None)
    assert ours.token_to_chars(first) == theirs.token_to_chars(first)
    assert ours.token_to_chars(first).start == theirs.token_to_chars(first).start
    assert ours.word_to_tokens(1) == theirs.word_to_tokens(1)
    assert ours.sequence_ids() == theirs.sequence_ids()
    assert ours.data == dict(ours)
    assert ours.data.keys() >= theirs.data.keys()


def test_special_tokens_are_added(tmp_path):
    from bertcli.model_folder.find import find_model
    from bertcli.model_folder.hub_cache import DEFAULT_MODEL

    folder = find_model(DEFAULT_MODEL, offline=True).path
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    for added in (
        {"additional_special_tokens": ["[PERSON]", "[PLACE]"]},
        {"bos_token": "[BOS]", "eos_token": "[EOS]"},
        {"additional_special_tokens": ["[PERSON]"]},
    ):
        assert ours.add_special_tokens(added) == theirs.add_special_tokens(added)
        assert len(ours) == len(theirs)
        assert ours.special_tokens_map == theirs.special_tokens_map
        assert ours.bos_token_id == theirs.bos_token_id
        text = "[BOS] Ann [PERSON] lives [PLACE]"
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    assert ours.decode(ours("a [PERSON]")["input_ids"], skip_special_tokens=True) == "a"
    ours.save_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).special_tokens_map == ours.special_tokens_map
    with pytest.raises(UsageError, match="unknown special token 'begin_token'"):
        ours.add_special_tokens({"begin_token": "[B]"})


@pytest.mark.parametrize(
    "given", [[["a", "b", "c"]], [["a"]], ["x", ["a", "b", "c"]], [("a", "b"), ("a", "b", "c")]]
)
def test_lists_of_words_say_how_they_are_read(given):
    with pytest.raises(InputError, match="a pair has at most two texts") as refused:
        Tokenizer.load()(given)
    assert "is_split_into_words=True" in refused.value.hint
    words = [entry if isinstance(entry, list) else [*entry] for entry in given]
    assert len(Tokenizer.load()(words, is_split_into_words=True)["input_ids"]) == len(given)


def test_an_encoding_is_lost_on_the_way_to_another_process():
    import pickle

    again = pickle.loads(pickle.dumps(Tokenizer.load()("a")))
    with pytest.raises(BertcliError, match="only what calling a tokenizer returns"):
        again.char_to_token(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": "5"}, 'max_length is "5", not a whole number'),
        ({"max_length": True}, "max_length is true, not a whole number"),
        ({"stride": 1.5}, r"stride is 1\.5, not a whole number"),
    ],
)
def test_arguments_of_a_call_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        Tokenizer.load()("a", **options)
    with pytest.raises(TypeError, match="unknown option 'paddding': did you mean padding"):
        Tokenizer.load()("a", paddding=True)
