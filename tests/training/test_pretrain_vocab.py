"""`bertcli pretrain vocab`: one text, one vocabulary, which transformers reads as we do."""

import json
from collections import Counter
from pathlib import Path

import pytest
from front import bad, call, good, process

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
LINES = [
    *README.splitlines(),
    "Zoë naïve café 東京は日本の首都です。",
    "low lower lowest newer",
] * 2
TEXT = "\n".join(LINES)


def vocab(folder, *options, stdin=TEXT):
    return call("pretrain", "vocab", "-o", folder, *options, stdin=stdin)


def tokens_of(folder):
    return (folder / "vocab.txt").read_text("utf-8").split("\n")[:-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocab") / "made"
    done = vocab(folder, "--size", 900)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("note: 900 tokens from ")
    return folder


def test_special_tokens_have_their_usual_ids(made):
    tokens = tokens_of(made)
    assert len(tokens) == len(set(tokens)) == 900
    assert tokens[0] == "[PAD]"
    assert tokens[1:100] == [f"[unused{number}]" for number in range(99)]
    assert tokens[100:104] == ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_without_unused_tokens(tmp_path):
    assert vocab(tmp_path / "a", "--size", 500, "--no-unused").code == 0
    tokens = tokens_of(tmp_path / "a")
    assert tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(tokens) == 500
    ids = good("tokenize", "-m", tmp_path / "a", "the").ids[0]
    assert (ids[0], ids[-1]) == (2, 3)


def test_every_piece_is_a_part_of_the_text_that_occurs_often_enough(tmp_path):
    words = Counter(["low", "low", "low", "lower", "lower", "newest", "newest", "newest", "widest"])
    assert vocab(tmp_path / "a", "--min-frequency", 3, stdin=" ".join(words.elements())).code == 0
    pieces = tokens_of(tmp_path / "a")[104:]
    letters = sorted(set("lowernwstid"))
    assert pieces[: len(letters)] == letters
    for piece in pieces:
        if len(piece.removeprefix("##")) > 1:
            count = sum(n for word, n in words.items() if piece.removeprefix("##") in word)
            assert count >= 3, piece
    assert {"low", "newest"} <= set(pieces) and "lower" not in pieces


@pytest.mark.parity
@pytest.mark.parametrize("options", [(), ("--cased",)])
def test_transformers_gives_the_same_ids(tmp_path, options):
    from transformers import AutoTokenizer

    assert vocab(tmp_path / "a", "--size", 900, "--max-length", 300, *options).code == 0
    theirs = AutoTokenizer.from_pretrained(tmp_path / "a")
    lines = [line for line in LINES if line.strip() and "[" not in line]
    found = good("tokenize", "-m", tmp_path / "a", stdin="\n".join(lines)).ids
    assert theirs(lines)["input_ids"] == found
    assert theirs.model_max_length == 300
    assert theirs.convert_tokens_to_ids(["[PAD]", "[UNK]", "[MASK]"]) == [0, 100, 103]
    (tmp_path / "a" / "tokenizer.json").unlink()  # what is left says the same
    assert good("tokenize", "-m", tmp_path / "a", stdin="\n".join(lines)).ids == found


def test_special_tokens_in_the_text_are_no_words(tmp_path):
    text = "[UNK] fox and [MASK], [UNK] dog " * 3
    with_them, without = tmp_path / "a", tmp_path / "b"
    assert vocab(with_them, stdin=text).code == 0
    assert vocab(without, stdin="fox and , dog " * 3).code == 0
    assert tokens_of(with_them) == tokens_of(without)


def test_case_and_accents(tmp_path, made):
    assert vocab(tmp_path / "a", "--size", 900, "--cased").code == 0
    cased = set(tokens_of(tmp_path / "a"))
    assert {"Z", "ë"} <= cased | {token.removeprefix("##") for token in cased}
    plain = "".join(tokens_of(made)[104:])
    assert plain == plain.lower() and "ë" not in plain


def test_the_same_text_gives_the_same_bytes(tmp_path, made):
    for name, seed in (("a", "1"), ("b", "2")):
        argv = ("pretrain", "vocab", "-o", tmp_path / name, "--size", 900)
        assert process(*argv, stdin=TEXT, env={"PYTHONHASHSEED": seed}).code == 0
        for path in made.iterdir():
            assert path.read_bytes() == (tmp_path / name / path.name).read_bytes()


def test_a_name_that_is_no_text_is_refused_at_once(tmp_path):
    done = bad("pretrain", "vocab", "nowhere.txt", "-o", tmp_path / "\udcffv", code=2)
    assert done.error.endswith("is not UTF-8")


def test_files_and_json_lists_are_the_same_text(tmp_path, made):
    (tmp_path / "a.txt").write_text("\n".join(LINES[:100]), "utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": LINES[100:]}) + "\n", "utf-8")
    done = call(
        *("pretrain", "vocab", tmp_path / "a.txt", tmp_path / "b.jsonl"),
        *("-o", tmp_path / "v", "--size", 900),
    )
    assert done.code == 0
    assert tokens_of(tmp_path / "v") == tokens_of(made)


def test_a_small_alphabet_leaves_out_the_rest(tmp_path):
    done = vocab(tmp_path / "a", "--limit-alphabet", 3, stdin="aaa bbb ccc ab ddd ab")
    assert done.code == 0
    assert tokens_of(tmp_path / "a")[104:107] == ["a", "b", "c"]


def test_a_model_is_not_overwritten(tmp_path, made):
    (tmp_path / "model.safetensors").write_bytes(b"")
    done = vocab(tmp_path, "--overwrite")
    assert done.error == f"{tmp_path}: holds model.safetensors, which this command did not write"
    assert "already exists" in vocab(made).error
