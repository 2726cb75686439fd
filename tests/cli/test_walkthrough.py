"""The well-known walk-through of bert-base-uncased's tokenizer, value by value."""

import pytest
from front import bad, call, good

LOVE = [101, 1045, 2293, 17953, 2361, 999, 102]
DISLIKE = [101, 1045, 2123, 1005, 1056, 2066, 17953, 2361, 1012, 1012, 1012, 102]
BLAH = "I don't like NLP. blah blah blah blah blah"
BLAH_IDS = [101, 1045, 2123, 1005, 1056, 2066, 17953, 2361, 1012, *[27984] * 5, 102]
PAIRS = "I love NLP!\tI don't like NLP...\nHow old are you?\tI'm 6 years old\n"
OLD = [101, 2129, 2214, 2024, 2017, 1029, 102, 1045, 1005, 1049, 1020, 2086, 2214, 102]


def test_one_text_in_full():
    assert good("tokenize", "I love NLP!").out == (
        '{"input_ids":[101,1045,2293,17953,2361,999,102],'
        '"token_type_ids":[0,0,0,0,0,0,0],"attention_mask":[1,1,1,1,1,1,1]}\n'
    )


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--no-token-type-ids"], {"input_ids", "attention_mask"}),
        (["--no-attention-mask"], {"input_ids", "token_type_ids"}),
        (["--no-token-type-ids", "--no-attention-mask"], {"input_ids"}),
    ],
)
def test_fields_are_dropped(options, left):
    (row,) = good("tokenize", "I love NLP!", *options).rows
    assert set(row) == left
    assert row["input_ids"] == LOVE


def test_ids_to_tokens_and_back():
    assert good("decode", "--as", "tokens", *LOVE).out == "[CLS] i love nl ##p ! [SEP]\n"
    tokens = good("tokenize", "I love NLP!", "--tokens").rows[0]["tokens"]
    assert tokens == ["[CLS]", "i", "love", "nl", "##p", "!", "[SEP]"]
    assert good("tokenize", "--from-tokens", *tokens).ids == [LOVE]


def test_one_token():
    assert good("tokenize", "--from-tokens", "love").ids == [[2293]]
    assert good("decode", "--as", "tokens", "2293").out == "love\n"


def test_a_token_that_is_not_there_is_unk_with_a_warning():
    done = call("tokenize", "--from-tokens", "I")
    assert (done.code, done.ids) == (0, [[100]])
    assert done.err == "warning: not in the vocabulary, replaced by [UNK]: I\n"


@pytest.mark.parametrize(
    ("token", "index"),
    [("[UNK]", 100), ("[SEP]", 102), ("[PAD]", 0), ("[CLS]", 101), ("[MASK]", 103)],
)
def test_special_tokens(token, index):
    assert good("tokenize", "--from-tokens", token).ids == [[index]]
    assert good("decode", "--as", "tokens", index).out == f"{token}\n"


def test_no_special_tokens():
    assert good("tokenize", "I love NLP!", "--no-special-tokens").ids == [LOVE[1:-1]]


def test_special_tokens_that_stand_in_the_text():
    done = call("tokenize", "[CLS]I love NLP![SEP]", "--no-special-tokens")
    assert (done.code, done.ids) == (0, [LOVE])
    assert done.err.startswith(
        "warning: special tokens in the input were parsed as special tokens (2)"
    )
    assert len(good("tokenize", "[SEP]", "--no-parse-special").ids[0]) == 5  # [ sep ##... ]


def test_decode():
    assert good("decode", *LOVE).out == "[CLS] i love nlp! [SEP]\n"
    assert good("decode", *LOVE, "--skip-special-tokens").out == "i love nlp!\n"
    assert good("decode", *LOVE, "--no-clean-up").out == "[CLS] i love nlp ! [SEP]\n"


def test_padding_decodes_unless_specials_are_skipped():
    assert good("decode", "101 1045 102 0 0").out == "[CLS] i [SEP] [PAD] [PAD]\n"
    assert good("decode", "101 1045 102 0 0", "--skip-special-tokens").out == "i\n"


def test_a_batch_of_two():
    assert good("tokenize", "I love NLP!", "I don't like NLP...").ids == [LOVE, DISLIKE]


def test_two_pairs():
    rows = good("tokenize", "--pairs", "-", stdin=PAIRS).rows
    assert [row["input_ids"] for row in rows] == [[*LOVE, *DISLIKE[1:]], OLD]
    assert [row["token_type_ids"] for row in rows] == [[0] * 7 + [1] * 11, [0] * 7 + [1] * 7]
    assert [row["attention_mask"] for row in rows] == [[1] * 18, [1] * 14]


def test_a_pair_of_arguments():
    (row,) = good("tokenize", "How old are you?", "--pair", "I'm 6 years old").rows
    assert row["input_ids"] == OLD


def test_three_sentences_are_refused(tmp_path):
    (tmp_path / "three.tsv").write_text("a\tb\nc\td\te\n")
    failed = bad("tokenize", "--pairs", tmp_path / "three.tsv")
    assert failed.error.endswith("three.tsv:2: 3 columns, but BERT takes at most two sentences")


@pytest.mark.parametrize("form", ["npy", "npz", "safetensors"])
def test_a_ragged_batch_is_no_array(tmp_path, form):
    target = tmp_path / f"x.{form}"
    failed = bad("tokenize", "I love NLP!", "I don't like NLP...", "-o", target)
    assert failed.error.startswith("record 2 has 12 tokens and those before have 7")
    assert "--padding longest" in failed.hint
    assert list(tmp_path.iterdir()) == []


def test_ten_tokens():
    options = ("--max-length", 10, "--padding", "max_length", "--truncation")
    done = call("tokenize", BLAH, *options)
    (row,) = done.rows
    assert row["input_ids"] == [*BLAH_IDS[:9], 102]
    assert row["attention_mask"] == [1] * 10
    assert row["truncated"] == 5
    assert done.err == "warning: 1 of 1 texts truncated to 10 tokens (5 dropped)\n"
    (row,) = good("tokenize", "I love NLP!", *options).rows
    assert row["input_ids"] == [*LOVE, 0, 0, 0]
    assert row["attention_mask"] == [1] * 7 + [0] * 3
    assert "truncated" not in row


WHOLE = [101, 1045, 2123, 1005, 1056, 2066, 17953, 2361, 1012, 102]  # I don't like NLP.
ASKED = [2129, 2214, 2024, 2017, 1029, 102]  # How old are you?


@pytest.mark.parametrize("strategy", ["true", "longest_first", "only_first", None])
def test_truncation_of_a_single_text(strategy):
    options = () if strategy is None else ("--truncation", strategy)
    (row,) = call("tokenize", "I don't like NLP.", "--max-length", 6, *options).rows
    assert row["input_ids"] == [101, 1045, 2123, 1005, 1056, 102]
    assert row["truncated"] == 4


@pytest.mark.parametrize("strategy", ["false", "do_not_truncate"])
def test_no_truncation(strategy):
    options = ("--max-length", 6, "--truncation", strategy)
    assert good("tokenize", "I don't like NLP.", *options).ids == [WHOLE]
    pair = ("--pair", "How old are you?")
    assert good("tokenize", "I don't like NLP.", *pair, *options).ids == [[*WHOLE, *ASKED]]


@pytest.mark.parametrize(
    ("strategy", "length", "ids", "cut"),
    [
        ("true", 10, [101, 1045, 2123, 1005, 1056, 102, 2129, 2214, 2024, 102], 6),
        ("longest_first", 10, [101, 1045, 2123, 1005, 1056, 102, 2129, 2214, 2024, 102], 6),
        ("only_first", 10, [101, 1045, 2123, 102, *ASKED], 6),
        ("only_second", 13, [*WHOLE, 2129, 2214, 102], 3),
    ],
)
def test_truncation_of_a_pair(strategy, length, ids, cut):
    options = ("--max-length", length, "--truncation", strategy)
    done = call("tokenize", "I don't like NLP.", "--pair", "How old are you?", *options)
    (row,) = done.rows
    assert (row["input_ids"], row["truncated"]) == (ids, cut)
    split = ids.index(102) + 1
    assert row["token_type_ids"] == [0] * split + [1] * (length - split)


def test_only_second_where_it_cannot_be():
    single = bad("tokenize", BLAH, "--max-length", 6, "--truncation", "only_second")
    assert "only_second cannot shorten a text that has no pair" in single.error
    short = ("--pair", "How old are you?", "--max-length", 10, "--truncation", "only_second")
    assert "only_second: the first text alone has" in bad("tokenize", BLAH, *short).error


def test_truncation_from_the_left():
    done = call("tokenize", BLAH, "--max-length", 10, "--truncation-side", "left")
    assert done.ids == [[101, 17953, 2361, 1012, *[27984] * 5, 102]]


PADDED = {
    "true": ([*LOVE, *[0] * 5], DISLIKE),
    "longest": ([*LOVE, *[0] * 5], DISLIKE),
    "max_length": ([*LOVE, *[0] * 7], [*DISLIKE, 0, 0]),
    "false": (LOVE, DISLIKE),
    "do_not_pad": (LOVE, DISLIKE),
}


@pytest.mark.parametrize("strategy", PADDED)
def test_padding_of_single_texts(strategy):
    options = ("--max-length", 14, "--padding", strategy)
    rows = good("tokenize", "I love NLP!", "I don't like NLP...", *options).rows
    assert tuple(row["input_ids"] for row in rows) == PADDED[strategy]
    for row, real in zip(rows, (7, 12), strict=True):
        rest = len(row["input_ids"]) - real
        assert row["attention_mask"] == [1] * real + [0] * rest
        assert row["token_type_ids"] == [0] * (real + rest)


@pytest.mark.parametrize(
    ("strategy", "lengths"),
    [
        ("true", [18, 18]),
        ("longest", [18, 18]),
        ("max_length", [20, 20]),
        ("false", [18, 14]),
        ("do_not_pad", [18, 14]),
    ],
)
def test_padding_of_pairs(strategy, lengths):
    options = ("--max-length", 20, "--padding", strategy)
    rows = good("tokenize", "--pairs", "-", *options, stdin=PAIRS).rows
    assert [len(row["input_ids"]) for row in rows] == lengths
    rest = lengths[1] - 14
    assert rows[1]["input_ids"] == [*OLD, *[0] * rest]
    assert rows[1]["token_type_ids"] == [0] * 7 + [1] * 7 + [0] * rest


def test_padding_side_and_multiple():
    padded = ("tokenize", "I love NLP!", "--padding", "max_length", "--max-length")
    (row,) = good(*padded, 10, "--padding-side", "left").rows
    assert row["input_ids"] == [0, 0, 0, *LOVE]
    assert row["attention_mask"] == [0, 0, 0, *[1] * 7]
    assert good(*padded, 10, "--pad-to-multiple-of", 4).ids == [[*LOVE, 0, 0, 0, 0, 0]]
    longest = ("tokenize", "I love NLP!", "--padding", "longest")
    assert good(*longest, "--pad-to-multiple-of", 4).ids == [[*LOVE, 0]]


def test_windows():
    words = "one two three four five six"
    done = good("tokenize", words, "--overflowing", "--max-length", 6, "--stride", 2)
    assert done.ids == [[101, 2028, 2048, 2093, 2176, 102], [101, 2093, 2176, 2274, 2416, 102]]
    assert [row["overflow_to_sample_mapping"] for row in done.rows] == [0, 0]
