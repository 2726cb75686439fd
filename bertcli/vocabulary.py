"""The tokenizer files of a model folder, of every age, read into the tokenizers library.

tokenizer.json holds everything; older folders have vocab.txt and, each of them optional,
tokenizer_config.json, special_tokens_map.json and added_tokens.json.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertcli.errors import ModelError
from bertcli.hub.files import CONFIGS

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
PREFIX = "##"  # of a piece that continues a word
# Classes of transformers that take tokenizer.json as it is; the others build its normalizer and
# its decoder anew.
AS_IT_IS = ("PreTrainedTokenizerFast", "TokenizersBackend")
UNLIMITED = 10**9  # transformers writes 1e30 where a tokenizer has no limit


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one when there is no such file.

    Raises ModelError when the file holds anything else.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as bad:
        raise ModelError(
            f"{path}: not valid JSON: {bad}", "fetch or write the file again"
        ) from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def content(token: Any) -> str | None:
    """Return the text of a special token, which files write as a string or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def role_names(settings: dict[str, Any]) -> list[str]:
    """Return the special tokens that BERT needs, by the names that this folder gives them."""
    return [content(settings.get(role)) or default for role, default in ROLES.items()]


def read_vocabulary(path: Path, special: Collection[str]) -> tuple[dict[str, int], list[str]]:
    """Return token -> id of a vocab.txt, one token a line, and warnings about it.

    A repeated token keeps its last id, as in transformers; a repeated ``special`` one is refused.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except UnicodeDecodeError as bad:
        raise ModelError(f"{path}: byte {bad.start} is not valid UTF-8") from None
    except OSError as failed:
        raise ModelError(f"{path}: {failed.strerror}") from None
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise ModelError(f"{path}: the vocabulary is empty")
    lines = [line.removesuffix("\r") for line in lines]
    vocabulary = {token: index for index, token in enumerate(lines)}
    if len(vocabulary) == len(lines):
        return vocabulary, []
    twice = [(index, token) for index, token in enumerate(lines) if vocabulary[token] != index]
    for index, token in twice:
        if token in special:
            raise ModelError(
                f"{path}: special token {token} is on line {index + 1} and on line "
                f"{vocabulary[token] + 1}",
                "each token may stand once: its line number is its id",
            )
    first = f"{twice[0][1]!r}, line {twice[0][0] + 1}"
    return vocabulary, [
        f"{path}: {len(twice)} repeated tokens (the first: {first}); the last id counts"
    ]


def _has_capitals(vocabulary: Collection[str]) -> bool:
    """Tell whether many words have capital letters; some of an uncased vocabulary may."""
    words = [token for token in vocabulary if token.isalpha()]
    capitals = sum(word != word.lower() for word in words)
    return capitals > 1 and 10 * capitals > len(words)


def is_cased(tokenizer: Tokenizer) -> bool:
    """Tell whether the vocabulary has capital letters, which lower-cased text never reaches."""
    return all(tokenizer.token_to_id(letter) is not None for letter in "ABCDE")


def load(folder: Path, settings: dict[str, Any]) -> tuple[Tokenizer, list[str]]:
    """Return what a folder's tokenizer.json holds, or else its vocab.txt, and warnings about it."""
    if (folder / "tokenizer.json").exists():
        return _from_json(folder, settings)
    if (folder / "vocab.txt").exists():
        return _from_vocabulary(folder, settings)
    raise ModelError(
        f"{folder}: there is no tokenizer in this folder",
        "a model folder holds tokenizer.json, or vocab.txt",
    )


def read_settings(folder: Path) -> dict[str, Any]:
    """Merge the two files that describe special tokens; the older one fills what is missing."""
    config = read_json(folder / "tokenizer_config.json")
    tokens = read_json(folder / "special_tokens_map.json")
    return tokens | config if "added_tokens_decoder" in config else config | tokens


def _from_json(folder: Path, settings: dict[str, Any]) -> tuple[Tokenizer, list[str]]:
    from tokenizers import Tokenizer, decoders

    path = folder / "tokenizer.json"
    try:
        core = Tokenizer.from_file(str(path))
    except Exception as broken:  # tokenizers raises nothing narrower
        raise ModelError(
            f"{path}: not a tokenizer: {broken}",
            "fetch the file again, or remove it to use vocab.txt",
        ) from None
    names = role_names(settings)
    known = {token.content for token in core.get_added_tokens_decoder().values()}
    plain = [name for name in names if name not in known and core.token_to_id(name) is not None]
    core.add_special_tokens(plain)
    if settings.get("tokenizer_class") not in AS_IT_IS:
        core.decoder = decoders.WordPiece(prefix=PREFIX)
    return core, _settle(core, folder, settings)


def _settle(core: Tokenizer, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Let tokenizer_config.json decide about the normalizer, as transformers does; warn of it."""
    was, lower = core.normalizer, settings.get("do_lower_case")
    if type(was).__name__ != "BertNormalizer" or lower is None:
        return []
    if settings.get("tokenizer_class") in AS_IT_IS:
        return []
    now = normalizer(settings, lower=lower)
    differ = [
        f"{name}: {getattr(was, name)} and {getattr(now, name)}"
        for name in ("lowercase", "strip_accents", "handle_chinese_chars")
        if getattr(was, name) != getattr(now, name)
    ]
    if not differ:
        return []
    core.normalizer = now
    return [
        f"{folder}: tokenizer.json and tokenizer_config.json differ, the latter counts: "
        + ", ".join(differ)
    ]


def sequence_limit(folder: Path, settings: dict[str, Any]) -> int | None:
    """Return the longest sequence that every file of the folder allows.

    What sentence-transformers was set to replaces the tokenizer's own limit, as it does there.
    """
    set_to = read_json(folder / "sentence_bert_config.json").get("max_seq_length")
    fits = [read_json(folder / name).get("max_position_embeddings") for name in CONFIGS]
    fits.append(set_to or settings.get("model_max_length"))
    found = [int(length) for length in fits if length and length < UNLIMITED]
    return min(found, default=None)


def _from_vocabulary(folder: Path, settings: dict[str, Any]) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer of a folder that has a vocab.txt, and warnings about it.

    Without a ``do_lower_case`` the vocabulary decides: one with capital letters is not lower-cased.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary, warnings = read_vocabulary(folder / "vocab.txt", role_names(settings))
    unk = content(settings.get("unk_token")) or ROLES["unk_token"]
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100))
    lower = settings.get("do_lower_case")
    if lower is None:
        lower = not _has_capitals(vocabulary)
        if not lower:
            warnings.append(
                f"{folder}: the vocabulary has capital letters and nothing says do_lower_case, "
                "so text keeps its case"
            )
    tokenizer.normalizer = normalizer(settings, lower=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    _add_tokens(tokenizer, folder, settings)
    return tokenizer, warnings


def check(core: Tokenizer, roles: Mapping[str, str], folder: Path) -> list[str]:
    """Return warnings about a tokenizer; raise ModelError when a special token is missing."""
    missing = [
        token
        for role, token in roles.items()
        if role != "mask_token" and core.token_to_id(token) is None
    ]
    if missing:
        raise ModelError(
            f"{folder}: the vocabulary has no {', '.join(missing)}",
            "special_tokens_map.json or tokenizer_config.json may name others",
        )
    if getattr(core.normalizer, "lowercase", False) and is_cased(core):
        return [
            f"{folder}: text is lower-cased, but the vocabulary has capital letters; "
            "is do_lower_case in tokenizer_config.json right?"
        ]
    return []


def normalizer(settings: dict[str, Any], *, lower: bool) -> Any:
    """Return BERT's text clean-up with what tokenizer_config.json sets."""
    from tokenizers import normalizers

    return normalizers.BertNormalizer(
        clean_text=settings.get("clean_text", True),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=lower,
    )


def add_template(tokenizer: Tokenizer, cls: str, sep: str) -> None:
    """Make the tokenizer write [CLS] A [SEP] and [CLS] A [SEP] B [SEP], B with token type 1."""
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=[cls, "$A", sep],
        pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
        special_tokens=[(cls, tokenizer.token_to_id(cls)), (sep, tokenizer.token_to_id(sep))],
    )


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Add the special tokens, and the tokens that were added to the vocabulary later, by id."""
    names = role_names(settings)
    for field in ("additional_special_tokens", "extra_special_tokens"):  # the name since 5.0
        more = settings.get(field) or []
        names += [content(token) or "" for token in more if token not in names]
    special = set(names)
    later = {index: token for token, index in read_json(folder / "added_tokens.json").items()}
    described = settings.get("added_tokens_decoder") or {}
    later |= {int(index): token["content"] for index, token in described.items()}
    options = {token["content"]: token for token in described.values()}
    present = [name for name in names if tokenizer.token_to_id(name) is not None]
    for token in (*present, *(later[index] for index in sorted(later)), *names[len(ROLES) :]):
        known = options.get(token, {})
        if not token:
            continue
        if token in special or known.get("special"):
            tokenizer.add_special_tokens([_added(token, known, special=True)])
        else:
            tokenizer.add_tokens([_added(token, known, special=False)])


def _added(token: str, known: dict[str, Any], *, special: bool) -> AddedToken:
    from tokenizers import AddedToken

    return AddedToken(
        token,
        single_word=known.get("single_word", False),
        lstrip=known.get("lstrip", False),
        rstrip=known.get("rstrip", False),
        normalized=known.get("normalized", not special),
        special=special,
    )
