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
    AGAIN,
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
    ENDS,
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
LONGEST_GROWTH = 100  # times; out of memory, the library aborts the process
USUAL = {  # file -> its most common tokenizer class
    "vocab.txt": "BertTokenizer",
    "vocab.json": "RobertaTokenizer",
    "sentencepiece.bpe.model": "XLMRobertaTokenizer",
    "spiece.model": "AlbertTokenizer",
    "spm.model": "DebertaV2Tokenizer",
}
TOKEN = Check(is_text, "a token: a string or an object")
LENGTH = Check(lambda value: type(value) in (int, float) and value >= 1, "a length")
UNKNOWN = "\U0010ffff"  # a character that is in no vocabulary
UNIGRAM, CONTROL, NAMED = 1, 3, 4  # type of a model, and types of pieces
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of a model
TEXT_OF_PIECE, SCORE, KIND = 1, 2, 3  # fields of a piece
MODEL_TYPE, UNKNOWN_ID = 3, 40  # fields of the trainer settings
TABLE = 2  # field of the normalizer


def content(settings: JsonObject, role: str) -> str | None:
    """Return the text of a special token, which files write as a string or as an object."""
    if isinstance(settings.get(role), dict):
        return settings.object(role).text("content")
    return settings.checked(role, TOKEN)


def _named(settings: JsonObject) -> dict[str, str]:
    """Return the special tokens that a folder defines, by role."""
    names = {role: content(settings, role) for role in ROLES}
    return {role: name for role, name in names.items() if name}


def is_cased(tokenizer: Tokenizer) -> bool:
    """Return True if the vocabulary has capital letters, which lower-cased text never uses."""
    return all(tokenizer.token_to_id(letter) is not None for letter in "ABCDE")


class Loaded(NamedTuple):
    """A tokenizer as read from its files, its class, its special tokens by role, and warnings."""

    core: Tokenizer
    kind: TokenizerClass
    roles: dict[str, str]
    warnings: list[str]


def load_tokenizer(folder: ModelFolder) -> Loaded:
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
    whole = path.name == "tokenizer.json"
    if whole:
        loaded = _from_json(path, settings, config)
    else:
        loaded = _from_words(folder, path, settings, config)
    core, kind, roles, warnings = loaded
    has_ends = not (whole and kind.model == "WordPiece") or (  # it may have none, or others
        core.post_processor is None and core.token_to_id(roles["cls_token"]) is not None
    )
    needed = ["unk_token"] * (kind.model != "BPE") + [*ENDS] * has_ends + ["pad_token"]
    needed = [roles[role] for role in needed] if kind.make else []
    missing = [token for token in needed if core.token_to_id(token) is None]
    if missing:
        raise ModelError(
            f"{folder}: the vocabulary has no {', '.join(missing)}",
            "name them in special_tokens_map.json or tokenizer_config.json",
        )
    if kind.make:
        kind.make(core, settings, roles)
    warnings += _check(core, folder)
    return loaded


def load_as_it_is(folder: ModelFolder) -> Loaded:
    """Return the tokenizer of tokenizer.json, without the settings in other files."""
    core = _read_json(folder / "tokenizer.json")
    return Loaded(core, AS_IT_IS, roles_of(AS_IT_IS, core, {}), _check(core, folder))


def _from_json(path: Path, settings: JsonObject, config: JsonObject) -> Loaded:
    """Return the tokenizer of tokenizer.json."""
    core = _read_json(path)
    kind = class_of(settings, config, type(core.model).__name__)
    roles = roles_of(kind, core, _named(settings))
    added = {token.content for token in core.get_added_tokens_decoder().values()}
    names = [name for name in roles.values() if core.token_to_id(name) is not None]
    core.add_special_tokens([name for name in names if name not in added])
    lower = settings.switch("do_lower_case")
    is_bert = kind.model == "WordPiece" and type(core.normalizer).__name__ == "BertNormalizer"
    if is_bert and lower is not None:
        core.normalizer = normalizer(settings, lower=lower)  # as in transformers
    return Loaded(core, kind, roles, [])


def _read_json(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    content = read_bytes(path) or b""
    if b'"Replace"' in content:
        described = parse_object(content, path)
        for name in ("normalizer", "decoder"):  # before the library normalizes the added tokens
            growth(described.object(name))
    try:
        core = Tokenizer.from_buffer(content)
    except Exception as broken:  # tokenizers raises no narrower class
        raise ModelError(
            f"{path}: not a tokenizer: {broken}", "download it again, or remove it to use vocab.txt"
        ) from None
    if getattr(core.model, "dropout", None) is not None:  # of BPE: for training, and random
        core.model.dropout = None
    return core


def growth(part: JsonObject) -> float:
    """Return the maximum factor by which replacements lengthen a text.

    Raises ModelError if it exceeds `LONGEST_GROWTH`.
    """
    times = 1.0
    for name in ("normalizers", "decoders"):
        for inner in part.entries(name).objects().values():
            times *= growth(inner)
    if part.get("type") == "Replace":
        # A regex may match the empty string, everywhere.
        pattern = part.object("pattern").text("String")
        content = len(part.text("content") or "")
        times = max(1.0, content / len(pattern) if pattern else 1 + content)
    if times > LONGEST_GROWTH:
        raise part.bad(
            "type", f"replacements that make a text {LONGEST_GROWTH} times longer, at most"
        )
    return times


def sentence_limit(raw: JsonObject) -> int | None:
    """Return the limit in a sentence config; tokenizer arguments precede ``max_seq_length``."""
    for name in ("processor_kwargs", "tokenizer_args"):
        if limit := raw.object(name).whole("model_max_length", 1):
            return limit
    return raw.whole("max_seq_length", 1)


def sequence_limit(folder: ModelFolder) -> int | None:
    """Return the maximum sequence length that all files of the folder allow; None without a limit.

    As in sentence-transformers, its own limit replaces that of the tokenizer.
    """
    limits = [sentence_limit(folder.sentence_settings) or _length(folder.tokenizer_settings)]
    for name in CONFIGS:
        config = folder.json_object(name)
        rows = config.whole("max_position_embeddings", 1)  # of the model
        family = FAMILIES.get(config.text("model_type") or "")
        if rows is not None and family is not None:
            first = family.structure(family.with_defaults(config)).first_position
            config.whole("max_position_embeddings", first + 1)
            rows -= first
        limits.append(rows)
    return min((limit for limit in limits if limit is not None), default=None)


def _length(settings: JsonObject) -> int | None:
    """Return the limit in tokenizer_config.json, which transformers may write as 1e30."""
    length: float | None = settings.checked("model_max_length", LENGTH)
    return None if length is None or length >= UNLIMITED else int(length)


def _from_words(
    folder: ModelFolder, path: Path, settings: JsonObject, config: JsonObject
) -> Loaded:
    """Return the tokenizer of a vocabulary: vocab.txt, vocab.json, or a SentencePiece model."""
    from tokenizers import Tokenizer, models

    warnings: list[str] = []
    model = {".txt": "WordPiece", ".json": "BPE"}.get(path.suffix, "Unigram")
    kind = class_of(settings, config, model)
    if kind.make is None:
        kind = CLASSES[USUAL[path.name]]
    roles = {**(kind.roles or ROLES), **_named(settings)}
    try:
        if model == "WordPiece":
            core, warnings = _word_pieces(path, settings, roles)
        elif model == "Unigram":
            core = pieces(path, kind, roles)
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
    _add_tokens(core, folder, settings, roles, kind)
    return Loaded(core, kind, roles, warnings)


def _word_pieces(
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
    words = {token: index for index, token in enumerate(lines)}
    unk = roles["unk_token"]
    core = Tokenizer(models.WordPiece(words, unk_token=unk, max_input_chars_per_word=100))
    warnings = []
    lower = settings.switch("do_lower_case")
    if lower is None:
        lower = not is_cased(core)
        if not lower:
            warnings.append(
                f"{path.parent}: the vocabulary has capital letters and nothing says "
                "do_lower_case, so text keeps its case"
            )
    core.normalizer = normalizer(settings, lower=lower)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return core, warnings


def pieces(path: Path, kind: TokenizerClass, roles: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer of a SentencePiece file.

    Raises ModelError unless it is a valid Unigram model.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers

    listed, unknown, table = _read_pieces(path)
    first = [(roles[role], 0.0) for role in ("cls_token", "pad_token", "sep_token", "unk_token")]
    last = [(roles["mask_token"], 0.0)]
    words = [(text, score) for text, score, _ in listed]
    unused: list[str] = []  # special tokens without a role
    match kind.name:
        case "XLMRobertaTokenizer":
            words = [*first, *words[3:], *last]
            unknown = 3
        case "CamembertTokenizer":
            first[0], first[2] = ("<s>NOTUSED", 0.0), ("</s>NOTUSED", 0.0)
            words = [*first, ("<unk>NOTUSED", -100.0), *words[1:], *last]
            unknown = 3
            unused = [first[0][0], first[2][0], words[4][0]]
        case "DebertaV2Tokenizer":
            names = [text for text, _ in words]
            unknown = names.index(roles["unk_token"]) if roles["unk_token"] in names else unknown
    core = Tokenizer(models.Unigram(words, unknown, False))
    steps: list[Any] = [normalizers.Precompiled(table)] if table else []
    if kind.name == "AlbertTokenizer":  # its default
        steps = [normalizers.StripAccents(), normalizers.Lowercase(), *steps]
    if kind.name == "DebertaV2Tokenizer" and steps:  # blanks as in SentencePiece, after its map
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r" \z"), "")]
    core.normalizer = normalizers.Sequence(steps)
    core.add_special_tokens(unused)
    for text, _, sort in listed:
        if sort in (CONTROL, NAMED) and core.token_to_id(text) is not None:
            token = AddedToken(text, normalized=False, special=sort == CONTROL)
            (core.add_special_tokens if token.special else core.add_tokens)([token])
    return core


def _read_pieces(path: Path) -> tuple[list[tuple[str, float, int]], int, bytes]:
    """Return the pieces with their scores and types, the id of the unknown piece, and the table."""
    try:
        model = fields(read_bytes(path) or b"")
        pieces = []
        for piece in map(fields, messages(model, PIECES)):
            (score,) = struct.unpack("<f", b"".join(messages(piece, SCORE)[-1:]) or bytes(4))
            text = b"".join(messages(piece, TEXT_OF_PIECE)).decode()
            pieces.append((text, score, number(piece, KIND) or 1))
        trainer = fields(b"".join(messages(model, TRAINER)))
        table = b"".join(messages(fields(b"".join(messages(model, NORMALIZER))), TABLE))
        sort = number(trainer, MODEL_TYPE) or UNIGRAM
        unknown = number(trainer, UNKNOWN_ID)
        if not pieces[unknown:]:
            raise LookupError
    except (ValueError, LookupError, struct.error) as broken:
        raise ModelError(f"{path}: not a SentencePiece model", AGAIN) from broken
    if sort != UNIGRAM:
        raise ModelError(
            f"{path}: only SentencePiece models of the kind unigram can be read",
            "save the tokenizer with transformers, which writes tokenizer.json",
        )
    return pieces, unknown, table


def _check(core: Tokenizer, folder: ModelFolder) -> list[str]:
    """Return warnings about a tokenizer. Raises ModelError if it cannot tokenize any text."""
    try:
        core.model.tokenize(UNKNOWN)
    except Exception as failed:  # tokenizers raises no narrower class
        raise ModelError(f"{folder}: unknown words have no token: {failed}") from None
    around = (*core.encode("a").ids, *core.encode("a", "a").ids)
    if None in map(core.id_to_token, around):
        raise ModelError(f"{folder}: a special token around texts is not in the vocabulary")
    if getattr(core.normalizer, "lowercase", False) and is_cased(core):
        return [
            f"{folder}: text is lower-cased, but the vocabulary has capital letters; "
            "check do_lower_case in tokenizer_config.json"
        ]
    return []


def normalizer(settings: JsonObject, *, lower: bool) -> Any:
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
    kind: TokenizerClass,
) -> None:
    """Add the special tokens, and the tokens added to the vocabulary later, by id."""
    from tokenizers import AddedToken

    more: list[str] = []  # special tokens without a role in BERT: listed or, since 5.0, by name
    for key in ("additional_special_tokens", "extra_special_tokens"):  # the second since 5.0
        tokens = settings.entries(key)
        more += filter(None, (content(tokens, name) for name in tokens))
    special = {*roles.values(), *more}
    entries = settings.object("added_tokens_decoder")
    entries.check_keys(
        lambda key: key.isascii() and key.isdecimal() and len(key) < 10, "the ids of tokens as keys"
    )
    described = {int(key): entry for key, entry in entries.objects().items()}
    for entry in described.values():
        entry.needed("content", TEXT)
    listed = folder.json_object("added_tokens.json")
    listed.check_keys(is_text, "tokens as keys")
    options = (
        {roles["mask_token"]: JsonObject({"lstrip": kind.wide_mask}, "")}
        | {
            name: settings.object(role)
            for role, name in roles.items()
            if isinstance(settings.get(role), dict)
        }
        | {entry["content"]: entry for entry in described.values()}
    )
    later = {listed.needed(token, whole_number()): token for token in listed}
    later |= {index: entry["content"] for index, entry in described.items()}
    if kind.model != "WordPiece" and tokenizer.token_to_id(roles["mask_token"]) is None:
        more.append(roles["mask_token"])  # DeBERTa's comes after the pieces
    present = [name for name in (*roles.values(), *more) if tokenizer.token_to_id(name) is not None]
    whole = filter(None, (*present, *(later[index] for index in sorted(later)), *more))

    def is_special(token: str) -> bool:
        return token in special or bool(options.get(token, NOTHING).switch("special"))

    for together, names in groupby(whole, is_special):  # adding thousands singly takes minutes
        added = []
        for name in names:
            traits = options.get(name, NOTHING)
            flags = {flag: traits.switch(flag) or False for flag in FLAGS}
            normalized = traits.switch("normalized")
            normalized = not together if normalized is None else normalized
            added.append(AddedToken(name, **flags, normalized=normalized, special=together))
        (tokenizer.add_special_tokens if together else tokenizer.add_tokens)(added)
