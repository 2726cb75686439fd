"""Calling a tokenizer from Python, and its methods, against those of transformers."""

import json
import pickle
from itertools import product

import hostile
import pytest
from front import put_json
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_made import MADE, for_words

from bertcli.errors import BertcliError, InputError, UsageError
from bertcli.tokenizing.encode_block import FEW_RECORDS
from bertcli.tokenizing.tokenizer import Tokenizer

pytestmark = pytest.mark.parity

TEXTS = ["I love NLP!", "", "I don't like NLP. blah blah blah blah blah", "naïve 東京 [MASK] 👍"]
PAIRS = ["So do I", "x y z", "", "the quick brown fox jumps over the lazy dog"]
WORDS = [text.split(" ") for text in TEXTS if text]
GIVEN = [
    (("I love NLP!",), {}),
    (("I love NLP!", "So do I"), {}),
    (("I love NLP!", ""), {}),
    ((TEXTS,), {}),
    ((tuple(TEXTS),), {}),
    ((TEXTS, PAIRS), {}),
    (([*zip(TEXTS, PAIRS, strict=True)],), {}),
    (([["I love", "NLP!"], ["So", "do I"]],), {}),
    ((WORDS[0],), {"is_split_into_words": True}),
    ((WORDS[0], WORDS[1]), {"is_split_into_words": True}),
    ((WORDS,), {"is_split_into_words": True}),
    ((WORDS, WORDS[::-1]), {"is_split_into_words": True}),
    (([*zip(WORDS, WORDS[::-1], strict=True)],), {"is_split_into_words": True}),
]
FIELDS = {
    "return_token_type_ids": [None, False],
    "return_attention_mask": [True, False],
    "return_special_tokens_mask": [True, False],
    "return_offsets_mapping": [True, False],
    "return_length": [True, False],
    "return_overflowing_tokens": [True, False],
}
SHAPES = {
    "add_special_tokens": [True, False],
    "padding": [False, True, "longest", "max_length", "do_not_pad"],
    "padding_side": [None, "left", "right"],
    "pad_to_multiple_of": [None, 4],
    "truncation": [None, True, False, "longest_first", "only_first", "do_not_truncate"],
    "max_length": [None, 8, 12],
    "stride": [0, 2],
}


class Both:
    """The same vocabulary in both libraries."""

    def __init__(self, folder):
        from transformers import AutoTokenizer, BertTokenizer

        self.ours = Tokenizer.load(folder)
        kind = AutoTokenizer if "tokenizer_class" in self.ours.settings else BertTokenizer
        self.theirs = kind.from_pretrained(folder)
        if type(self.theirs).__name__ == "AlbertTokenizer":  # as in transformers 4
            self.theirs.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
        self.for_words = for_words(self.theirs, self.ours, folder)

    def check(self, given, **options):
        theirs = self.for_words if options.get("is_split_into_words") else self.theirs
        try:
            right = theirs(*given, verbose=False, **options)
        except BaseException as refused:  # panics of the library below are no Exceptions
            if isinstance(refused, KeyboardInterrupt):
                raise
            with pytest.raises(BertcliError):
                self.ours(*given, **options)
            return
        found = self.ours(*given, **options)
        assert found == dict(right)
        assert list(found) == list(right)
        assert json.loads(json.dumps(found)) == json.loads(json.dumps(dict(right)))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = hostile.copy_vocabulary("uncased", tmp_path_factory.mktemp("uncased"))
    said = {"do_lower_case": True, "model_max_length": 16}
    put_json(folder / "tokenizer_config.json", said)
    return Both(folder)


def combined(choices):
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


@pytest.mark.parametrize(("given", "more"), GIVEN)
def test_every_combination_of_fields(both, given, more):
    for options in combined(FIELDS):
        both.check(given, **more, **options)
        both.check(given, **more, **options, max_length=6)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_combination_of_all_arguments(both, data):
    given, more = data.draw(st.sampled_from(GIVEN))
    options = {
        name: data.draw(st.sampled_from(values), label=name)
        for name, values in (SHAPES | FIELDS).items()
    }
    both.check(given, **more, **options)


@pytest.mark.parametrize("kind", ["np", "pt"])
@pytest.mark.parametrize("given", [("I love NLP!",), (TEXTS, PAIRS), (["Hi"],)])
def test_arrays_and_tensors(both, kind, given):
    options = {"padding": True, "truncation": True, "return_tensors": kind}
    options |= {"return_offsets_mapping": True, "return_special_tokens_mask": True}
    for more in ({}, {"return_overflowing_tokens": True, "max_length": 8}, {"return_length": True}):
        right = both.theirs(*given, **options, **more)
        found = both.ours(*given, **options, **more)
        assert list(found) == list(right)
        for name, values in found.items():
            assert type(values) is type(right[name])
            assert values.dtype == right[name].dtype
            assert values.tolist() == right[name].tolist(), name


def test_an_array_of_texts_of_several_lengths_is_refused(both):
    with pytest.raises(InputError, match="record 2 has 2 tokens and those before have 7"):
        both.ours(TEXTS, return_tensors="np")


def test_many_texts(both):
    texts = hostile.composed(31, 2 * FEW_RECORDS)
    both.check((texts,), padding=True, truncation=True, max_length=12)
    both.check((texts, texts[::-1]), truncation="longest_first", max_length=9)


@pytest.mark.parametrize("family", MADE)
def test_every_family(tmp_path, family):
    """Which columns there are, pairs, padding on either side, windows, ids alone, saving."""
    both = Both(MADE[family](tmp_path / "made", model_max_length=16))
    for texts, more in GIVEN:
        for options in ({}, {"return_token_type_ids": True}, {"padding": "max_length"}):
            both.check(texts, **more, **options)
        windows = {"return_overflowing_tokens": True, "stride": 2, "padding_side": "left"}
        for types in ({}, {"return_token_type_ids": True}):
            both.check(
                texts, **more, **windows, **types, max_length=9, padding=True, truncation=True
            )
    texts = hostile.composed(31, FEW_RECORDS)
    both.check((texts, texts[::-1]), truncation=True, padding=True)
    if family != "gemma":  # between a pair, it puts two tokens of different types
        check_ids_with_special_tokens(both)
    check_names(both, tokens=family != "mpnet")  # whose <unk> transformers adds
    both.ours.save_pretrained(tmp_path / "saved")
    again = Both(tmp_path / "saved")
    assert again.ours(texts, texts[::-1]) == both.ours(texts, texts[::-1])
    assert again.ours.limit == 16
    again.check((texts, texts[::-1]), truncation=True, padding=True)


def test_any_iterable_is_a_batch(both):
    assert both.ours(iter(TEXTS), iter(PAIRS)) == both.ours(TEXTS, PAIRS)


def test_no_text(both):
    assert both.ours([]) == {"input_ids": [], "token_type_ids": [], "attention_mask": []}


def test_a_tokenizer_without_a_limit_neither_truncates_nor_pads_to_it(tmp_path):
    both = Both(hostile.copy_vocabulary("uncased", tmp_path))
    both.check((TEXTS,), truncation=True, padding="max_length")


@pytest.mark.parametrize("split", [True, False])
def test_literal_special_tokens(both, split):
    both.check(("a [SEP] b",), split_special_tokens=split)
    assert both.ours("[SEP]")["input_ids"] == [101, 102, 102]


@pytest.mark.parametrize(
    ("given", "options", "error", "says"),
    [
        ((None,), {}, InputError, "text 1"),
        (([1, 2],), {}, InputError, "text 1: the text is 1, not a string"),
        ((["a", None],), {}, InputError, "text 2: the text is null"),
        ((["a", "b"], ["c"]), {}, InputError, "list of 2 texts"),
        ((["a", "b"], "c"), {}, InputError, "list of 2 texts"),
        (("a",), {"return_tensors": "tf"}, UsageError, "return_tensors 'tf'"),
        (("a",), {"padding": "long"}, UsageError, "padding 'long'"),
        (("a",), {"truncation": "first"}, UsageError, "truncation 'first'"),
        (("a",), {"padding_side": "top"}, UsageError, "padding_side 'top'"),
        (("a",), {"max_length": 1}, UsageError, "^max_length=1 leaves no room"),
        (("a",), {"max_length": -1}, UsageError, "^max_length=-1 leaves no room"),
    ],
)
def test_what_cannot_be_done_is_one_of_our_errors(both, given, options, error, says):
    with pytest.raises(error, match=says):
        both.ours(*given, **options)


def test_an_unknown_argument_is_named(both):
    with pytest.raises(TypeError, match="paddin"):
        both.ours("a", paddin=True)


ROLES = ("cls_token", "sep_token", "pad_token", "mask_token", "unk_token")
SAME = ("vocab_size", "model_max_length", "padding_side", *ROLES, *(f"{role}_id" for role in ROLES))


def check_names(both, *, tokens):
    """What users of transformers call and read of a tokenizer, of its results and of ids."""
    ours, theirs = both.ours, both.theirs
    assert {name: getattr(ours, name) for name in SAME} == {
        name: getattr(theirs, name) for name in SAME
    }
    assert (len(ours), ours.get_vocab()) == (len(theirs), theirs.get_vocab())
    if tokens:
        assert {*ours.all_special_tokens} == {*theirs.all_special_tokens}
        assert {*ours.all_special_ids} == {*theirs.all_special_ids}
    for text, pair in zip(TEXTS, PAIRS, strict=True):
        assert ours.encode(text, pair) == theirs.encode(text, pair)
        assert ours.tokenize(text) == theirs.tokenize(text)
    found, right = (
        each(TEXTS, PAIRS, return_tensors="pt", padding=True) for each in (ours, theirs)
    )
    assert found.to("cpu").input_ids.tolist() == right.input_ids.tolist()
    for row in range(len(TEXTS)):
        assert found.tokens(row) == right.tokens(row)
        assert found.word_ids(row) == right.word_ids(row)
    assert ours.batch_decode(found.input_ids) == theirs.batch_decode(right["input_ids"])
    check_padding(both)


def check_padding(both):
    ids = [{"input_ids": both.ours.encode(text), "labels": at} for at, text in enumerate(TEXTS)]
    for options in (
        {},
        {"padding": "max_length", "max_length": 40},
        {"padding_side": "left", "pad_to_multiple_of": 8},
    ):
        for inputs in ([dict(row) for row in ids], dict(ids[0]), dict(both.ours(TEXTS))):
            assert both.ours.pad(inputs, **options) == dict(both.theirs.pad(inputs, **options))
    batches = [
        each.pad([dict(row) for row in ids], return_tensors="pt")
        for each in (both.ours, both.theirs)
    ]
    ours, theirs = ({name: x.tolist() for name, x in batch.items()} for batch in batches)
    assert ours == theirs


def test_a_result_is_sent_to_another_process(both):
    again = pickle.loads(pickle.dumps(both.ours("a", return_tensors="pt")))
    assert again.attention_mask.tolist() == [[1, 1, 1]]
    with pytest.raises(AttributeError, match="no labels here; available: input_ids, "):
        _ = again.labels


def test_the_default_model_is_that_of_the_command(default_folder):
    assert Tokenizer.from_pretrained().get_vocab() == Tokenizer.load(default_folder).get_vocab()


def check_ids_with_special_tokens(both):
    """As in the literature: transformers 5 has no such methods for its fast tokenizers."""
    ours, theirs = both.ours, both.theirs
    for first, second in ((TEXTS[0], None), (TEXTS[0], PAIRS[0]), ("", "a")):
        whole = theirs(first, second, return_special_tokens_mask=True, return_token_type_ids=True)
        plain = [
            theirs(text, add_special_tokens=False)["input_ids"]
            for text in (first, second)
            if text is not None
        ]
        assert ours.build_inputs_with_special_tokens(*plain) == whole["input_ids"]
        assert ours.create_token_type_ids_from_sequences(*plain) == whole["token_type_ids"]
        assert ours.get_special_tokens_mask(*plain) == whole["special_tokens_mask"]
        ids = whole["input_ids"]
        mask = theirs.get_special_tokens_mask(ids, already_has_special_tokens=True)
        assert ours.get_special_tokens_mask(ids, already_has_special_tokens=True) == mask


def test_ids_with_special_tokens(both):
    check_ids_with_special_tokens(both)
    ours, one, two = both.ours, [5, 6, 7], [8, 9]
    assert ours.build_inputs_with_special_tokens(one, two) == [101, 5, 6, 7, 102, 8, 9, 102]
    with pytest.raises(InputError, match="one list"):
        ours.get_special_tokens_mask(one, two, already_has_special_tokens=True)


def test_single_ids_and_tokens_lists_and_arrays(both):
    import numpy as np

    ours, theirs = both.ours, both.theirs
    for ids in (2293, [2293, 2361, 102]):
        assert ours.convert_ids_to_tokens(ids) == theirs.convert_ids_to_tokens(ids)
        assert ours.decode(ids) == theirs.decode(ids)
    for tokens in ("love", "no such", ["love", "##p", "no such"]):
        assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    many = both.ours(TEXTS, padding=True)["input_ids"]
    assert ours.decode(many) == theirs.decode(many) == ours.decode(np.array(many))
    assert ours.decode(many, skip_special_tokens=True) == theirs.decode(
        many, skip_special_tokens=True
    )
    assert ours.decode([]) == theirs.decode([])
    assert ours.decode(np.array(many[0])) == theirs.decode(many[0])
    assert ours.convert_ids_to_tokens(np.array(many[0])) == theirs.convert_ids_to_tokens(many[0])


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens(tmp_path, special):
    both = Both(hostile.copy_vocabulary("uncased", tmp_path))
    text = "the Covid wave, covid19 and [E1]"
    before = both.ours(text)
    for tokens in ("covid", ["covid", "[E1]"], []):
        found = both.ours.add_tokens(tokens, special_tokens=special)
        assert found == both.theirs.add_tokens(tokens, special_tokens=special)
    assert both.ours(text) != before
    both.check((text,))
    both.check(([text] * FEW_RECORDS,))
    for skip in (True, False):
        ids = both.ours(text)["input_ids"]
        assert both.ours.decode(ids, skip) == both.theirs.decode(ids, skip)


@pytest.mark.parametrize("name", hostile.VOCABULARIES)
def test_a_saved_tokenizer_is_the_same_in_both_libraries(tmp_path, name):
    from transformers import AutoTokenizer

    made = hostile.copy_vocabulary(name, tmp_path / "made")
    lower = hostile.VOCABULARIES[name]
    said = {"do_lower_case": lower, "model_max_length": 20, "padding_side": "left"}
    put_json(made / "tokenizer_config.json", said)
    ours = Tokenizer.load(made)
    ours.add_tokens(["covid"])
    ours.add_tokens(["[E1]"], special_tokens=True)
    ours.save(tmp_path / "saved")
    again = Tokenizer.load(str(tmp_path / "saved"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    texts = [*hostile.composed(32, 100), "the Covid wave [E1]"]
    right = ours(texts, truncation=True, padding=True)
    assert again(texts, truncation=True, padding=True) == right
    assert dict(theirs(texts, truncation=True, padding=True)) == right
    assert theirs.decode(right["input_ids"][-1], skip_special_tokens=True) == ours.decode(
        right["input_ids"][-1], skip_special_tokens=True
    )
    assert again.warnings == []
