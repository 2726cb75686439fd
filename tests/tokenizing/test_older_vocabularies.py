"""vocab.json with merges.txt, and SentencePiece models, against the classes of transformers."""

import json
import struct

import hostile
import pytest
from front import (
    bad,
    put_json,
)
from tokenizers_made import FAMILIES, stored

from bertcli.tokenizing.tokenizer import Tokenizer

TEXTS = [*hostile.composed(41, 150), "<s> a </s> <mask> b<mask>", "[CLS] x [MASK] y [SEP]"]


def number(value: int) -> bytes:
    """Write a number as protocol buffers do."""
    found = b""
    while value > 127:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def part(key: int, content: bytes) -> bytes:
    return number(key << 3 | 2) + number(len(content)) + content


def model(pieces, kind=1, unknown=0) -> bytes:
    """Write a SentencePiece model of pieces, scores and kinds."""
    written = b""
    for text, score, sort in pieces:
        scored = b"\x15" + struct.pack("<f", score) + b"\x18" + number(sort)
        written += part(1, part(1, text.encode()) + scored)
    return written + part(2, b"\x18" + number(kind) + b"\xc0\x02" + number(unknown))


def words(family):
    """Return the words of a trained vocabulary without the mask."""
    listed = json.loads(stored(family))["model"]["vocab"][:-1]
    return [(text, struct.unpack("<f", struct.pack("<f", score))[0]) for text, score in listed]


def write(folder, family, name, content):
    folder.mkdir()
    (folder / name).write_bytes(content)
    put_json(folder / "tokenizer_config.json", FAMILIES[family][1])
    return folder


def same(ours, theirs):
    assert ours.core.get_vocab() == theirs.get_vocab()
    for text, pair in zip(TEXTS, TEXTS[::-1], strict=True):
        options = {"return_offsets_mapping": True, "return_token_type_ids": True}
        found, right = (one(text, pair, **options) for one in (ours, theirs))
        assert found == dict(right)
        assert ours.decode(found["input_ids"]) == theirs.decode(right["input_ids"])


@pytest.mark.parity
def test_byte_pairs(tmp_path):
    from transformers import AutoTokenizer

    said = json.loads(stored("roberta"))
    merges = "".join(f"{a} {b}\n" for a, b in said["model"]["merges"])
    vocabulary = said["model"]["vocab"]
    vocabulary |= {one["content"]: one["id"] for one in said["added_tokens"]}
    folder = write(tmp_path / "m", "roberta", "merges.txt", f"#version: 0.2\n{merges}".encode())
    put_json(folder / "vocab.json", vocabulary)
    same(Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder))


@pytest.mark.parity
def test_sentence_pieces(tmp_path):
    from transformers import DebertaV2Tokenizer

    vocabulary = words("deberta")
    kinds = dict.fromkeys(("[CLS]", "[SEP]", "[PAD]"), 3) | {"[UNK]": 2}
    listed = [(*word, kinds.get(word[0], 1)) for word in vocabulary]
    unknown = next(at for at, one in enumerate(listed) if one[2] == 2)
    folder = write(tmp_path / "m", "deberta", "spm.model", model(listed, unknown=unknown))
    said = {key: value for key, value in FAMILIES["deberta"][1].items() if key != "tokenizer_class"}
    same(Tokenizer.load(folder), DebertaV2Tokenizer(vocab=vocabulary, **said))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not a SentencePiece model"),
        (b"nonsense", "not a SentencePiece model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha", "not a SentencePiece model"),
        (model([("<unk>", 0.0, 2), ("a", -1.0, 1)])[:-9], "not a SentencePiece model"),
        (
            model([("<unk>", 0.0, 2), ("a", -1.0, 1)], kind=2),
            "only SentencePiece models",
        ),
        (model([("<unk>", 0.0, 2)], unknown=7), "not a SentencePiece model"),
    ],
)
def test_a_broken_model(tmp_path, content, says):
    folder = write(tmp_path / "m", "deberta", "spm.model", content)
    error = bad("tokenize", "-m", folder, "a").error
    assert error.startswith(f"{folder / 'spm.model'}: {says}")


@pytest.mark.parametrize(
    ("merges", "says"),
    [
        (None, ": vocab.json without merges.txt"),
        ("a b\nq\n", "/vocab.json: not a tokenizer: "),
        ("a x\n", "/vocab.json: not a tokenizer: "),
    ],
)
def test_broken_merges(tmp_path, merges, says):
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b", "ab"]
    content = json.dumps({name: at for at, name in enumerate(names)}).encode()
    folder = write(tmp_path / "m", "roberta", "vocab.json", content)
    if merges:
        (folder / "merges.txt").write_text(merges)
    assert bad("tokenize", "-m", folder, "a").error.startswith(f"{folder}{says}")


@pytest.mark.parity
@pytest.mark.parametrize("family", ["mpnet", "distilbert", "electra"])
def test_words_alone(tmp_path, family):
    from transformers import AutoTokenizer

    listed = json.loads(stored(FAMILIES[family][0]))["model"]["vocab"]
    content = "\n".join(sorted(listed, key=listed.__getitem__)).encode()
    folder = write(tmp_path / "m", family, "vocab.txt", content)
    same(Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder))
