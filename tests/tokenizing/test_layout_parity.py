"""Padding, truncation and windows against transformers, for every combination of their values."""

from itertools import chain, product

import hostile
import pytest
from tokenizers_made import MADE

from bertcli.errors import InputError, UsageError
from bertcli.records.record import Record
from bertcli.tokenizing.batch import COLUMNS, Layout
from bertcli.tokenizing.tokenizer import Tokenizer

pytestmark = pytest.mark.parity

ALL = tuple(name for name in COLUMNS if name != "positions")  # which transformers has not
CUTS = ("longest_first", "only_first", "only_second")
SIDES = ("right", "left")
TEXTS = [
    "",
    "I love NLP!",
    "I don't like NLP. blah blah blah blah blah",
    "naïve 東京 unaffable 👍 [MASK] " * 6,
    hostile.REAL[4],
]
PAIRS = ["So do I", "", "the quick brown fox jumps over the lazy dog", "x y z", hostile.REAL[3]]


class Pair:
    """The same vocabulary in both libraries."""

    def __init__(self, folder):
        from transformers import AutoTokenizer, BertTokenizerFast

        self.ours = Tokenizer.load(folder)
        kind = AutoTokenizer if "tokenizer_class" in self.ours.settings else BertTokenizerFast
        lower = {} if kind is AutoTokenizer else {"do_lower_case": True}
        self.theirs = kind.from_pretrained(folder, **lower)

    def found(self, records, layout):
        """Return our rows; None when truncation cannot be done."""
        try:
            encoded = self.ours.encode_records(records, layout)
        except InputError:
            return None
        rows = [{name: list(column) for name, column in e.columns.items()} for e in encoded]
        return [row | {"sample": e.sample} for row, e in zip(rows, encoded, strict=True)]

    def right(self, texts, pairs, layout):
        """Return the rows of transformers for the same layout; None when it refuses.

        Where nothing of one sequence is kept, the library below it makes windows of the whole of
        it, longer than max_length; those are left out here, as they are by us.
        """
        self.theirs.truncation_side = layout.truncation_side
        try:
            batch = self.theirs(
                texts,
                pairs,
                add_special_tokens=layout.special_tokens,
                padding=layout.padding,
                padding_side=layout.padding_side,
                truncation=layout.truncation,
                max_length=layout.max_length,
                stride=layout.stride,
                pad_to_multiple_of=layout.pad_to_multiple_of,
                return_overflowing_tokens=layout.overflowing,
                return_offsets_mapping=True,
                return_special_tokens_mask=True,
                return_token_type_ids=True,
                verbose=False,
            )
        except BaseException as refused:  # a stride that does not fit a pair is a panic there
            assert refused_by_design(refused), refused
            return None
        cuts = layout.truncation != "do_not_truncate"
        return [
            row
            for row in rows_of(batch)
            if not (cuts and sum(row["attention_mask"]) > layout.max_length)
        ]


def refused_by_design(error):
    panicked = type(error).__name__ == "PanicException"
    return ("`stride` must be" if panicked else "Truncation error") in str(error)


def rows_of(batch):
    samples = batch.get("overflow_to_sample_mapping", range(len(batch["input_ids"])))
    for at, encoding in enumerate(batch.encodings):
        row = {name: batch[name][at] for name in ALL if name in batch}
        row |= {"tokens": encoding.tokens, "word_ids": encoding.word_ids, "sample": samples[at]}
        yield row | {"sequence_ids": encoding.sequence_ids}


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Pair:
    return Pair(hostile.copy_vocabulary("uncased", tmp_path_factory.mktemp("uncased")))


def layouts(padding, truncation):
    """Return every layout of these two: sides, multiples, strides, special tokens, windows."""
    choices = product(SIDES, SIDES, (None, 4), (0, 3), (True, False), (True, False), (8, 12))
    for cut, fill, multiple, stride, special, overflowing, length in choices:
        if not overflowing and stride:
            continue  # neither means anything without the other
        yield Layout(
            columns=ALL,
            special_tokens=special,
            max_length=length,
            truncation=truncation,
            truncation_side=cut,
            padding=padding,
            padding_side=fill,
            pad_to_multiple_of=multiple,
            stride=stride,
            overflowing=overflowing,
        )


@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["singles", "pairs"])
@pytest.mark.parametrize("truncation", ["do_not_truncate", *CUTS])
@pytest.mark.parametrize("padding", ["do_not_pad", "longest", "max_length"])
def test_every_layout(pair, padding, truncation, pairs):
    done = refused = 0
    for layout in layouts(padding, truncation):
        for start, stop in ((0, 5), (1, 2), (2, 3)):
            texts = TEXTS[start:stop]
            others = pairs[start:stop] if pairs else [None] * len(texts)
            records = [Record(*both) for both in zip(texts, others, strict=True)]
            right = pair.right(texts, pairs and others, layout)
            assert pair.found(records, layout) == right, (layout, texts)
            done, refused = done + (right is not None), refused + (right is None)
    assert done or (truncation == "only_second" and not pairs)
    assert not refused or pairs or truncation == "only_second"


@pytest.mark.parametrize("family", MADE)
def test_layouts_of_every_family(tmp_path, family):
    """A share of all layouts: one of 21, and each family begins with another."""
    pair = Pair(MADE[family](tmp_path / "m"))
    first = list(MADE).index(family) % 7
    every = (layouts(fill, cut) for fill, cut in product(("longest", "max_length"), CUTS))
    for layout in list(chain.from_iterable(every))[first::21]:
        records = [Record(*both) for both in zip(TEXTS, PAIRS, strict=True)]
        for at, record in enumerate(records):
            right = pair.right(TEXTS[at : at + 1], PAIRS[at : at + 1], layout)
            found = pair.found([record], layout)
            for row in (*(found or ()), *(right or ())):
                if layout.overflowing:  # of a pair's windows there, some have its types, some not
                    row.pop("token_type_ids")
                if family == "roberta_prefix":  # the blank of a first token that is left is in it
                    row.pop("offset_mapping")
            assert found == right, (layout, record)


@pytest.mark.parametrize("padding", ["do_not_pad", "longest", "max_length"])
@pytest.mark.parametrize("side", SIDES)
def test_a_batch_of_singles_and_pairs(pair, padding, side):
    """Transformers takes no mixed batch; the library below it does."""
    others = [None if at % 2 else other for at, other in enumerate(PAIRS)]
    records = [Record(*both) for both in zip(TEXTS, others, strict=True)]
    core = pair.theirs.backend_tokenizer
    core.enable_truncation(10, stride=1, strategy="longest_first", direction=side)
    core.no_padding()
    if padding != "do_not_pad":
        length = 10 if padding == "max_length" else None
        core.enable_padding(pad_id=0, pad_token="[PAD]", length=length, direction=side)
    right = core.encode_batch([t if p is None else (t, p) for t, p, *_ in records])
    layout = Layout(
        ALL,
        max_length=10,
        truncation="longest_first",
        truncation_side=side,
        padding=padding,
        padding_side=side,
        stride=1,
        overflowing=True,
    )
    windows = [(at, e) for at, first in enumerate(right) for e in (first, *first.overflowing)]
    expected = [{n: COLUMNS[n](e) for n in ALL} | {"sample": at} for at, e in windows]
    assert pair.found(records, layout) == expected
    assert len(windows) > len(records) + 5


@pytest.mark.parametrize("overflowing", [False, True])
def test_what_was_cut_is_counted(pair, overflowing):
    records = [Record(*both) for both in zip(TEXTS, PAIRS, strict=True)]
    cut = Layout(ALL, max_length=12, truncation="longest_first", overflowing=overflowing)
    whole = pair.ours.encode_records(records, Layout())
    for item in pair.ours.encode_records(records, cut):
        lost = whole[item.sample].length - item.length
        assert item.dropped_tokens == (0 if overflowing else lost)


def test_the_message_names_the_record(pair):
    layout = Layout(max_length=5, truncation="only_first")
    record = Record("a", "one two three four five", file="pairs.tsv", line=7)
    with pytest.raises(InputError, match=r":7: cannot be truncated to 5 tokens: only_first"):
        pair.ours.encode_records([record], layout)
    skipped = []
    kept = pair.ours.encode_records([record, Record("a", "b")], layout, skip=skipped.append)
    assert len(kept) == len(skipped) == 1
    assert kept[0].sample == 1


@pytest.mark.parametrize("truncation", CUTS)
@pytest.mark.parametrize("overflowing", [False, True])
def test_no_room_for_the_special_tokens_of_a_pair(pair, truncation, overflowing):
    """Transformers leaves the whole text there, or drops both without a word."""
    layout = Layout(max_length=2, truncation=truncation, overflowing=overflowing)
    with pytest.raises(UsageError, match="max_length=2 leaves no room for the 3 special tokens"):
        pair.ours.encode_records([Record("a", "b")], layout)
