"""The word memo: ids identical to those of the library, or no memo at all."""

import json
import string

import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers

from bertcli.files.typed_json import NOTHING
from bertcli.records.records import Record, TextBlock
from bertcli.tokenizing import word_cache as memo
from bertcli.tokenizing.columns import Layout
from bertcli.tokenizing.line_output import LineMaker, Task
from bertcli.tokenizing.tokenizer import FEW, Tokenizer
from bertcli.tokenizing.word_cache import Ids, WordMemo

PLAIN = st.text(st.sampled_from(string.printable[:95]), max_size=40)


@pytest.fixture(scope="module", params=hostile.VOCABULARIES)
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    folder = hostile.copy_vocabulary(request.param, tmp_path_factory.mktemp(request.param))
    lower = {"do_lower_case": hostile.VOCABULARIES[request.param]}
    (folder / "tokenizer_config.json").write_text(json.dumps(lower))
    return Tokenizer.load(folder)


@pytest.fixture(scope="module")
def uncased(tmp_path_factory):
    return hostile.copy_vocabulary("uncased", tmp_path_factory.mktemp("uncased"))


@pytest.fixture(scope="module")
def default(default_folder):
    return Tokenizer.load(default_folder)


def check(tokenizer, texts, pairs=(), special=True):
    """Compare a batch with the library; return how many texts the memo answered."""
    records = [Record(text) for text in texts] + [Record(*pair) for pair in pairs]
    assert len(records) >= FEW
    found = tokenizer.encode(records, Layout(special_tokens=special))
    answered = 0
    for record, item in zip(records, found, strict=True):
        right = tokenizer.core.encode(record.text, record.pair, add_special_tokens=special)
        ids = item.columns["input_ids"]
        assert list(ids) == right.ids, record
        assert list(item.columns["token_type_ids"]) == right.type_ids
        assert list(item.columns["attention_mask"]) == right.attention_mask
        if isinstance(ids, Ids):
            answered += 1
            assert json.loads(ids.json) == right.ids
            assert len(ids) == len(right.ids)
    return answered


@pytest.mark.parametrize("special", [True, False])
def test_plain_text(tokenizer, special):
    texts = [*hostile.english(1, 2000), *hostile.real_lines(500)]
    known = [text for text in texts if tokenizer.memo.knows(text)]
    assert check(tokenizer, texts, special=special) == len(known) > 1000


@pytest.mark.parametrize("special", [True, False])
def test_plain_and_other_lines_and_pairs_together(tokenizer, special):
    texts = hostile.english(2, 300) + hostile.composed(3, 300)
    texts = [text for both in zip(texts, texts[::-1], strict=True) for text in both]
    pairs = [("I love NLP!", "so do I"), ("", ""), ("[SEP]", "東京")]
    assert 100 < check(tokenizer, texts, pairs, special) < len(texts) - 100


def test_every_ascii_character(tokenizer):
    """Inside a word, beside one and alone: some are dropped, some cut, some are blanks."""
    texts = [text for at in range(128) for text in (f"in{chr(at)}to", f"{chr(at)} on {chr(at)}")]
    check(tokenizer, texts)


def test_every_character(tokenizer):
    """Inside a word; of the planes that are all but empty, a few."""
    codes = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 41)]
    texts = [f"a{chr(code)}b" for code in codes if code != ord("\n")]
    right = tokenizer.core.encode_batch_fast(texts, add_special_tokens=False)
    found = tokenizer.memo.inner(texts)
    for text, ids, encoding in zip(texts, found, right, strict=True):
        assert ids == "".join([f",{number}" for number in encoding.ids]), text


def test_marks_that_change_places(tokenizer):
    """Marks in the order in which nobody should type them, after letters that bring their own."""
    marks = "\u0301\u0323\u031b\u0345\u3099\u302e\u093c\u094d\u0e38\u0e48\u05b0\u05bc\U0001d165"
    letters = ["a", "é", "ộ", "か", "が", "각", "ᾳ", "中", ".", "क", "क़", "ศ", "ש", ""]
    texts = [
        f"x{letter}{one}{other}{letter} {one}{other}y"
        for letter in letters
        for one in marks
        for other in marks
    ]
    assert check(tokenizer, texts) == len(texts)


def test_after_it_forgot(tokenizer, monkeypatch):
    """Small limits, so that it forgets within a batch's time, and again."""
    pieces = tokenizer.memo.pieces
    monkeypatch.setattr(memo, "MOST", 20)
    texts = hostile.english(4, 600) + hostile.composed(4, 300)
    for start in range(0, len(texts), 30):
        check(tokenizer, texts[start : start + 30])
    for table in (pieces, pieces.words, pieces.characters):
        assert 0 < len(table) <= 20
        table.clear()
    monkeypatch.setattr(memo, "MOST", 1 << 16)
    monkeypatch.setattr(memo, "LONGEST", 3)
    for start in range(0, len(texts), 30):
        check(tokenizer, texts[start : start + 30])
    assert max(map(len, pieces)) == max(map(len, pieces.words)) == 3


@given(st.lists(PLAIN, min_size=FEW, max_size=FEW + 4), st.booleans())
def test_any_plain_texts(default, some, special):
    answered = check(default, some, special=special)
    assert answered == sum(default.memo.knows(text) for text in some)


@given(st.lists(st.one_of(PLAIN, hostile.texts), min_size=FEW, max_size=FEW))
def test_any_texts(default, some):
    check(default, some)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stride", [0, 2])
def test_windows_and_padding_of_remembered_texts(tokenizer, side, stride):
    records = [Record(text) for text in hostile.english(5, 200)]
    layout = {
        "max_length": 9,
        "truncation": "longest_first",
        "truncation_side": side,
        "padding": "longest",
        "padding_side": side,
        "stride": stride,
        "overflowing": bool(stride),
    }
    quick = tokenizer.encode(records, Layout(**layout))
    columns = (*Layout().columns, "tokens")  # one more column takes the long way
    slow = tokenizer.encode(records, Layout(columns, **layout))
    assert len(quick) == len(slow)
    for one, other in zip(quick, slow, strict=True):
        assert (one.record, one.cut, one.sample) == (other.record, other.cut, other.sample)
        for name in one.columns:
            assert list(one.columns[name]) == list(other.columns[name])


def test_an_added_token_that_begins_with_a_letter(uncased, tmp_path):
    folder = hostile.copy_vocabulary("uncased", tmp_path)
    (folder / "added_tokens.json").write_text(json.dumps({"zorblax": 30522, "nlq": 30523}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.memo is None
    assert check(tokenizer, ["I am zorblax and nlq!"] * FEW) == 0
    assert 30522 in tokenizer.encode([Record("zorblax")] * FEW, Layout())[0].columns["input_ids"]


def test_an_added_token_in_brackets(uncased, tmp_path):
    folder = hostile.copy_vocabulary("uncased", tmp_path)
    (folder / "added_tokens.json").write_text(json.dumps({"[E1]": 30522}))
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.memo is not None
    assert check(tokenizer, [*(["plain words"] * FEW), "a [E1] b", "a [e1] b", "a[E1]b"]) == FEW


def test_brackets_that_are_no_added_token(default):
    some = ["a [MASK] b", "a[MASK]b", "a [mask] b", "a [1] b", "[ MASK ]"]
    assert check(default, [*(["plain words"] * FEW), *some]) == FEW + 3


def test_an_added_token_that_is_found_in_changed_text(uncased):
    """Such a token may stand in any text with a bracket, whatever its letters."""
    core = Tokenizer.load(uncased).core
    core.add_tokens([AddedToken("[ë1]", normalized=True)])
    tokenizer = Tokenizer(core, NOTHING, None)
    tokenizer.memo, tokenizer.plain = WordMemo(core), True
    assert WordMemo.fits(core)
    assert (
        check(tokenizer, [*(["plain words"] * FEW), "a [E1] b", "a [ë1] b", "a (ë1) b"]) == FEW + 1
    )


@pytest.mark.parametrize(
    "other",
    [
        normalizers.Lowercase(),
        normalizers.Sequence([normalizers.BertNormalizer(), normalizers.Replace("e", "3")]),
        None,
    ],
)
def test_another_normalizer(uncased, other):
    core = Tokenizer.load(uncased).core
    assert WordMemo.fits(core)
    core.normalizer = other
    assert not WordMemo.fits(core)


def test_other_parts(uncased):
    from tokenizers import models, pre_tokenizers

    core = Tokenizer.load(uncased).core
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    assert not WordMemo.fits(core)
    core = Tokenizer.load(uncased).core
    core.model = models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")
    assert not WordMemo.fits(core)


@pytest.mark.parametrize("token", ["covid", "the", "[E1]", "[ë1]"])
@pytest.mark.parametrize("special", [False, True])
def test_tokens_added_later_are_seen(uncased, token, special):
    """In large batches, in lines, in the count of special tokens, and by other processes."""
    tokenizer = Tokenizer.load(uncased)
    texts = [f"the {token} and more", "plain words", "[E1] [e1]", "[MASK]"] * FEW
    records, lines = [Record(text) for text in texts], TextBlock(texts, "x.txt", 1)
    check(tokenizer, texts)  # whose words are remembered now
    assert tokenizer.count_literals(records) == FEW
    assert tokenizer.core.add_tokens(
        [AddedToken(token, special=special, normalized=token == "[ë1]")]
    )
    check(tokenizer, texts)
    index = tokenizer.core.token_to_id(token)
    assert index in tokenizer.encode(records, Layout())[0].columns["input_ids"]
    written = LineMaker(tokenizer, Task(Layout()))(lines).data.decode().splitlines()
    assert index in json.loads(written[0])["input_ids"]
    marks = sum(text.count(token) for text in texts) if special else 0
    assert tokenizer.count_literals(records) == FEW + marks
    assert tokenizer.folder is None


def test_a_normalizer_set_later_is_seen(uncased):
    tokenizer = Tokenizer.load(uncased)
    texts = ["The naïve one", "plain words"] * FEW
    assert check(tokenizer, texts) == len(texts)
    tokenizer.core.normalizer = normalizers.BertNormalizer(lowercase=False)
    assert check(tokenizer, texts) == len(texts)
    tokenizer.core.normalizer = None
    assert check(tokenizer, texts) == 0


def test_ids_are_a_sequence():
    ids = Ids("101,7,102")
    assert (len(ids), ids[1], ids[1:], list(ids), ids.json) == (
        *(3, 7, [7, 102], [101, 7, 102]),
        "[101,7,102]",
    )
    assert ids == [101, 7, 102] == ids
    assert ids != [101, 7]
    assert ids != "101,7,102"
    assert (len(Ids("")), list(Ids("")), Ids("").json) == (0, [], "[]")
