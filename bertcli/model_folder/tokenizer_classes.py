"""The rules of transformers' tokenizer classes, one table row each.

    kind = class_of(settings, config, "WordPiece")   # BERT's where config.json says no more
    kind.roles["mask_token"]                         # "<mask>" of RoBERTa

The class is given by the folder, or by the model type in config.json. It takes the vocabulary and
the added tokens from tokenizer.json, and the values of its own settings if tokenizer_config.json
does not set them; it creates the normalizer, pre-tokenizer, decoder and post-processor anew. This
package does the same, to compute what transformers computes. Any other class uses tokenizer.json
unchanged, and so does a tokenizer.json without other files. Source: models/*/tokenization_*.py and
auto/tokenization_auto.py of transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from bertcli.io.typed_json import JsonObject

    Make = Callable[[Tokenizer, JsonObject, Mapping[str, str]], None]

ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
LIKE_ROBERTA = {
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
ENDS = ("cls_token", "sep_token")  # around texts
PREFIX = "##"  # of a token that continues a word
BYTE_SPACE = "Ġ"  # GPT-2's character for the byte of a blank
SPACE = "▁"  # SentencePiece's character for a blank


class TokenizerClass(NamedTuple):
    """The rules of a tokenizer class.

    ``model`` is the `tokenizers` model that its tokenizer.json must have.
    """

    name: str
    model: str | None = None
    roles: Mapping[str, str] | None = None  # None: those in the vocabulary
    make: Make | None = None  # sets normalizer, pre-tokenizer, decoder, post-processor
    token_types: bool = False  # True: a call returns them by default
    # Default of ``lstrip`` for the mask token (it absorbs the blank before it), as in the
    # tokenizer.json of the published models. transformers 5 omits it if a folder has no
    # tokenizer.json.
    wide_mask: bool = False


def class_of(settings: JsonObject, config: JsonObject, model: str) -> TokenizerClass:
    """Return the class of a folder whose vocabulary is for the `tokenizers` model ``model``."""
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not settings and not config:  # AutoTokenizer adds nothing to a single file
        return AS_IT_IS
    kind = str(config.get("model_type"))
    name = str(named or MODEL_TYPES.get(kind)).removesuffix("Fast")
    if name in BACKENDS or MODEL_TYPES.get(kind) in BACKENDS:
        return AS_IT_IS
    fitting = CLASSES.get(name, CLASSES["BertTokenizer"] if model == "WordPiece" else AS_IT_IS)
    return fitting if fitting.model == model else AS_IT_IS


def roles_of(kind: TokenizerClass, core: Tokenizer, named: Mapping[str, str]) -> dict[str, str]:
    """Return the special tokens by role: those of the folder, otherwise those of the class."""
    if kind.roles is not None:
        return {role: named.get(role, name) for role, name in kind.roles.items()}
    other = {
        role: name
        for role, name in LIKE_ROBERTA.items()
        if core.token_to_id(ROLES[role]) is None and core.token_to_id(name) is not None
    }
    return ROLES | other | dict(named)


def _steps(part: Any) -> list[Any]:
    """Return the steps of a normalizer or a pre-tokenizer, which may be one step or None."""
    if part is None:
        return []
    return [*part] if type(part).__name__ == "Sequence" else [part]


def _step(part: Any, name: str) -> Any:
    """Return a step of a normalizer or a pre-tokenizer; None if it has no such step."""
    return next((step for step in _steps(part) if type(step).__name__ == name), None)


def for_words(core: Tokenizer) -> Tokenizer:
    """Return a tokenizer for texts that are split into words, with ``add_prefix_space``.

    Without it, byte-level BPE would read the words as parts of one long word.
    """
    if getattr(_step(core.pre_tokenizer, "ByteLevel"), "add_prefix_space", True):
        return core
    copy = type(core).from_str(core.to_str())
    copy.encode_special_tokens = core.encode_special_tokens
    for part in (_step(copy.pre_tokenizer, "ByteLevel"), copy.post_processor):
        if hasattr(part, "add_prefix_space"):
            part.add_prefix_space = True
    return copy


def goes_on(core: Tokenizer) -> Callable[[str], bool]:
    """Return a function that returns True for a token that continues a word.

    WordPiece marks these tokens; most other models mark the first token of a word instead.
    """
    if type(core.model).__name__ == "WordPiece":
        return lambda token: token.startswith(PREFIX)
    if _step(core.pre_tokenizer, "ByteLevel"):
        return lambda token: not token.startswith(BYTE_SPACE)
    if _step(core.pre_tokenizer, "Metaspace"):
        return lambda token: not token.startswith(SPACE)
    return lambda token: False


def _switch(settings: JsonObject, key: str, otherwise: bool) -> bool:
    value = settings.switch(key)
    return otherwise if value is None else value


def _ends(core: Tokenizer, roles: Mapping[str, str]) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the tokens at the end and at the start of a text, each with its id."""
    sep = roles["sep_token"]
    cls = roles["cls_token"]
    return (sep, core.token_to_id(sep) or 0), (cls, core.token_to_id(cls) or 0)


def _bert(core: Tokenizer, _: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up [CLS] A [SEP] and [CLS] A [SEP] B [SEP], B with token type 1, if not yet set up."""
    from tokenizers import decoders, processors

    core.decoder = decoders.WordPiece(prefix=PREFIX)
    if core.post_processor is None and core.token_to_id(roles["cls_token"]) is not None:
        # A template cannot contain a token with a "$" or ":" in it.
        core.post_processor = processors.BertProcessing(*_ends(core, roles))


def _mpnet(core: Tokenizer, _: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up <s> A </s></s> B </s>, all with token type 0."""
    from tokenizers import decoders, processors

    core.decoder = decoders.WordPiece(prefix=PREFIX)
    core.post_processor = processors.RobertaProcessing(*_ends(core, roles), True, False)


def _roberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up the pre-tokenizer of GPT-2, and <s> A </s></s> B </s>."""
    from tokenizers import decoders, pre_tokenizers, processors

    before = getattr(_step(core.pre_tokenizer, "ByteLevel"), "add_prefix_space", False)
    prefix = _switch(settings, "add_prefix_space", before)
    trim = _switch(settings, "trim_offsets", getattr(core.post_processor, "trim_offsets", True))
    core.normalizer = None
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.RobertaProcessing(*_ends(core, roles), trim, prefix)


def _metaspace(core: Tokenizer, settings: JsonObject, *before: Any, never: str = "never") -> None:
    """Replace blanks by U+2581, and add one before a text."""
    from tokenizers import decoders, pre_tokenizers

    was = getattr(_step(core.pre_tokenizer, "Metaspace"), "prepend_scheme", "always")
    scheme = "always" if _switch(settings, "add_prefix_space", was == "always") else never
    after = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    core.pre_tokenizer = pre_tokenizers.Sequence([*before, after])
    core.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def xlm_roberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Split at white space, which is not significant, and set up <s> A </s></s> B </s>."""
    from tokenizers import pre_tokenizers, processors

    core.normalizer = _step(core.normalizer, "Precompiled")
    _metaspace(core, settings, pre_tokenizers.WhitespaceSplit())
    core.post_processor = processors.RobertaProcessing(*_ends(core, roles), False, False)


def _albert(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Normalize like the original ALBERT code, and split at white space."""
    from tokenizers import normalizers, pre_tokenizers, processors

    was = core.normalizer
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not _switch(settings, "keep_accents", was is not None and not _step(was, "StripAccents")):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if _switch(settings, "do_lower_case", was is None or bool(_step(was, "Lowercase"))):
        steps.append(normalizers.Lowercase())
    steps += filter(None, [_step(was, "Precompiled")])
    core.normalizer = normalizers.Sequence(steps)
    _metaspace(core, settings, pre_tokenizers.WhitespaceSplit())
    if core.post_processor is None:
        core.post_processor = processors.BertProcessing(*_ends(core, roles))


def _deberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Replace white space by a blank, and strip it at the end of a text."""
    from tokenizers import pre_tokenizers, processors

    lower = _switch(settings, "do_lower_case", bool(_step(core.normalizer, "Lowercase")))
    by_mark = bool(_step(core.pre_tokenizer, "Punctuation"))
    by_mark = _switch(settings, "split_by_punct", by_mark)
    core.normalizer = _deberta_normalizer(core.normalizer, lower=lower)
    marks = [pre_tokenizers.Punctuation(behavior="isolated")] if by_mark else []
    _metaspace(core, settings, *marks, never="first")
    core.post_processor = processors.BertProcessing(*_ends(core, roles))


def _deberta_normalizer(stored: Any, *, lower: bool) -> Any:
    """Return the normalizer of a DeBERTa, which lower-cases first if ``lower``.

    If the folder has SentencePiece's character map, with which the models were trained, its own
    normalizer is used: transformers 5 uses NFC instead, so "…", "½" or "Ａ" become [UNK].
    """
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Lowercase()] if lower else []
    if _step(stored, "Precompiled"):
        steps += [step for step in _steps(stored) if type(step).__name__ != "Lowercase"]
        return normalizers.Sequence(steps)
    blanks = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    steps += [blanks, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    return normalizers.Sequence(steps)


AS_IT_IS = TokenizerClass("PreTrainedTokenizerFast")
BACKENDS = ("PreTrainedTokenizer", "TokenizersBackend")
_LISTED = (
    TokenizerClass("BertTokenizer", "WordPiece", ROLES, _bert, token_types=True),
    TokenizerClass("ElectraTokenizer", "WordPiece", ROLES, _bert, token_types=True),
    TokenizerClass("DistilBertTokenizer", "WordPiece", ROLES, _bert),
    TokenizerClass(
        "MPNetTokenizer",
        "WordPiece",
        LIKE_ROBERTA | {"unk_token": ROLES["unk_token"]},
        _mpnet,
        wide_mask=True,
    ),
    TokenizerClass("RobertaTokenizer", "BPE", LIKE_ROBERTA, _roberta, wide_mask=True),
    TokenizerClass("XLMRobertaTokenizer", "Unigram", LIKE_ROBERTA, xlm_roberta, wide_mask=True),
    TokenizerClass("CamembertTokenizer", "Unigram", LIKE_ROBERTA, xlm_roberta, wide_mask=True),
    TokenizerClass(
        "AlbertTokenizer",
        "Unigram",
        ROLES | {"unk_token": "<unk>", "pad_token": "<pad>"},
        _albert,
        token_types=True,  # as pretrained, on pairs; transformers 5 returns zeros
        wide_mask=True,
    ),
    TokenizerClass("DebertaV2Tokenizer", "Unigram", ROLES, _deberta, token_types=True),
)
CLASSES = {kind.name: kind for kind in _LISTED}
MODEL_TYPES = {  # model_type in config.json -> class of a folder that states none
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "gte": "XLMRobertaTokenizer",
    "jina_embeddings_v3": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "mpnet": "MPNetTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "modernbert": "TokenizersBackend",  # even if its folder states another
    "xlm-roberta-xl": "TokenizersBackend",
}
