"""Flat batches: the same ids, types and masks as records one by one, for every layout."""

from itertools import product

import hostile
import pytest
from front import (
    put_json,
)
from tokenizers import AddedToken, pre_tokenizers, processors
from tokenizers_made import MADE

from bertcli.errors import BertcliError
from bertcli.formats.tables import ID_COLUMNS
from bertcli.records.record import Record
from bertcli.tokenizing import encode_block, ragged
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.encode_block import FEW_RECORDS
from bertcli.tokenizing.tokenizer import Tokenizer

SPECIAL = [("[CLS]", 101), ("[SEP]", 102)]


@pytest.fixture(scope="module", params=[*hostile.VOCABULARIES, *MADE])
def folder(request, tmp_path_factory):
    if request.param in MADE:
        return MADE[request.param](tmp_path_factory.mktemp(request.param))
    made = hostile.copy_vocabulary(request.param, tmp_path_factory.mktemp(request.param))
    lower = {"do_lower_case": hostile.VOCABULARIES[request.param]}
    put_json(made / "tokenizer_config.json", lower)
    return made


@pytest.fixture
def fresh(default_folder):
    return Tokenizer.load(default_folder)


def fast(tokenizer: Tokenizer) -> Tokenizer:
    """Let the engine think that it has seen much text."""
    tokenizer.engine.characters = ragged.NANOTOKEN_CHARACTERS
    return tokenizer


def begin(tokenizer):
    """Have the engine make ids."""
    fast(tokenizer).encode_records([Record("a b")] * FEW_RECORDS, Layout())


def same_both_ways(tokenizer, records, layout):
    """The columns of all records and the tokens dropped, or the error, are the same each way."""
    results = []
    for flat in (False, True):
        problems = []
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(encode_block, "FEW_RECORDS", 0 if flat else 10**6)
                items = tokenizer.encode_records(records, layout, skip=problems.append)
        except BertcliError as error:
            results.append((type(error), str(error)))
            continue
        rows = [
            (
                item.record,
                item.sample,
                item.dropped_tokens,
                {k: list(v) for k, v in item.columns.items()},
            )
            for item in items
        ]
        results.append((rows, [(str(error), error.hint) for error in problems]))
    assert results[0] == results[1], layout


OPTIONS = [
    Layout(columns=ID_COLUMNS, **options)
    for options in (
        {},
        {"special_tokens": False},
        {"max_length": 7, "truncation": "longest_first"},
        {"max_length": 8, "truncation": "longest_first", "truncation_side": "left"},
        {"max_length": 9, "truncation": "only_first", "truncation_side": "left"},
        {"max_length": 12, "truncation": "only_second", "padding": "longest"},
        {"padding": "longest", "pad_to_multiple_of": 8, "padding_side": "left"},
        {"padding": "max_length", "max_length": 16, "truncation": "longest_first"},
        {"max_length": 1, "truncation": "longest_first", "special_tokens": False},
        {"max_length": 7, "truncation": "longest_first", "overflowing": True},
        {"max_length": 9, "truncation": "only_first", "overflowing": True, "stride": 3},
        {"max_length": 5, "truncation": "longest_first", "overflowing": True, "stride": 2,
         "truncation_side": "left", "padding": "longest"},
        {"max_length": 2, "truncation": "longest_first", "overflowing": True},
        {"overflowing": True},
    )
]  # fmt: skip


@pytest.mark.parametrize("parse_special", [True, False])
def test_both_ways_give_the_same_of_hostile_texts(folder, parse_special):
    tokenizer = fast(Tokenizer.load(folder, parse_special=parse_special))
    texts = hostile.composed(3, 40)
    pairs = [Record(text, texts[-at]) for at, text in enumerate(texts)]
    mixed = [record if at % 3 else Record(record.text) for at, record in enumerate(pairs)]
    words = [Record(text.split(), None if at % 2 else ["a", text]) for at, text in enumerate(texts)]
    for records, layout in product(([*map(Record, texts)], pairs, mixed, words), OPTIONS):
        same_both_ways(tokenizer, records, layout)
    kind = type(tokenizer.core.model).__name__
    assert (tokenizer.engine.nanotoken is not None) == (kind == "WordPiece" and parse_special)


@pytest.mark.parametrize("strategy", ["longest_first", "only_first", "only_second"])
def test_texts_and_pairs_of_all_lengths_are_cut_the_same(fresh, strategy):
    texts = ["a " * count for count in range(9)]
    pairs = [Record(*both) for both in product(texts, texts)]
    for length, side in product(range(2, 14), ("left", "right")):
        layout = Layout(max_length=length, truncation=strategy, truncation_side=side)
        for records in ([*map(Record, texts)], pairs):
            same_both_ways(fast(fresh), records, layout)


@pytest.mark.parametrize(
    "processor",
    [
        processors.TemplateProcessing(
            "[CLS]:2 $A:3 [SEP]:1 [SEP]:1", "[SEP] $A:1 [CLS]:2 [CLS]:2 $B:4", SPECIAL
        ),
        processors.TemplateProcessing("$A", "$A $B:1 [SEP]", SPECIAL),
        processors.RobertaProcessing(*reversed(SPECIAL)),
    ],
)
def test_other_templates(fresh, processor):
    begin(fresh)  # before the template was changed
    fresh.core.post_processor = processor
    pairs = [Record(text, text[::-1]) for text in hostile.REAL]
    for records, layout in product((pairs, [*map(Record, hostile.REAL)]), OPTIONS):
        same_both_ways(fast(fresh), records, layout)
    assert fresh.engine.nanotoken


@pytest.mark.parametrize("template", ["[CLS] $B $A [SEP]", "$A [CLS]:0 [SEP]:1 $B"])
def test_templates_that_arrays_cannot_say_are_left_alone(fresh, template):
    fresh.core.post_processor = processors.TemplateProcessing("$A", template, SPECIAL)
    records = [Record("a", "b c")] * FEW_RECORDS
    assert list(fresh.encode_records(records, Layout())[0].columns["input_ids"]) == (
        fresh.core.encode("a", "b c").ids
    )
    length = 3 + 2 * template.count("[")
    layout = Layout(max_length=length, truncation="longest_first")
    found = fresh.encode_records([Record("a b c d e f", "x y z")], layout)[0].columns["input_ids"]
    fresh.core.enable_truncation(length)
    assert list(found) == fresh.core.encode("a b c d e f", "x y z").ids
    fresh.core.no_truncation()


# The engine.


class WrongTokenizer:
    """A nanotoken that is wrong about one text."""

    @classmethod
    def from_json(cls, described):
        import nanotoken.nanotoken_rs as right

        made = cls()
        made.right = right.WordPieceTokenizer.from_json(described)
        return made

    def encode_batch(self, texts, **options):
        ids, offsets = self.right.encode_batch(texts, **options)
        ids[offsets[texts.index("I love NLP!")]] += 1
        return ids, offsets


def assert_right(tokenizer):
    """The ids are those of tokenizers, which makes them."""
    texts = hostile.composed(2, 1000)
    tokenizer.engine.characters = ragged.NANOTOKEN_CHARACTERS
    ids, _ = tokenizer.engine(texts)
    right = tokenizer.core.encode_batch_fast(texts, add_special_tokens=False)
    assert ids.tolist() == [index for encoding in right for index in encoding.ids]
    assert tokenizer.engine.nanotoken is None


def test_a_disagreement_is_noticed_before_any_text(fresh, monkeypatch):
    import nanotoken

    monkeypatch.setattr(nanotoken, "WordPieceTokenizer", WrongTokenizer)
    assert_right(fresh)


def test_without_nanotoken(fresh, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "nanotoken", None)
    assert_right(fresh)


def test_a_tokenizer_that_nanotoken_does_not_have(fresh):
    fresh.core.pre_tokenizer = pre_tokenizers.Metaspace()
    begin(fresh)
    assert_right(fresh)


@pytest.mark.parametrize("flags", [*product([False, True], repeat=4)])
def test_added_tokens(fresh, flags):
    names = ("single_word", "lstrip", "rstrip", "normalized")
    options = dict(zip(names, flags, strict=True))
    tokens = ["[ENT]", "foo bar", "Ünï", "x1", "##ing", "日本", "the", "[sep]", "é", "👍"]
    begin(fresh)  # before the tokens were added
    fresh.add_tokens([AddedToken(token, **options) for token in tokens])
    texts = [f"{a}{gap}{b}" for a in tokens for b in tokens for gap in ("", " ", "a", " \u0301")]
    same_both_ways(fast(fresh), [*map(Record, texts)], Layout())
    assert fresh.engine.nanotoken
