"""Vocabularies from before tokenizer.json: vocab.json with merges.txt, and SentencePiece models.

    core = byte_pairs(folder / "vocab.json")             # GPT-2's and RoBERTa's
    core = pieces(folder / "spiece.model", kind, roles)  # XLM-R's, CamemBERT's, ALBERT's, DeBERTa's

They hold the words alone; what a text goes through before is made by the class of the tokenizer
(`tokenizer_classes`). A SentencePiece model is a protocol buffer (sentencepiece_model.proto): its
pieces and their scores, and the table of its normalizer. Ids are those of transformers 5.23, which
puts tokens of fairseq before the pieces of some classes (convert_slow_tokenizer.py).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.checkpoints.scan import MERGES
from bertcli.errors import ModelError
from bertcli.files.protobuf import fields, messages, number
from bertcli.files.typed_json import AGAIN, is_regular, read_bytes
from bertcli.tokenizing.tokenizer_classes import TokenizerClass

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNIGRAM, CONTROL, NAMED = 1, 3, 4  # kind of a model, and kinds of pieces
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # of a model
TEXT, SCORE, KIND = 1, 2, 3  # of a piece
MODEL_TYPE, UNKNOWN_ID = 3, 40  # of how it was trained
TABLE = 2  # of its normalizer


def byte_pairs(path: Path) -> Tokenizer:
    """Return the BPE of vocab.json and of the merges.txt beside it. ModelError when broken."""
    from tokenizers import Tokenizer, models

    merges = path.with_name(MERGES)
    if not is_regular(merges):
        raise ModelError(f"{path.parent}: {path.name} without {MERGES}", "copy that file as well")
    is_regular(path)  # which the library does not ask
    return Tokenizer(models.BPE.from_file(str(path), str(merges)))


def pieces(path: Path, kind: TokenizerClass, roles: Mapping[str, str]) -> Tokenizer:
    """Return the Unigram model of a SentencePiece file. ModelError when it is broken or another."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers

    listed, unknown, table = _read(path)
    first = [(roles[role], 0.0) for role in ("cls_token", "pad_token", "sep_token", "unk_token")]
    last = [(roles["mask_token"], 0.0)]
    words = [(text, score) for text, score, _ in listed]
    unused: list[str] = []  # special tokens that no role names
    match kind.name:
        case "XLMRobertaTokenizer":
            words, unknown = [*first, *words[3:], *last], 3
        case "CamembertTokenizer":
            first[0], first[2] = ("<s>NOTUSED", 0.0), ("</s>NOTUSED", 0.0)
            words, unknown = [*first, ("<unk>NOTUSED", -100.0), *words[1:], *last], 3
            unused = [first[0][0], first[2][0], words[4][0]]
        case "DebertaV2Tokenizer":
            names = [text for text, _ in words]
            unknown = names.index(roles["unk_token"]) if roles["unk_token"] in names else unknown
    core = Tokenizer(models.Unigram(words, unknown, False))
    steps: list[Any] = [normalizers.Precompiled(table)] if table else []
    if kind.name == "AlbertTokenizer":  # what it does unless it is told not to
        steps = [normalizers.StripAccents(), normalizers.Lowercase(), *steps]
    core.normalizer = normalizers.Sequence(steps)
    core.add_special_tokens(unused)
    for text, _, sort in listed:
        if sort in (CONTROL, NAMED) and core.token_to_id(text) is not None:
            token = AddedToken(text, normalized=False, special=sort == CONTROL)
            (core.add_special_tokens if token.special else core.add_tokens)([token])
    return core


def _read(path: Path) -> tuple[list[tuple[str, float, int]], int, bytes]:
    """Return pieces with their scores and kinds, the id of the unknown one, and the table."""
    try:
        model = fields(read_bytes(path) or b"")
        pieces = [_piece(message) for message in messages(model, PIECES)]
        trainer = fields(b"".join(messages(model, TRAINER)))
        table = b"".join(messages(fields(b"".join(messages(model, NORMALIZER))), TABLE))
        sort, unknown = number(trainer, MODEL_TYPE) or UNIGRAM, number(trainer, UNKNOWN_ID)
    except (ValueError, LookupError, struct.error) as broken:
        raise ModelError(f"{path}: not a SentencePiece model", AGAIN) from broken
    if not pieces or unknown >= len(pieces):
        raise ModelError(f"{path}: not a SentencePiece model", AGAIN)
    if sort != UNIGRAM:
        raise ModelError(
            f"{path}: only SentencePiece models of the kind unigram can be read",
            "save the tokenizer with transformers, which writes tokenizer.json",
        )
    return pieces, unknown, table


def _piece(message: bytes) -> tuple[str, float, int]:
    piece = fields(message)
    (score,) = struct.unpack("<f", b"".join(messages(piece, SCORE)[-1:]) or bytes(4))
    return b"".join(messages(piece, TEXT)).decode(), score, number(piece, KIND) or 1
