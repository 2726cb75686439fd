"""Read the tokenizer files of a model folder, in any format, into the tokenizers library.

tokenizer.json contains everything; older folders have vocab.txt, vocab.json with merges.txt, or a
SentencePiece model, and optionally tokenizer_config.json, special_tokens_map.json and
added_tokens.json. A vocabulary alone does not define the normalization of a text: the class of the
tokenizer does (`tokenizer_classes`). A SentencePiece model is a protocol buffer
(sentencepiece_model.proto) with the pieces, their scores, and the table of its normalizer. Ids are
those of transformers 5.23, which inserts tokens of fairseq before the pieces of some classes
(convert_slow_tokenizer.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertcli.errors import BertcliError, ModelError
from bertcli.families.registry import FAMILIES
from bertcli.io.protobuf import fields, messages, number
from bertcli.io.typed_json import (
    DOWNLOAD_AGAIN,
    LARGEST_NUMBER,
    NOTHING,
    TEXT,
    Check,
    JsonObject,
    is_regular,
    is_text,
    parse_object,
    read_bytes,
    whole_number,
)
from bertcli.model_folder.files import CONFIGS, MERGES, VOCABULARIES
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.tokenizer_classes import (
    AS_IT_IS,
    CLASSES,
    END_ROLES,
    ROLES,
    TokenizerClass,
    class_of,
    roles_of,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNLIMITED = LARGEST_NUMBER  # transformers writes 1e30 for tokenizers without a limit
SIDES = ("left", "right")
FLAGS = ("single_word", "lstrip", "rstrip")  # of an added token
MAX_GROWTH = 100  # of a text by replacements; out of memory, the library aborts the process
DEFAULT_CLASSES = {  # file -> its most common tokenizer class
    "vocab.txt": "BertTokenizer",
    "vocab.json": "RobertaTokenizer",
    "sentencepiece.bpe.model": "XLMRobertaTokenizer",
    "spiece.model": "AlbertTokenizer",
    "spm.model": "DebertaV2Tokenizer",
}
TOKEN = Check(is_text, "a token: a string or an object")
LENGTH = Check(lambda value: type(value) in (int, float) and value >= 1, "a length")
UNKNOWN = "\U0010ffff"  # a character that is in no vocabulary
# Numbers in sentencepiece_model.proto.
UNIGRAM = 1  # type of a model
CONTROL, USER_DEFINED = 3, 4  # types of pieces
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of a model
PIECE_TEXT, PIECE_SCORE, PIECE_TYPE = 1, 2, 3  # fields of a piece
MODEL_TYPE, UNKNOWN_ID = 3, 40  # fields of the trainer settings
CHARACTER_MAP = 2  # field of the normalizer


def token_text(settings: JsonObject, role: str) -> str | None:
    """Return the text of a special token, which files write as a string or as an object."""
    if isinstance(settings.get(role), dict):
        return settings.object(role).text("content")
    return settings.checked(role, TOKEN)


def _folder_roles(settings: JsonObject) -> dict[str, str]:
    """Return the special tokens that a folder defines, by role."""
    tokens = {role: token_text(settings, role) for role in ROLES}
    return {role: token for role, token in tokens.items() if token}


def is_cased(tokenizer: Tokenizer) -> bool:
    """Return True if the vocabulary has capital letters, which lower-cased text never uses."""
    return all(tokenizer.token_to_id(letter) is not None for letter in "ABCDE")


class LoadedTokenizer(NamedTuple):
    """A tokenizer as read from its files, its class, its special tokens by role, and warnings."""

    core: Tokenizer
    tokenizer_class: TokenizerClass
    roles: dict[str, str]
    warnings: list[str]


def load_tokenizer(folder: ModelFolder) -> LoadedTokenizer:
    """Return the tokenizer of tokenizer.json, or else of vocab.txt or of an older format.

    Raises ModelError if a file is missing or broken, or a special token is missing.
    """
    settings = folder.tokenizer_settings
    config = folder.raw_config
    path = next(filter(os.path.lexists, map(folder.path.joinpath, VOCABULARIES)), None)
    if path is None:
        raise ModelError(
            f"{folder}: no tokenizer found in this folder",
            "a model folder has tokenizer.json or vocab.txt",
        )
    if path.name == "tokenizer.json":
        loaded = _from_json(path, settings, config)
    else:
        loaded = _from_vocabulary(folder, path, settings, config)
    tokenizer_class = loaded.tokenizer_class
    if tokenizer_class.set_up:
        missing = _missing_special_tokens(loaded, is_json=path.name == "tokenizer.json")
        if missing:
            raise ModelError(
                f"{folder}: the vocabulary has no {', '.join(missing)}",
                "name them in special_tokens_map.json or tokenizer_config.json",
            )
        tokenizer_class.set_up(loaded.core, settings, loaded.roles)
    loaded.warnings.extend(_check_tokenizer(loaded.core, folder))
    return loaded


def _missing_special_tokens(loaded: LoadedTokenizer, *, is_json: bool) -> list[str]:
    """Return the special tokens that the class needs and that the vocabulary lacks."""
    core = loaded.core
    roles = loaded.roles
    model = loaded.tokenizer_class.model
    needed = []
    if model != "BPE":
        needed.append("unk_token")
    needs_end_tokens = True
    if is_json and model == "WordPiece":  # its post-processor may add none, or others
        has_cls_token = core.token_to_id(roles["cls_token"]) is not None
        needs_end_tokens = core.post_processor is None and has_cls_token
    if needs_end_tokens:
        needed += END_ROLES
    needed.append("pad_token")
    return [roles[role] for role in needed if core.token_to_id(roles[role]) is None]


def load_tokenizer_json(folder: ModelFolder) -> LoadedTokenizer:
    """Return the tokenizer of tokenizer.json, without the settings in other files."""
    core = _read_json(folder / "tokenizer.json")
    return LoadedTokenizer(
        core, AS_IT_IS, roles_of(AS_IT_IS, core, {}), _check_tokenizer(core, folder)
    )


def _from_json(path: Path, settings: JsonObject, config: JsonObject) -> LoadedTokenizer:
    """Return the tokenizer of tokenizer.json."""
    core = _read_json(path)
    tokenizer_class = class_of(settings, config, type(core.model).__name__)
    roles = roles_of(tokenizer_class, core, _folder_roles(settings))
    added = {token.content for token in core.get_added_tokens_decoder().values()}
    present = [token for token in roles.values() if core.token_to_id(token) is not None]
    core.add_special_tokens([token for token in present if token not in added])
    lower = settings.switch("do_lower_case")
    has_bert_normalizer = type(core.normalizer).__name__ == "BertNormalizer"
    if tokenizer_class.model == "WordPiece" and has_bert_normalizer and lower is not None:
        core.normalizer = bert_normalizer(settings, lower=lower)  # as in transformers
    return LoadedTokenizer(core, tokenizer_class, roles, [])


def _read_json(path: Path) -> Tokenizer:
    """Return the tokenizer of tokenizer.json, without the settings in other files."""
    from tokenizers import Tokenizer

    content = read_bytes(path) or b""
    if b'"Replace"' in content:
        raw = parse_object(content, path)
        for name in ("normalizer", "decoder"):  # before the library normalizes the added tokens
            growth_factor(raw.object(name))
    try:
        core = Tokenizer.from_buffer(content)
    except Exception as broken:  # tokenizers raises no narrower class
        raise ModelError(
            f"{path}: not a tokenizer: {broken}", "download it again, or remove it to use vocab.txt"
        ) from None
    if getattr(core.model, "dropout", None) is not None:  # of BPE: for training, and random
        core.model.dropout = None
    return core


def growth_factor(component: JsonObject) -> float:
    """Return the maximum factor by which a normalizer or decoder lengthens a text.

    Raises ModelError if it exceeds `MAX_GROWTH`.
    """
    factor = 1.0
    for name in ("normalizers", "decoders"):
        for step in component.entries(name).objects().values():
            factor *= growth_factor(step)
    if component.get("type") == "Replace":
        # A regex may match the empty string, everywhere.
        pattern = component.object("pattern").text("String")
        length = len(component.text("content") or "")
        factor = max(1.0, length / len(pattern) if pattern else 1 + length)
    if factor > MAX_GROWTH:
        raise component.bad(
            "type", f"replacements that make a text {MAX_GROWTH} times longer, at most"
        )
    return factor


def sentence_limit(settings: JsonObject) -> int | None:
    """Return the limit in a sentence config; tokenizer arguments override ``max_seq_length``."""
    for name in ("processor_kwargs", "tokenizer_args"):
        if limit := settings.object(name).integer("model_max_length", 1):
            return limit
    return settings.integer("max_seq_length", 1)


def sequence_limit(folder: ModelFolder) -> int | None:
    """Return the maximum sequence length that all files of the folder allow; None without a limit.

    As in sentence-transformers, its own limit replaces that of the tokenizer.
    """
    tokenizer_limit = _tokenizer_limit(folder.tokenizer_settings)
    limits = [sentence_limit(folder.sentence_settings) or tokenizer_limit]
    for name in CONFIGS:
        config = folder.json_object(name)
        position_count = config.integer("max_position_embeddings", 1)
        family = FAMILIES.get(config.text("model_type") or "")
        if position_count is not None and family is not None:
            first_position = family.structure(family.with_defaults(config)).first_position
            config.integer("max_position_embeddings", first_position + 1)
            position_count -= first_position
        limits.append(position_count)
    return min((limit for limit in limits if limit is not None), default=None)


def _tokenizer_limit(settings: JsonObject) -> int | None:
    """Return the limit in tokenizer_config.json, which transformers may write as 1e30."""
    limit: float | None = settings.checked("model_max_length", LENGTH)
    return None if limit is None or limit >= UNLIMITED else int(limit)


def _from_vocabulary(
    folder: ModelFolder, path: Path, settings: JsonObject, config: JsonObject
) -> LoadedTokenizer:
    """Return the tokenizer of a vocabulary: vocab.txt, vocab.json, or a SentencePiece model."""
    from tokenizers import Tokenizer, models

    warnings: list[str] = []
    model = {".txt": "WordPiece", ".json": "BPE"}.get(path.suffix, "Unigram")
    tokenizer_class = class_of(settings, config, model)
    if tokenizer_class.set_up is None:
        tokenizer_class = CLASSES[DEFAULT_CLASSES[path.name]]
    roles = {**(tokenizer_class.roles or ROLES), **_folder_roles(settings)}
    try:
        if model == "WordPiece":
            core, warnings = _wordpiece_tokenizer(path, settings, roles)
        elif model == "Unigram":
            core = _sentencepiece_tokenizer(path, tokenizer_class, roles)
        else:
            merges = path.with_name(MERGES)
            if not is_regular(merges):
                raise ModelError(
                    f"{path.parent}: {path.name} without {MERGES}", "copy that file as well"
                )
            is_regular(path)  # the library does not check that
            core = Tokenizer(models.BPE.from_file(str(path), str(merges)))
    except BertcliError:
        raise
    except Exception as broken:  # tokenizers raises no narrower class
        raise ModelError(f"{path}: not a tokenizer: {broken}") from None
    _add_tokens(core, folder, settings, roles, tokenizer_class)
    return LoadedTokenizer(core, tokenizer_class, roles, warnings)


def _wordpiece_tokenizer(
    path: Path, settings: JsonObject, roles: Mapping[str, str]
) -> tuple[Tokenizer, list[str]]:
    """Return the WordPiece tokenizer of a vocab.txt, one token per line, and warnings.

    A repeated token keeps its last id, as in transformers. Without a ``do_lower_case`` setting the
    vocabulary decides: if it has capital letters, text is not lower-cased.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    try:
        text = (read_bytes(path) or b"").decode("utf-8")
    except UnicodeDecodeError as bad:
        raise ModelError(f"{path}: byte {bad.start} is not valid UTF-8") from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ModelError(f"{path}: the vocabulary is empty")
    ids = {token: index for index, token in enumerate(lines)}
    unk_token = roles["unk_token"]
    core = Tokenizer(models.WordPiece(ids, unk_token=unk_token, max_input_chars_per_word=100))
    warnings = []
    lower = settings.switch("do_lower_case")
    if lower is None:
        lower = not is_cased(core)
        if not lower:
            warnings.append(
                f"{path.parent}: the vocabulary has capital letters and nothing says "
                "do_lower_case, so text keeps its case"
            )
    core.normalizer = bert_normalizer(settings, lower=lower)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return core, warnings


def _sentencepiece_tokenizer(
    path: Path, tokenizer_class: TokenizerClass, roles: Mapping[str, str]
) -> Tokenizer:
    """Return the tokenizer of a SentencePiece file.

    Raises ModelError unless it is a valid Unigram model.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

    model = _read_sentencepiece(path)
    unknown_id = model.unknown_id
    vocabulary = [(piece.text, piece.score) for piece in model.pieces]
    cls, pad, sep, unk = (
        (roles[role], 0.0) for role in ("cls_token", "pad_token", "sep_token", "unk_token")
    )
    mask = (roles["mask_token"], 0.0)
    unused: list[str] = []  # special tokens without a role
    match tokenizer_class.name:
        case "XLMRobertaTokenizer":
            vocabulary = [cls, pad, sep, unk, *vocabulary[3:], mask]
            unknown_id = 3
        case "CamembertTokenizer":
            unused = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
            first = [(unused[0], 0.0), pad, (unused[1], 0.0), unk, (unused[2], -100.0)]
            vocabulary = [*first, *vocabulary[1:], mask]
            unknown_id = 3
        case "DebertaV2Tokenizer":
            texts = [piece.text for piece in model.pieces]
            if roles["unk_token"] in texts:
                unknown_id = texts.index(roles["unk_token"])
    core = Tokenizer(models.Unigram(vocabulary, unknown_id, False))
    steps: list[Any] = []
    if tokenizer_class.name == "AlbertTokenizer":  # its default
        steps += [normalizers.StripAccents(), normalizers.Lowercase()]
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
        if tokenizer_class.name == "DebertaV2Tokenizer":  # blanks as in SentencePiece
            steps.append(normalizers.Replace(Regex(" {2,}"), " "))
            steps.append(normalizers.Replace(Regex(r" \z"), ""))
    core.normalizer = normalizers.Sequence(steps)
    core.add_special_tokens(unused)
    for piece in model.pieces:
        if piece.type not in (CONTROL, USER_DEFINED) or core.token_to_id(piece.text) is None:
            continue
        if piece.type == CONTROL:
            core.add_special_tokens([AddedToken(piece.text, normalized=False, special=True)])
        else:
            core.add_tokens([AddedToken(piece.text, normalized=False, special=False)])
    return core


class SentencePiece(NamedTuple):
    """An entry of the vocabulary of a SentencePiece model."""

    text: str
    score: float
    type: int  # 1 for a normal one, CONTROL, USER_DEFINED, ...


class SentencePieceModel(NamedTuple):
    """The content of a SentencePiece file."""

    pieces: list[SentencePiece]
    unknown_id: int  # index of the piece for unknown characters
    character_map: bytes  # of the normalizer; empty if it has none


def _read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a SentencePiece file. Raises ModelError if it is broken, or not a Unigram model."""
    try:
        model = fields(read_bytes(path) or b"")
        pieces = []
        for piece in map(fields, messages(model, PIECES)):
            (score,) = struct.unpack("<f", b"".join(messages(piece, PIECE_SCORE)[-1:]) or bytes(4))
            text = b"".join(messages(piece, PIECE_TEXT)).decode()
            pieces.append(SentencePiece(text, score, number(piece, PIECE_TYPE) or 1))
        trainer = fields(b"".join(messages(model, TRAINER)))
        normalizer = fields(b"".join(messages(model, NORMALIZER)))
        character_map = b"".join(messages(normalizer, CHARACTER_MAP))
        model_type = number(trainer, MODEL_TYPE) or UNIGRAM
        unknown_id = number(trainer, UNKNOWN_ID)
        if not pieces[unknown_id:]:
            raise LookupError
    except (ValueError, LookupError, struct.error) as broken:
        raise ModelError(f"{path}: not a SentencePiece model", DOWNLOAD_AGAIN) from broken
    if model_type != UNIGRAM:
        raise ModelError(
            f"{path}: only SentencePiece models of the kind unigram can be read",
            "save the tokenizer with transformers, which writes tokenizer.json",
        )
    return SentencePieceModel(pieces, unknown_id, character_map)


def _check_tokenizer(core: Tokenizer, folder: ModelFolder) -> list[str]:
    """Return warnings about a tokenizer. Raises ModelError if it cannot tokenize any text."""
    try:
        core.model.tokenize(UNKNOWN)
    except Exception as failed:  # tokenizers raises no narrower class
        raise ModelError(f"{folder}: unknown words have no token: {failed}") from None
    ids = (*core.encode("a").ids, *core.encode("a", "a").ids)
    if None in map(core.id_to_token, ids):
        raise ModelError(f"{folder}: a special token around texts is not in the vocabulary")
    if getattr(core.normalizer, "lowercase", False) and is_cased(core):
        return [
            f"{folder}: text is lower-cased, but the vocabulary has capital letters; "
            "check do_lower_case in tokenizer_config.json"
        ]
    return []


def bert_normalizer(settings: JsonObject, *, lower: bool) -> Any:
    """Return BERT's normalizer with the settings of tokenizer_config.json."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(
        clean_text=settings.switch("clean_text") is not False,
        handle_chinese_chars=settings.switch("tokenize_chinese_chars") is not False,
        strip_accents=settings.switch("strip_accents"),
        lowercase=lower,
    )


def _add_tokens(
    tokenizer: Tokenizer,
    folder: ModelFolder,
    settings: JsonObject,
    roles: Mapping[str, str],
    tokenizer_class: TokenizerClass,
) -> None:
    """Add the special tokens, and the tokens added to the vocabulary later, by id."""
    from tokenizers import AddedToken

    without_role: list[str] = []  # special tokens without a role in BERT
    for key in ("additional_special_tokens", "extra_special_tokens"):  # the second since 5.0
        entries = settings.entries(key)
        without_role += filter(None, (token_text(entries, name) for name in entries))
    special = {*roles.values(), *without_role}
    mask_token = roles["mask_token"]
    settings_of = {mask_token: JsonObject({"lstrip": tokenizer_class.mask_lstrip}, "")}
    for role, token in roles.items():
        if isinstance(settings.get(role), dict):
            settings_of[token] = settings.object(role)
    later_tokens, later_settings = _later_tokens(folder, settings)
    settings_of |= later_settings
    if tokenizer_class.model != "WordPiece" and tokenizer.token_to_id(mask_token) is None:
        without_role.append(mask_token)  # DeBERTa's comes after the pieces
    present = [
        token
        for token in (*roles.values(), *without_role)
        if tokenizer.token_to_id(token) is not None
    ]
    all_tokens = filter(None, (*present, *later_tokens, *without_role))

    def is_special(token: str) -> bool:
        return token in special or bool(settings_of.get(token, NOTHING).switch("special"))

    for are_special, tokens in groupby(all_tokens, is_special):
        added = []
        for token in tokens:
            token_settings = settings_of.get(token, NOTHING)
            flags = {flag: token_settings.switch(flag) or False for flag in FLAGS}
            normalized = token_settings.switch("normalized")
            if normalized is None:
                normalized = not are_special
            added.append(AddedToken(token, **flags, normalized=normalized, special=are_special))
        if are_special:
            tokenizer.add_special_tokens(added)  # at once: thousands singly take minutes
        else:
            tokenizer.add_tokens(added)


def _later_tokens(
    folder: ModelFolder, settings: JsonObject
) -> tuple[list[str], dict[str, JsonObject]]:
    """Return the tokens added to the vocabulary later, by id, and the settings of some of them.

    They are in added_tokens.json, and with settings in added_tokens_decoder, which takes
    precedence.
    """
    entries = settings.object("added_tokens_decoder")
    entries.check_keys(
        lambda key: key.isascii() and key.isdecimal() and len(key) < 10, "the ids of tokens as keys"
    )
    decoder = {int(key): entry for key, entry in entries.objects().items()}
    settings_of = {entry.needed("content", TEXT): entry for entry in decoder.values()}
    ids = folder.json_object("added_tokens.json")
    ids.check_keys(is_text, "tokens as keys")
    tokens = {ids.needed(token, whole_number()): token for token in ids}
    tokens |= {id_: entry["content"] for id_, entry in decoder.items()}
    return [tokens[id_] for id_ in sorted(tokens)], settings_of
