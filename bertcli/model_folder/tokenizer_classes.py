"""The rules of transformers' tokenizer classes, one table row each.

    tokenizer_class = class_of(settings, config, "BPE")   # of a RoBERTa
    tokenizer_class.roles["mask_token"]                   # "<mask>"

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

    SetUp = Callable[[Tokenizer, JsonObject, Mapping[str, str]], None]

ROLES = {  # of special tokens, with their texts in BERT
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ROBERTA_ROLES = {
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
END_ROLES = ("cls_token", "sep_token")  # of the tokens around texts
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
    set_up: SetUp | None = None  # sets normalizer, pre-tokenizer, decoder, post-processor
    token_types: bool = False  # True: a call returns them by default
    # Default of ``lstrip`` for the mask token (it absorbs the blank before it), as in the
    # tokenizer.json of the published models. transformers 5 omits it if a folder has no
    # tokenizer.json.
    mask_lstrip: bool = False


def class_of(settings: JsonObject, config: JsonObject, model: str) -> TokenizerClass:
    """Return the class of a folder whose vocabulary is for the `tokenizers` model ``model``.

    ``settings`` is tokenizer_config.json, ``config`` is config.json.
    """
    if not settings and not config:  # AutoTokenizer adds nothing to a single file
        return AS_IT_IS
    name_by_type = DEFAULT_CLASS_NAMES.get(str(config.get("model_type")))
    name = settings.get("tokenizer_class") or config.get("tokenizer_class") or name_by_type
    name = str(name).removesuffix("Fast")
    if name in BACKENDS or name_by_type in BACKENDS:
        return AS_IT_IS
    default = CLASSES["BertTokenizer"] if model == "WordPiece" else AS_IT_IS
    tokenizer_class = CLASSES.get(name, default)
    return tokenizer_class if tokenizer_class.model == model else AS_IT_IS


def roles_of(
    tokenizer_class: TokenizerClass, core: Tokenizer, folder_roles: Mapping[str, str]
) -> dict[str, str]:
    """Return the special tokens by role: those of the folder, otherwise those of the class."""
    if tokenizer_class.roles is not None:
        return {
            role: folder_roles.get(role, token) for role, token in tokenizer_class.roles.items()
        }
    like_roberta = {
        role: token
        for role, token in ROBERTA_ROLES.items()
        if core.token_to_id(ROLES[role]) is None and core.token_to_id(token) is not None
    }
    return ROLES | like_roberta | dict(folder_roles)


def _steps(component: Any) -> list[Any]:
    """Return the steps of a normalizer or a pre-tokenizer, which may be one step or None."""
    if component is None:
        return []
    return [*component] if type(component).__name__ == "Sequence" else [component]


def _step(component: Any, name: str) -> Any:
    """Return a step of a normalizer or a pre-tokenizer; None if it has no such step."""
    return next((step for step in _steps(component) if type(step).__name__ == name), None)


def with_prefix_space(core: Tokenizer) -> Tokenizer:
    """Return a tokenizer for texts that are split into words: it reads each as a new word.

    Without ``add_prefix_space``, byte-level BPE would read them as parts of one long word. If words
    are split first, by another pre-tokenizer, the normalizer adds the blank: ByteLevel would add
    one before each part of a word.
    """
    if getattr(_step(core.pre_tokenizer, "ByteLevel"), "add_prefix_space", True):
        return core
    copy = type(core).from_str(core.to_str())
    copy.encode_special_tokens = core.encode_special_tokens
    if len(_steps(copy.pre_tokenizer)) > 1:
        from tokenizers import normalizers

        blank = normalizers.Prepend(" ")
        copy.normalizer = normalizers.Sequence([*_steps(copy.normalizer), blank])
        return copy
    for component in (_step(copy.pre_tokenizer, "ByteLevel"), copy.post_processor):
        if hasattr(component, "add_prefix_space"):
            component.add_prefix_space = True
    return copy


def continuation_test(core: Tokenizer) -> Callable[[str], bool]:
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


def _switch(settings: JsonObject, key: str, default: bool) -> bool:
    value = settings.switch(key)
    return default if value is None else value


def _end_tokens(
    core: Tokenizer, roles: Mapping[str, str]
) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the tokens at the end and at the start of a text, each with its id."""
    sep = roles["sep_token"]
    cls = roles["cls_token"]
    return (sep, core.token_to_id(sep) or 0), (cls, core.token_to_id(cls) or 0)


def _set_up_bert(core: Tokenizer, _: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up [CLS] A [SEP] and [CLS] A [SEP] B [SEP], B with token type 1, if not yet set up."""
    from tokenizers import decoders, processors

    core.decoder = decoders.WordPiece(prefix=PREFIX)
    if core.post_processor is None and core.token_to_id(roles["cls_token"]) is not None:
        # A template cannot contain a token with a "$" or ":" in it.
        core.post_processor = processors.BertProcessing(*_end_tokens(core, roles))


def _set_up_mpnet(core: Tokenizer, _: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up <s> A </s></s> B </s>, all with token type 0."""
    from tokenizers import decoders, processors

    core.decoder = decoders.WordPiece(prefix=PREFIX)
    core.post_processor = processors.RobertaProcessing(*_end_tokens(core, roles), True, False)


def _set_up_roberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Set up the pre-tokenizer of GPT-2, and <s> A </s></s> B </s>."""
    from tokenizers import decoders, pre_tokenizers, processors

    stored_prefix = getattr(_step(core.pre_tokenizer, "ByteLevel"), "add_prefix_space", False)
    prefix = _switch(settings, "add_prefix_space", stored_prefix)
    stored_trim = getattr(core.post_processor, "trim_offsets", True)
    trim = _switch(settings, "trim_offsets", stored_trim)
    core.normalizer = None
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.RobertaProcessing(*_end_tokens(core, roles), trim, prefix)


def _set_up_metaspace(
    core: Tokenizer, settings: JsonObject, *first_steps: Any, unprefixed: str = "never"
) -> None:
    """Replace blanks by U+2581, and add one before a text, after the pre-tokenizer's first steps.

    ``unprefixed`` is the scheme of a folder that disables ``add_prefix_space``.
    """
    from tokenizers import decoders, pre_tokenizers

    stored = getattr(_step(core.pre_tokenizer, "Metaspace"), "prepend_scheme", "always")
    prefix = _switch(settings, "add_prefix_space", stored == "always")
    scheme = "always" if prefix else unprefixed
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    core.pre_tokenizer = pre_tokenizers.Sequence([*first_steps, metaspace])
    core.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def _set_up_xlm_roberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Split at white space, which is not significant, and set up <s> A </s></s> B </s>."""
    from tokenizers import pre_tokenizers, processors

    core.normalizer = _step(core.normalizer, "Precompiled")
    _set_up_metaspace(core, settings, pre_tokenizers.WhitespaceSplit())
    core.post_processor = processors.RobertaProcessing(*_end_tokens(core, roles), False, False)


def _set_up_albert(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Normalize like the original ALBERT code, and split at white space."""
    from tokenizers import normalizers, pre_tokenizers, processors

    stored = core.normalizer
    keeps_accents = stored is not None and not _step(stored, "StripAccents")
    lower_cases = stored is None or bool(_step(stored, "Lowercase"))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not _switch(settings, "keep_accents", keeps_accents):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if _switch(settings, "do_lower_case", lower_cases):
        steps.append(normalizers.Lowercase())
    if character_map := _step(stored, "Precompiled"):
        steps.append(character_map)
    core.normalizer = normalizers.Sequence(steps)
    _set_up_metaspace(core, settings, pre_tokenizers.WhitespaceSplit())
    if core.post_processor is None:
        core.post_processor = processors.BertProcessing(*_end_tokens(core, roles))


def _set_up_deberta(core: Tokenizer, settings: JsonObject, roles: Mapping[str, str]) -> None:
    """Replace white space by a blank, and strip it at the end of a text."""
    from tokenizers import pre_tokenizers, processors

    lower = _switch(settings, "do_lower_case", bool(_step(core.normalizer, "Lowercase")))
    core.normalizer = _deberta_normalizer(core.normalizer, lower=lower)
    first_steps = []
    stored_split = bool(_step(core.pre_tokenizer, "Punctuation"))
    if _switch(settings, "split_by_punct", stored_split):
        first_steps.append(pre_tokenizers.Punctuation(behavior="isolated"))
    _set_up_metaspace(core, settings, *first_steps, unprefixed="first")
    core.post_processor = processors.BertProcessing(*_end_tokens(core, roles))


def _deberta_normalizer(stored: Any, *, lower: bool) -> Any:
    """Return the normalizer of a DeBERTa, which lower-cases first if ``lower``.

    If the stored normalizer has SentencePiece's character map, with which the models were trained,
    it is used: transformers 5 uses NFC instead, so "…", "½" or "Ａ" become [UNK].
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
XLM_ROBERTA = TokenizerClass(
    "XLMRobertaTokenizer", "Unigram", ROBERTA_ROLES, _set_up_xlm_roberta, mask_lstrip=True
)
_CLASS_LIST = (
    TokenizerClass("BertTokenizer", "WordPiece", ROLES, _set_up_bert, token_types=True),
    TokenizerClass("ElectraTokenizer", "WordPiece", ROLES, _set_up_bert, token_types=True),
    TokenizerClass("DistilBertTokenizer", "WordPiece", ROLES, _set_up_bert),
    TokenizerClass(
        "MPNetTokenizer",
        "WordPiece",
        ROBERTA_ROLES | {"unk_token": ROLES["unk_token"]},
        _set_up_mpnet,
        mask_lstrip=True,
    ),
    TokenizerClass("RobertaTokenizer", "BPE", ROBERTA_ROLES, _set_up_roberta, mask_lstrip=True),
    TokenizerClass(
        "XLMRobertaTokenizer", "Unigram", ROBERTA_ROLES, _set_up_xlm_roberta, mask_lstrip=True
    ),
    TokenizerClass(
        "CamembertTokenizer", "Unigram", ROBERTA_ROLES, _set_up_xlm_roberta, mask_lstrip=True
    ),
    TokenizerClass(
        "AlbertTokenizer",
        "Unigram",
        ROLES | {"unk_token": "<unk>", "pad_token": "<pad>"},
        _set_up_albert,
        token_types=True,  # as pretrained, on pairs; transformers 5 returns zeros
        mask_lstrip=True,
    ),
    TokenizerClass("DebertaV2Tokenizer", "Unigram", ROLES, _set_up_deberta, token_types=True),
)
CLASSES = {tokenizer_class.name: tokenizer_class for tokenizer_class in _CLASS_LIST}
DEFAULT_CLASS_NAMES = {  # model_type in config.json -> class of a folder that states none
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
