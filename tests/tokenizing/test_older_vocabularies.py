"""vocab.json with merges.txt, and SentencePiece models, against the classes of transformers."""

import json
import struct
from base64 import b64encode

import hostile
import pytest
from front import (
    bad,
    good,
    put_json,
)
from tokenizers import AddedToken
from tokenizers_made import FAMILIES, MADE, stored

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


def charsmap(replaced) -> bytes:
    """Write a map of characters as SentencePiece does: a double array, and what it leads to.

    Each state has a block of 256 units of its own. Source: darts-clone, the reader of that format.
    """
    states = {b""} | {text.encode()[:size] for text in replaced for size in range(1, 5)}
    blocks = {state: 256 * at for at, state in enumerate(sorted(states))}
    units, texts = [0] * 256 * len(blocks), b""
    for state, block in blocks.items():
        if not state:
            units[0] = block << 10
            continue
        place = blocks[state[:-1]] ^ state[-1]
        units[place] = (place ^ block) << 10 | state[-1]
        if state.decode(errors="ignore") in replaced:
            units[place] |= 1 << 8
            units[block] = 1 << 31 | len(texts)
            texts += replaced[state.decode()].encode() + b"\0"
    return struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts


def model(pieces, kind=1, unknown=0, table=b"") -> bytes:
    """Write a SentencePiece model of pieces, scores and kinds."""
    written = b""
    for text, score, sort in pieces:
        scored = b"\x15" + struct.pack("<f", score) + b"\x18" + number(sort)
        written += part(1, part(1, text.encode()) + scored)
    written += part(2, b"\x18" + number(kind) + b"\xc0\x02" + number(unknown))
    return written + part(3, part(2, table)) * bool(table)


def words(family, special):
    """Return the words of a trained vocabulary behind its special tokens, without the mask."""
    listed = json.loads(stored(family))["model"]["vocab"][special:-1]
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


def wide(mask):
    """Return a mask token that takes in the blank before it, as transformers had it until 5."""
    return AddedToken(mask, lstrip=True, special=True)


@pytest.mark.parity
def test_byte_pairs(tmp_path):
    from transformers import AutoTokenizer

    said = json.loads(stored("roberta"))
    merges = "".join(f"{a} {b}\n" for a, b in said["model"]["merges"])
    vocabulary = said["model"]["vocab"]
    vocabulary |= {one["content"]: one["id"] for one in said["added_tokens"]}
    folder = write(tmp_path / "m", "roberta", "merges.txt", f"#version: 0.2\n{merges}".encode())
    put_json(folder / "vocab.json", vocabulary)
    theirs = AutoTokenizer.from_pretrained(folder, mask_token=wide("<mask>"))
    assert theirs.decode(theirs("a <mask>")["input_ids"][1:3]) == "a<mask>"
    same(Tokenizer.load(folder), theirs)


@pytest.mark.parity
@pytest.mark.parametrize("family", ["xlm_roberta", "camembert", "albert", "deberta"])
def test_sentence_pieces(tmp_path, family):
    import transformers

    special = {"xlm_roberta": 4, "camembert": 7}.get(family, 0)
    known = words(family, special)
    if special:
        name = "sentencepiece.bpe.model"
        listed = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
        listed += [(*word, 1) for word in known]
    else:
        name = {"albert": "spiece.model", "deberta": "spm.model"}[family]
        control = dict.fromkeys(("[CLS]", "[SEP]", "<pad>", "[PAD]"), 3)
        kinds = control | {"<unk>": 2, "[UNK]": 2}
        listed = [(*word, kinds.get(word[0], 1)) for word in known]
    unknown = next(at for at, one in enumerate(listed) if one[2] == 2)
    folder = write(tmp_path / "m", family, name, model(listed, unknown=unknown))
    first = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    plain = [(text, score) for text, score, _ in listed]
    vocabulary = {
        "xlm_roberta": [*first, *known, ("<mask>", 0.0)],
        "camembert": [
            *[("<s>NOTUSED", 0.0), first[1], ("</s>NOTUSED", 0.0), first[3]],
            *[("<unk>NOTUSED", -100.0), *plain[1:], ("<mask>", 0.0)],
        ],
    }.get(family, plain)
    kind = getattr(transformers, FAMILIES[family][1]["tokenizer_class"])
    said = {key: value for key, value in FAMILIES[family][1].items() if key != "tokenizer_class"}
    if family in ("xlm_roberta", "albert"):
        said["mask_token"] = wide(said["mask_token"])
    same(Tokenizer.load(folder), kind(vocab=vocabulary, **said))


MAP = {"…": "...", "™": "TM", "Ａ": "A", "ﬁ": "fi", "½": "1 2", "\u3000": " ", "\t": " "}
MAPPED = ["…", "a ﬁne™ book … ", "Ａ½ of it\t\u3000", "\u3000 the \t town", "Ａ\u3000<s>"]


def mapped(text):
    return "".join(MAP.get(character, character) for character in text)


@pytest.mark.parametrize("lower", [False, True])
def test_the_map_of_characters_of_a_sentence_piece_model_counts(tmp_path, lower):
    """Of DeBERTa too, for which transformers 5 has NFC: [UNK] for characters of its training."""
    known = [(*word, 2 if word[0] == "[UNK]" else 1) for word in words("deberta", 0)]
    unknown = [text for text, _, _ in known].index("[UNK]")
    content = model(known, unknown=unknown, table=charsmap(MAP))
    folder = write(tmp_path / "m", "deberta", "spm.model", content)
    cased = Tokenizer.load(folder)
    put_json(folder / "tokenizer_config.json", FAMILIES["deberta"][1] | {"do_lower_case": lower})
    ours = Tokenizer.load(folder)
    for text in MAPPED:
        found, plain = ours.tokenize(text), mapped(text.lower() if lower else text)
        assert found == cased.tokenize(" ".join(filter(None, plain.split(" "))))
        assert "[UNK]" not in found or "<" in text


@pytest.mark.parity
@pytest.mark.parametrize("before", [[], ["Lowercase"]])
def test_the_normalizer_of_a_converted_deberta_counts(tmp_path, before):
    """As transformers 4 converted spm.model: the file says more than the class knows."""
    from transformers import PreTrainedTokenizerFast

    table = {"type": "Precompiled", "precompiled_charsmap": b64encode(charsmap(MAP)).decode()}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    blanks = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    steps = [*({"type": name} for name in before), strip, table, blanks]
    core = json.loads(stored("deberta"))
    core["normalizer"] = {"type": "Sequence", "normalizers": steps}
    folder = write(tmp_path / "m", "deberta", "tokenizer.json", json.dumps(core).encode())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    settings = {key: v for key, v in FAMILIES["deberta"][1].items() if key != "do_lower_case"}
    put_json(folder / "tokenizer_config.json", settings)
    ours = Tokenizer.load(folder)
    texts = [*MAPPED, *TEXTS]
    assert ours(texts)["input_ids"] == theirs(texts)["input_ids"]
    for lower in (True, False):
        put_json(folder / "tokenizer_config.json", settings | {"do_lower_case": lower})
        said = Tokenizer.load(folder)
        assert (said.tokenize("ﬁne BOOK") == said.tokenize("ﬁne book")) is lower


@pytest.mark.parity
def test_token_types_of_albert_are_those_of_its_pretraining(tmp_path):
    """transformers 5.23 gives the model zeros for the second text of a pair, 4 did not."""
    import torch
    from model_reference import randomise
    from transformers import AlbertConfig, AlbertModel, AutoTokenizer

    folder = MADE["albert"](tmp_path / "m")
    theirs = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"num_hidden_layers": 2, "embedding_size": 16, "vocab_size": len(theirs)}
    config = AlbertConfig(**sizes)
    albert = randomise(AlbertModel(config).eval())
    albert.save_pretrained(folder)
    texts = "the capital of France", "a good book"
    given = theirs(*texts, return_token_type_ids=True, return_tensors="pt")
    assert given["token_type_ids"].sum() > 3
    with torch.no_grad():
        right = albert(**given).last_hidden_state[0].mean(0).tolist()
    (row,) = good("embed", "-q", "-m", folder, texts[0], "--pair", texts[1]).rows
    assert row["embedding"] == pytest.approx(right, abs=1e-5)
    (row,) = good("tokenize", "-q", "-m", folder, texts[0], "--pair", texts[1]).rows
    assert row["token_type_ids"] == given["token_type_ids"][0].tolist()


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
    folder = write(tmp_path / "m", "xlm_roberta", "sentencepiece.bpe.model", content)
    error = bad("tokenize", "-m", folder, "a").error
    assert error.startswith(f"{folder / 'sentencepiece.bpe.model'}: {says}")


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
