"""Model folders of every age against what transformers loads from them, and broken ones."""

import json
import os
import re
import shutil
import signal
import struct
from base64 import b64encode
from pathlib import Path

import hostile
import pytest
import tokenizers_made
from front import (
    TINY,
    bad,
    good,
    json_in,
    put_json,
)
from test_tokenizer_parity import Two
from tokenizers_made import KINDS, folder_of

from bertcli.errors import ModelError
from bertcli.records.record import Record
from bertcli.tokenizing.batch import Layout
from bertcli.tokenizing.tokenizer import Tokenizer

TEXTS = [
    "<s> a </s> <mask> [CLS] b [SEP] [MASK] c <pad> <unk>",
    "ZORBLAX zorblax Zorblax's [E1] [e1]",
    *("Élan vital ÉLAN", "我a爱b", "x<E2>y < E2 > <e2>", "a [E1]. [ent] [ENT]", "bertcli BertCLI"),
    *hostile.composed(11, 80),
]
SMALL = [*("<pad>", "<unk>", "<s>", "</s>", "<mask>", "a", "b", "c", "##b", "é", "E", "lan", "爱")]


def write(folder, vocabulary="uncased", **files):
    """Write a model folder: a vocabulary by name or as lines, and JSON files."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(vocabulary, list):
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", "utf-8")
    elif vocabulary:
        hostile.copy_vocabulary(vocabulary, folder)
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text, "utf-8")
    return folder


def check(folder, texts=TEXTS, skipped=True, vocabulary=True):
    """Compare everything about some texts and their pairs with transformers; return ours.

    Without ``skipped``, not what convert_ids_to_tokens skips; without ``vocabulary``, not its size.
    """
    two = Two(folder)
    two.check(texts, texts[::-1])
    two.check(texts)
    ours, theirs = two.ours, two.theirs
    for row in two.columns([Record(*both) for both in zip(texts, texts[::-1], strict=True)]):
        ids = row["input_ids"]
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip)
            if skipped or not skip:
                right = theirs.convert_ids_to_tokens(ids, skip)
                assert ours.convert_ids_to_tokens(ids, skip) == right
    if vocabulary:
        assert ours.core.get_vocab() == theirs.get_vocab()
        assert len(ours) == len(theirs)
    return ours


@pytest.mark.parity
@pytest.mark.parametrize("vocabulary", ["uncased", "chinese"])
def test_a_vocabulary_alone(tmp_path, vocabulary):
    """The Chinese one has U+2028 as a token: transformers 5.23 strips it away, the hub does not."""
    ours = check(write(tmp_path, vocabulary), vocabulary=vocabulary != "chinese")
    assert ours.warnings == []
    if vocabulary == "chinese":
        assert ours.convert_ids_to_tokens([343, 13502]) == ["\u2028", "##\u2028"]


@pytest.mark.parity
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("chinese", [True, False])
def test_what_the_settings_say(tmp_path, lower, accents, chinese):
    said = {"do_lower_case": lower, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    ours = check(write(tmp_path, "multi_cased", tokenizer_config=said))
    assert bool(ours.warnings) == lower


@pytest.mark.parity
@pytest.mark.parametrize("written", ["special_tokens_map", "tokenizer_config"])
@pytest.mark.parametrize("as_objects", [True, False])
def test_other_special_tokens(tmp_path, written, as_objects):
    roles = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    roles["mask_token"] = "<mask>"
    said = {role: {"content": name} if as_objects else name for role, name in roles.items()}
    if as_objects:
        for token in said.values():
            token |= {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    if as_objects and written == "tokenizer_config":
        for token in said.values():
            token["__type"] = "AddedToken"
    ours = check(write(tmp_path, SMALL, **{written: said}))
    assert ours.special_ids() == {"<unk>": 1, "</s>": 3, "<pad>": 0, "<s>": 2, "<mask>": 4}
    assert ours.encode_records([Record("a")], Layout())[0].columns["input_ids"] == [2, 5, 3]
    padded = Layout(padding="max_length", max_length=5)
    assert ours.encode_records([Record("a")], padded)[0].columns["input_ids"] == [2, 5, 3, 0, 0]


@pytest.mark.parity
def test_tokens_added_later(tmp_path):
    check(write(tmp_path, added_tokens={"zorblax": 30523, "[E1]": 30522, "<E2>": 30524}))


@pytest.mark.parity
@pytest.mark.parametrize("field", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("added", [{"[E1]": 30522, "<E2>": 30523}, {}])
@pytest.mark.parametrize("written", ["tokenizer_config", "special_tokens_map"])
def test_additional_special_tokens(tmp_path, field, added, written):
    said = {written: {field: ["[E1]", "<E2>"]}}
    folder = write(tmp_path, added_tokens=added, **said)
    # transformers 5.23, unlike 4, forgets then that these are special, and matches "[e1]" too
    forgets = added and written == "special_tokens_map"
    ours = Tokenizer.load(folder) if forgets else check(folder)
    assert ours.count_literals([Record("[E1] <E2> [e1]")]) == 2
    ids = ours.encode_records([Record("[E1]<E2>")], Layout())[0].columns["input_ids"]
    assert ids == [101, 30522, 30523, 102]


def described(name, **options):
    plain = {"lstrip": False, "rstrip": False, "normalized": True, "single_word": False}
    return {"content": name, "special": False, **plain, **options}


ADDED = {
    "0": described("[PAD]", special=True, normalized=False),
    "100": described("[UNK]", special=True, normalized=False),
    "101": described("[CLS]", special=True, normalized=False),
    "102": described("[SEP]", special=True, normalized=False),
    "103": described("[MASK]", special=True, normalized=False, lstrip=True),
    "30522": described("zorblax", single_word=True),
    "30523": described("<E2>", normalized=False),
    "30524": described("[ENT]", special=True, rstrip=True),
    "30525": described("BertCLI"),
}


@pytest.mark.parity
def test_tokens_added_with_options(tmp_path):
    said = {"added_tokens_decoder": ADDED, "do_lower_case": True}
    check(write(tmp_path, tokenizer_config=said | {"extra_special_tokens": ["[ENT]"]}))


@pytest.mark.parity
def test_a_special_token_without_a_role_is_skipped_in_tokens_as_in_text(tmp_path):
    """Transformers skips it in the text only."""
    added = {"30522": described("[ENT]", special=True, normalized=False)}
    said = {"added_tokens_decoder": added, "do_lower_case": True}
    ours = check(write(tmp_path, tokenizer_config=said), skipped=False)
    assert ours.convert_ids_to_tokens([101, 30522, 1037], True) == ["a"]
    assert ours.decode([101, 30522, 1037], skip_special_tokens=True) == "a"


@pytest.mark.parity
@pytest.mark.parametrize("vocabulary", hostile.VOCABULARIES)
@pytest.mark.parametrize("added", [False, True])
def test_what_transformers_saves(tmp_path, vocabulary, added):
    from transformers import AddedToken, BertTokenizerFast

    lower = hostile.VOCABULARIES[vocabulary]
    theirs = BertTokenizerFast.from_pretrained(
        write(tmp_path / "old", vocabulary), do_lower_case=lower
    )
    if added:
        theirs.add_tokens(["zorblax", AddedToken("<E2>", normalized=False, single_word=True)])
        theirs.add_special_tokens({"additional_special_tokens": ["[E1]", "[ENT]"]})
    theirs(["x", "y"], max_length=8, truncation=True, padding="max_length")
    theirs.save_pretrained(tmp_path / "new")
    stored = json_in(tmp_path / "new" / "tokenizer.json")
    assert stored["truncation"] and stored["padding"]
    assert not (tmp_path / "new" / "vocab.txt").exists()
    assert check(tmp_path / "new").warnings == []


def saved(folder, vocabulary="cased", lower=False, **options):
    """Return the tokenizer.json of a folder, as text."""
    from tokenizers import normalizers

    core = Tokenizer.load(write(folder, vocabulary, tokenizer_config={"do_lower_case": lower})).core
    core.normalizer = normalizers.BertNormalizer(lowercase=lower, **options)
    return core.to_str()


@pytest.mark.parity
@pytest.mark.parametrize("file", [True, False])
@pytest.mark.parametrize("said", [True, False])
def test_lower_casing_is_said_in_two_places(tmp_path, file, said):
    """As in transformers 5: what tokenizer_config.json says counts."""
    text = saved(tmp_path / "old", lower=file)
    folder = tmp_path / "new"
    config = {"do_lower_case": said, "tokenizer_class": "BertTokenizer"}
    ours = check(write(folder, None, tokenizer=text, tokenizer_config=config))
    assert any("has capital letters" in warning for warning in ours.warnings) == said


@pytest.mark.parity
@pytest.mark.parametrize("said", [{"strip_accents": False}, {"tokenize_chinese_chars": False}, {}])
def test_accents_and_chinese_are_said_in_two_places(tmp_path, said):
    text = saved(tmp_path / "old", "multi_cased", strip_accents=True)
    said = {"do_lower_case": False} | said
    check(write(tmp_path / "new", None, tokenizer=text, tokenizer_config=said))


@pytest.mark.parity
def test_a_file_that_does_not_say_what_is_special(tmp_path):
    stored = json.loads(saved(tmp_path / "old")) | {"added_tokens": [], "post_processor": None}
    said = {"do_lower_case": False}
    check(write(tmp_path / "new", None, tokenizer=stored, tokenizer_config=said))


@pytest.mark.parity
@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "TokenizersBackend"])
def test_a_class_that_takes_the_file_as_it_is(tmp_path, name):
    from transformers import AutoTokenizer

    text = saved(tmp_path / "old")
    config = {"do_lower_case": True, "tokenizer_class": name}
    folder = write(tmp_path / "new", None, tokenizer=text, tokenizer_config=config)
    ours = Tokenizer.load(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert ours.core.encode("Élan Hello").ids == theirs("Élan Hello")["input_ids"]
    assert not ours.warnings


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [{}, {"post_processor": None}])
def test_a_tokenizer_file_alone_is_taken_as_it_is(tmp_path, kind, change):
    """Nothing stands around texts where the file has no post-processor."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    stored = json.loads(tokenizers_made.stored(kind)) | change
    folder = write(tmp_path / "new", None, tokenizer=stored)
    ours = Tokenizer.load(folder)
    file = str(folder / "tokenizer.json")
    for theirs in (
        AutoTokenizer.from_pretrained(folder),
        PreTrainedTokenizerFast(tokenizer_file=file),
    ):
        for pairs in (None, TEXTS[::-1]):
            assert ours(TEXTS, pairs) == dict(theirs(TEXTS, pairs))
    ids = theirs(TEXTS[1])["input_ids"]
    rows = good("tokenize", "-q", "-m", folder, TEXTS[1]).rows
    assert [row["input_ids"] for row in rows] == [ids]


def test_a_tokenizer_file_alone_is_taken_at_its_word(tmp_path):
    """Transformers 5.23 lower-cases here, as BertTokenizer does by default: that is silent harm."""
    folder = write(tmp_path / "new", None, tokenizer=saved(tmp_path / "old"))
    ours = Tokenizer.load(folder)
    assert ours.core.encode("Hello", add_special_tokens=False).tokens == ["Hello"]


@pytest.mark.parametrize("vocabulary", ["cased", "multi_cased"])
def test_a_cased_vocabulary_alone_is_not_lower_cased(tmp_path, vocabulary):
    ours = Tokenizer.load(write(tmp_path, vocabulary))
    assert ours.core.encode("Hello", add_special_tokens=False).tokens == ["Hello"]
    assert "so text keeps its case" in ours.warnings[0]
    assert str(tmp_path) in ours.warnings[0]


def test_what_the_file_says_of_length_is_overridden(default_folder):
    stored = json_in(default_folder / "tokenizer.json")
    assert stored["truncation"]["max_length"] == stored["padding"]["strategy"]["Fixed"] == 128
    ours = Tokenizer.load(default_folder)
    short, long = ours.encode_records([Record("a"), Record("a " * 500)], Layout())
    assert (short.length, long.length) == (3, 502)
    assert ours.limit == 256


ROLES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("end", ["\n", "", "\n\n\n", "\r\n", "\n \n\t\n"])
@pytest.mark.parametrize("between", ["\n", "\r\n"])
def test_line_ends_of_a_vocabulary(tmp_path, end, between):
    (tmp_path / "vocab.txt").write_bytes((between.join([*ROLES, "a", "##b"]) + end).encode())
    ours = Tokenizer.load(tmp_path)
    assert ours.get_vocab() == {token: at for at, token in enumerate([*ROLES, "a", "##b"])}
    assert not ours.warnings
    assert ours.encode_records([Record("ab")], Layout())[0].columns["input_ids"] == [2, 5, 6, 3]


@pytest.mark.parity
def test_odd_lines_of_a_vocabulary(tmp_path):
    """Line separators that are not line ends, and an empty line, each of which holds an id."""
    odd = [*ROLES, "a\u2028b", "", "\x85", "\u00a0", "x\x0cy", "a", "##b", "\u3000", "c"]
    ours = check(write(tmp_path, odd), ["ab c a", "c"], vocabulary=False)
    assert ours.core.get_vocab() == {token: at for at, token in enumerate(odd)}


@pytest.mark.parity
def test_a_repeated_token_keeps_its_last_id(tmp_path):
    ours = check(write(tmp_path, [*ROLES, "a", "b", "a", "c", "b"]), ["a b c", "c a"])
    assert ours.encode_records([Record("a b c")], Layout())[0].columns["input_ids"] == [
        2,
        7,
        9,
        8,
        3,
    ]


@pytest.mark.parametrize("token", ROLES[:4])
def test_a_missing_special_token_is_named(tmp_path, token):
    write(tmp_path, [*(role for role in ROLES if role != token), "a"])
    with pytest.raises(ModelError, match=f"vocabulary has no {re.escape(token)}$"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "\n", " \n\n"])
def test_an_empty_vocabulary(tmp_path, content):
    (tmp_path / "vocab.txt").write_text(content)
    error = bad("tokenize", "-m", tmp_path, "a").error
    assert error == f"{tmp_path / 'vocab.txt'}: the vocabulary is empty"


def test_a_vocabulary_that_is_not_text(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    with pytest.raises(ModelError, match=r"vocab\.txt: byte 6 is not valid UTF-8"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer_config", "special_tokens_map", "added_tokens", "config"]
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("", "the file is empty"),
        ("version https://git-lfs", "only a git-lfs pointer to the file"),
        ("\x00\xff", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "expected a JSON object, found [1]"),
        ("null", "expected a JSON object, found null"),
    ],
)
def test_broken_settings(tmp_path, name, text, message):
    folder = write(tmp_path, [*ROLES, "a"], **{name: text})
    assert bad("tokenize", "-m", folder, "a").error.startswith(f"{folder / name}.json: {message}")


@pytest.mark.parametrize("text", ["{", "", "{}", "[]", '{"model": {"type": "WordPiece"}}'])
def test_a_broken_tokenizer_file(tmp_path, text):
    folder = write(tmp_path, None, tokenizer=text)
    error = bad("tokenize", "-m", folder, "a").error
    assert error.startswith(f"{folder / 'tokenizer.json'}: not a tokenizer: ")


@pytest.mark.parametrize(
    ("tokenizer", "positions", "sentence", "limit"),
    [
        ("", "", "", None),
        (512, "", "", 512),
        (1e30, "", "", None),
        (int(1e30), "", "", None),
        (None, "", "", None),
        ("", 512, "", 512),
        (1e30, 512, "", 512),
        (128, 512, "", 128),
        ("", 512, 256, 256),
        ("", 512, None, 512),
        ("", 64, 256, 64),
        (128, 512, 256, 256),  # as in sentence-transformers
    ],
)
def test_the_longest_sequence(tmp_path, tokenizer, positions, sentence, limit):
    settings = {
        "tokenizer_config": {"model_max_length": tokenizer},
        "config": {"max_position_embeddings": positions},
        "sentence_bert_config": {"max_seq_length": sentence},
    }
    files = {name: values for name, values in settings.items() if "" not in values.values()}
    assert Tokenizer.load(write(tmp_path, [*ROLES, "a"], **files)).limit == limit
    if "config" in files:  # the name that Google gave the file counts where it is alone
        (tmp_path / "config.json").rename(tmp_path / "bert_config.json")
        assert Tokenizer.load(tmp_path).limit == limit


@pytest.mark.parametrize("side", ["left", "right"])
def test_sides_come_from_the_folder(tmp_path, side):
    said = {"truncation_side": side, "padding_side": side}
    ours = Tokenizer.load(write(tmp_path, [*ROLES, "a", "b"], tokenizer_config=said))
    cut = Layout(max_length=3, truncation="only_first")
    kept = {"right": 5, "left": 6}[side]
    assert ours.encode_records([Record("a b")], cut)[0].columns["input_ids"] == [2, kept, 3]
    padded = Layout(padding="max_length", max_length=5)
    right = {"right": [2, 5, 3, 0, 0], "left": [0, 0, 2, 5, 3]}[side]
    assert ours.encode_records([Record("a")], padded)[0].columns["input_ids"] == right


SPACED = [
    "I don't like NLP...",
    "do n't",
    " 's",
    "a , b",
    "we 've 'm ' . ? !",
    "nlp don't [MASK] .",
]
NOT_CLEAN = {"type": "WordPiece", "prefix": "##", "cleanup": False}


@pytest.mark.parity
@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("named", [None, "BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("decoder", ["vocab.txt", "as it was", NOT_CLEAN, None])
def test_decoding_cleans_up_as_the_folder_says(tmp_path, default_folder, said, named, decoder):
    """Beyond what the decoder of the library does to each token."""
    from transformers import AutoTokenizer

    if decoder == "vocab.txt" and named == "PreTrainedTokenizerFast":
        return  # that class reads tokenizer.json alone
    settings = {"clean_up_tokenization_spaces": said, "tokenizer_class": named}
    settings = {key: value for key, value in settings.items() if value is not None}
    folder = write(tmp_path, tokenizer_config=settings, config={"model_type": "bert"})
    if decoder != "vocab.txt":
        core = json_in(default_folder / "tokenizer.json")
        core |= {} if decoder == "as it was" else {"decoder": decoder}
        put_json(folder / "tokenizer.json", core)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    for text in SPACED:
        ids = theirs(text)["input_ids"]
        for skip in (False, True):
            right = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == right
            right = theirs.decode(ids, skip, clean_up_tokenization_spaces=True)
            assert ours.decode(ids, skip, clean_up_tokenization_spaces=True) == right
        plain = ours.decode(ids, clean_up_tokenization_spaces=False)
        assert "n ' t" in plain or "n't" not in text
        assert ours.decode(ids) == theirs.decode(ids)  # which the calls before did not change


# --- settings that are wrong: one line that names file, key, what was found and is expected ---


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("tokenizer_config", "do_lower_case", "true"),
        ("tokenizer_config", "strip_accents", 1),
        ("tokenizer_config", "tokenize_chinese_chars", "no"),
        ("tokenizer_config", "model_max_length", "512"),
        ("tokenizer_config", "model_max_length", -5),
        ("tokenizer_config", "model_max_length", True),
        ("tokenizer_config", "model_max_length", float("nan")),
        ("tokenizer_config", "unk_token", 3),
        ("tokenizer_config", "sep_token", ["[SEP]"]),
        ("tokenizer_config", "cls_token", "\ud800"),
        ("tokenizer_config", "truncation_side", "middle"),
        ("tokenizer_config", "padding_side", ["left"]),
        ("tokenizer_config", "clean_up_tokenization_spaces", "yes"),
        ("tokenizer_config", "additional_special_tokens", 7),
        ("tokenizer_config", "extra_special_tokens", "[E1]"),
        ("tokenizer_config", "added_tokens_decoder", [{"content": "a"}]),
        ("special_tokens_map", "mask_token", True),
        ("special_tokens_map", "additional_special_tokens", 7),
        ("added_tokens", "zorblax", None),
        ("added_tokens", "zorblax", "30522"),
        ("added_tokens", "zorblax", -1),
        ("added_tokens", "zorblax", 2**70),
        ("sentence_bert_config", "max_seq_length", "64"),
        ("config", "max_position_embeddings", {"a": 1}),
        ("bert_config", "max_position_embeddings", "512"),
    ],
)
def test_settings_of_a_wrong_type(tmp_path, file, key, value):
    folder = write(tmp_path, [*ROLES, "a"], **{file: {key: value}})
    error = bad("tokenize", "-m", folder, "a").error
    assert error.startswith(f"{folder / file}.json: {key}: expected "), error
    assert f", found {json.dumps(value)}" in error


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ({"added_tokens_decoder": {"5": "a"}}, "added_tokens_decoder.5"),
        ({"added_tokens_decoder": {"5": None}}, "added_tokens_decoder.5"),
        ({"added_tokens_decoder": {"a": {"content": "a"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"-1": {"content": "a"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"9" * 5000: {"content": "a"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"5": {}}}, "added_tokens_decoder.5.content"),
        ({"added_tokens_decoder": {"5": {"content": 1}}}, "added_tokens_decoder.5.content"),
        (
            {"added_tokens_decoder": {"5": {"content": "a", "lstrip": "yes"}}},
            "added_tokens_decoder.5.lstrip",
        ),
        ({"additional_special_tokens": ["[E1]", 3]}, "additional_special_tokens.1"),
        ({"extra_special_tokens": {"image": 3}}, "extra_special_tokens.image"),
        ({"pad_token": {"content": ["[PAD]"]}}, "pad_token.content"),
    ],
)
def test_settings_of_a_wrong_type_inside(tmp_path, said, key):
    folder = write(tmp_path, [*ROLES, "a"], tokenizer_config=said)
    error = bad("tokenize", "-m", folder, "a").error
    assert error.startswith(f"{folder / 'tokenizer_config.json'}: {key}: expected "), error
    assert ", found " in error or error.endswith("but it is missing")


def test_odd_settings_that_mean_nothing_to_a_tokenizer(tmp_path):
    said = {"model_max_length": 64.0, "max_len": "x", "name_or_path": 3, "do_basic_tokenize": []}
    said |= {"unk_token": None, "strip_accents": None, "tokenizer_class": 7, "never_split": {}}
    folder = write(tmp_path, [*ROLES, "a"], tokenizer_config=said)
    assert Tokenizer.load(folder).limit == 64
    assert good("tokenize", "-m", folder, "a").ids == [[2, 5, 3]]


def test_a_limit_without_room(tmp_path):
    folder = write(tmp_path, [*ROLES, "a"], tokenizer_config={"model_max_length": 1})
    error = bad("tokenize", "-m", folder, "a", "--truncation").error
    assert error == f"{folder}: a limit of 1 token leaves no room for the 2 special tokens"


def test_the_file_that_counts_is_named(tmp_path):
    """The older file goes first unless the newer one describes the added tokens."""
    files = {"tokenizer_config": {"unk_token": 1}, "special_tokens_map": {"unk_token": 2}}
    folder = write(tmp_path, [*ROLES, "a"], **files)
    assert "special_tokens_map.json: unk_token: expected " in bad("tokenize", "-m", folder, "a").err
    files["tokenizer_config"]["added_tokens_decoder"] = {}
    write(tmp_path, None, **files)
    assert "tokenizer_config.json: unk_token: expected " in bad("tokenize", "-m", folder, "a").err


@pytest.mark.parity
def test_special_tokens_by_name(tmp_path):
    """As transformers 5 writes them: the names are attributes, the tokens are in the vocabulary."""
    said = {"extra_special_tokens": {"entity": "[E1]", "other": {"content": "<E2>"}}}
    folder = write(tmp_path / "ours", tokenizer_config=said)
    said["extra_special_tokens"]["other"] = "<E2>"  # of objects, transformers 5.23 keeps the dict
    check(write(tmp_path / "both", tokenizer_config=said))
    assert Tokenizer.load(folder).count_literals([Record("[E1] <E2> entity")]) == 2


def test_special_tokens_that_a_template_could_not_have(tmp_path):
    said = {"cls_token": "$A", "sep_token": ":"}
    folder = write(tmp_path, [*ROLES, "$A", ":", "a"], tokenizer_config=said)
    assert good("tokenize", "-m", folder, "a").ids == [[5, 7, 6]]


# --- files that are none ---

FILES = ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json"]
FILES += ["added_tokens.json", "config.json", "sentence_bert_config.json"]


@pytest.fixture
def impatient():
    """Fail a test that waits for a pipe."""

    def late(*_):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_not_opened(tmp_path, name, kind, impatient):
    folder = write(tmp_path / "m", None if name == "vocab.txt" else [*ROLES, "a"])
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "device":
        (folder / name).symlink_to("/dev/zero")
    else:
        (folder / name).mkdir()
    error = bad("tokenize", "-m", folder, "a").error
    lacks = f"model folder '{folder}' has no tokenizer.json or vocab.txt"
    assert error == (lacks if name == "vocab.txt" else f"{folder / name}: not a regular file")


@pytest.mark.parametrize("name", FILES)
def test_a_link_that_leads_nowhere(tmp_path, name):
    folder = write(tmp_path / "m", None if name == "vocab.txt" else [*ROLES, "a"])
    (folder / name).symlink_to(tmp_path / "nothing")
    assert name in bad("tokenize", "-m", folder, "a").error


# --- a tokenizer.json that the library loads, and then panics about or computes nonsense with ---


def template(single="A", pair="AB", special=(("[CLS]", [2]), ("[SEP]", [3]))):
    def parts(texts):
        inner = [{"Sequence": {"id": text, "type_id": 0}} for text in texts]
        ends = [{"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]")]
        return [ends[0], *inner, ends[1]]

    named = {name: {"id": name, "ids": ids, "tokens": [name]} for name, ids in special}
    said = {"single": parts(single), "pair": parts(pair), "special_tokens": named}
    return {"post_processor": {"type": "TemplateProcessing", **said}}


# Characters that become others: a tree of one node, which leads beyond the end.
CHARSMAP = struct.pack("<II", 4, 1 << 18) + b"x"


def grown(kind, key):
    """Replacements, each of which makes a text ten times longer."""
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    return {"type": kind, key: [longer] * 30}


def bert(sep=3, cls=2):
    return {"type": "BertProcessing", "sep": ["[SEP]", sep], "cls": ["[CLS]", cls]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (template(special=[("[CLS]", [99]), ("[SEP]", [3])]), "a special token around texts is"),
        ({"post_processor": bert(sep=99)}, "a special token around texts is not in the vocabulary"),
        ({"normalizer": grown("Sequence", "normalizers")}, "json: normalizer.type: expected repl"),
        ({"decoder": grown("Sequence", "decoders")}, "json: decoder.type: expected replacements"),
        ({"model": {"unk_token": "[NO]"}}, "unknown words have no token: WordPiece error"),
    ],
)
def test_a_tokenizer_file_that_cannot_be_worked_with(tmp_path, change, message, capfd):
    stored = json.loads(Tokenizer.load(write(tmp_path / "old", [*ROLES, "a"])).core.to_str())
    for key, value in change.items():
        stored[key] = stored[key] | value if key == "model" else value
    folder = write(tmp_path / "new", None, tokenizer=stored)
    assert message in bad("tokenize", "-m", folder, "a", "unknown").error
    assert capfd.readouterr().err == ""  # where the library would tell of its panic


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""},
        {"type": "Precompiled", "precompiled_charsmap": b64encode(CHARSMAP).decode()},
    ],
    ids=["regex", "charsmap"],
)
@pytest.mark.parametrize("command", ["tokenize", "embed"])
def test_a_panic_of_the_library_is_one_error(tmp_path, normalizer, command):
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    stored = json.loads(Tokenizer.load(folder).core.to_str())
    write(folder, None, tokenizer=stored | {"normalizer": normalizer})
    done = bad(command, "-m", folder, "x" * 50, "a")
    assert done.error.startswith("the tokenizer failed: ") and "tokenizer.json" in done.hint


@pytest.mark.parametrize("change", [template(), {"post_processor": bert()}])
def test_templates_that_are_right(tmp_path, change):
    stored = json.loads(Tokenizer.load(write(tmp_path / "old", [*ROLES, "a"])).core.to_str())
    folder = write(tmp_path / "new", None, tokenizer=stored | change)
    assert good("tokenize", "-m", folder, "a").ids == [[2, 5, 3]]


def test_thousands_of_added_tokens_take_no_minutes(tmp_path, impatient):
    added = {f"word{number}": len(ROLES) + 1 + number for number in range(12_000)}
    folder = write(tmp_path, [*ROLES, "a"], added_tokens=added)
    (ids,) = good("tokenize", "-m", folder, "word11999 a").ids
    assert ids[1:-1] == [added["word11999"], len(ROLES)]


# --- tokenizers of other classes: roles, and what is not there ---


def as_it_is(folder, **change):
    """Write a tokenizer of the class that takes tokenizer.json as it is, with a change."""
    made = folder_of("roberta", folder, tokenizer_class="PreTrainedTokenizerFast")
    stored = json_in(made / "tokenizer.json") | change
    put_json(made / "tokenizer.json", stored)
    return made


def test_a_tokenizer_without_padding(tmp_path):
    added = [{"content": "<|end|>", "id": 700, "special": True, "normalized": False}]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    made = folder_of("roberta", tmp_path / "m", tokenizer_class="PreTrainedTokenizerFast")
    stored = json_in(made / "tokenizer.json")
    stored["added_tokens"] = [one | flags for one in added]
    stored["post_processor"] = None
    words = stored["model"]["vocab"]
    stored["model"]["vocab"] = {f"x{token}" if at < 4 else token: at for token, at in words.items()}
    put_json(made / "tokenizer.json", stored)
    assert Tokenizer.load(made).special_ids() == {}
    many = "a b\nc\n" * 200
    assert len(good("tokenize", "-m", made, stdin=many).ids) == 400
    for text in ("a b\nc\n", many):
        done = bad("tokenize", "-m", made, "--padding", "longest", stdin=text)
        assert done.error == "this tokenizer has no padding token"
    assert (
        "no token for what is unknown" in bad("tokenize", "-m", made, "--from-tokens", "zz").error
    )
    assert good("tokenize", "-m", made, "--stats", "a b").rows[0]["unknown"] == 0


def test_roles_are_those_of_the_vocabulary_where_nothing_names_them(tmp_path):
    ours = Tokenizer.load(as_it_is(tmp_path / "m"))
    assert (ours.roles["mask_token"], ours.roles["pad_token"]) == ("<mask>", "<pad>")
    named = {"mask_token": "the"}
    put_json(tmp_path / "m" / "tokenizer_config.json", named)
    assert Tokenizer.load(tmp_path / "m").roles["mask_token"] == "the"


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"model_type": "roberta"}, "RobertaTokenizer"),
        ({"model_type": "modernbert"}, "PreTrainedTokenizerFast"),
        ({"model_type": "bert"}, "PreTrainedTokenizerFast"),
        ({"model_type": "other", "tokenizer_class": "RobertaTokenizerFast"}, "RobertaTokenizer"),
    ],
)
def test_the_class_of_a_folder_that_names_none_is_that_of_its_model(tmp_path, config, kind):
    made = folder_of("roberta", tmp_path / "m")
    put_json(made / "config.json", config)
    assert Tokenizer.load(made).kind.name == kind


def test_a_tokenizer_without_ends_of_texts(tmp_path):
    """As model2vec writes them: words, [PAD] and [UNK]."""
    stored = json.loads(Tokenizer.load(write(tmp_path / "old", [*ROLES, "a"])).core.to_str())
    stored["model"]["vocab"] = {"[PAD]": 0, "[UNK]": 1, "a": 2}
    stored |= {"added_tokens": [], "post_processor": None}
    folder = write(tmp_path / "new", None, tokenizer=stored)
    assert good("tokenize", "-m", folder, "a b").ids == [[2, 1]]


def test_chance_has_no_part_in_byte_pairs(tmp_path):
    made = folder_of("roberta", tmp_path / "m", tokenizer_class="RobertaTokenizer")
    stored = json_in(made / "tokenizer.json")
    stored["model"]["dropout"] = 0.9
    put_json(made / "tokenizer.json", stored)
    ours = Tokenizer.load(made)
    found = ours(["the capital of France"] * 20)["input_ids"]
    assert all(ids == found[0] for ids in found)
