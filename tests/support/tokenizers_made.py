"""Small tokenizers of every kind, trained here, as folders that transformers can load.

    folder = bpe_folder(tmp_path / "roberta")        # <s> a </s></s> b </s>, <mask> is the last id
    folder = MADE["deberta"](tmp_path / "deberta")   # any of them by name

A folder has tokenizer.json and tokenizer_config.json, which contains the keyword arguments. Special
tokens have the same ids as in the family: padding is 1 in RoBERTa's, 0 in BERT's.
"""

import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import hostile
from front import put_json
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SIZE = 700  # approximate vocabulary size
ENGLISH = """The capital of France is Paris, and that of Italy is Rome. The weather in the town was
as fine as it had been for the whole of the week. I love natural language processing! A good book
is read from the beginning to the end. She don't know what they're doing, or why we've come."""
CORPUS = [*ENGLISH.split("\n"), *ENGLISH.lower().split("\n"), *hostile.REAL] * 2
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]  # in the order of their ids; <mask> is the last
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CAMEMBERT = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]


def _special(tokenizer: Tokenizer, names: list[str]) -> None:
    masks = ("<mask>", "[MASK]")
    tokenizer.add_special_tokens(
        [AddedToken(name, normalized=False, lstrip=name in masks) for name in names]
    )


def _around(tokenizer: Tokenizer, single: str, pair: str) -> None:
    names = {part.split(":")[0] for part in f"{single} {pair}".split() if "$" not in part}
    known = [(name, tokenizer.token_to_id(name)) for name in sorted(names)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=known
    )


def _like_roberta(tokenizer: Tokenizer) -> None:
    _around(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>")


def _like_bert(tokenizer: Tokenizer) -> None:
    _around(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")


def _bpe(special: list[str], *, prefix: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def roberta(*, prefix: bool = False) -> Tokenizer:
    """Byte-level BPE: any text has tokens, and a space belongs to the word after it."""
    tokenizer = _bpe(ROBERTA, prefix=prefix)
    _special(tokenizer, [*ROBERTA, "<mask>"])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, True, prefix)
    return tokenizer


def modernbert() -> Tokenizer:
    """Byte-level BPE with the special tokens of BERT, and runs of spaces as added tokens."""
    tokenizer = _bpe(BERT, prefix=False)
    tokenizer.normalizer = normalizers.NFC()
    _special(tokenizer, BERT)
    tokenizer.add_tokens([AddedToken(" " * size, normalized=False) for size in (4, 3, 2)])
    _around(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    return tokenizer


def llama() -> Tokenizer:
    """Byte-level BPE of Llama 3: words by its own pattern, at most three digits in a token."""
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>"]
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    words = pre_tokenizers.Split(Regex(LLAMA_WORDS), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _special(tokenizer, special)  # after all words, as in the published files
    _around(
        tokenizer,
        "<|begin_of_text|> $A <|end_of_text|>",
        "<|begin_of_text|> $A <|end_of_text|> $B:1 <|end_of_text|>:1",
    )
    template = tokenizer.post_processor
    byte_level = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = processors.Sequence([byte_level, template])
    return tokenizer


def metaspace() -> Tokenizer:
    """BPE of characters, with spaces as U+2581, and bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = [*ROBERTA, *(f"<0x{code:02X}>" for code in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE + 256, special_tokens=special, limit_alphabet=150, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = stored["added_tokens"][: len(ROBERTA)]
    tokenizer = Tokenizer.from_str(json.dumps(stored))
    _special(tokenizer, [*ROBERTA, "<mask>"])
    _like_roberta(tokenizer)
    return tokenizer


def gemma() -> Tokenizer:
    """BPE of characters that words do not limit, with spaces as U+2581 and bytes for others."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE + 256,
        special_tokens=[*special, *(f"<0x{code:02X}>" for code in range(256))],
        limit_alphabet=150,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = stored["added_tokens"][: len(special)]
    tokenizer = Tokenizer.from_str(json.dumps(stored))
    _around(tokenizer, "<bos> $A <eos>", "<bos> $A <eos> <bos>:1 $B:1 <eos>:1")
    return tokenizer


def _unigram(special: list[str], unk: str, *, last: str, split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    metaspace = pre_tokenizers.Metaspace()
    parts = [pre_tokenizers.WhitespaceSplit(), metaspace] if split else [metaspace]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=SIZE, special_tokens=special, unk_token=unk, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    stored = json.loads(tokenizer.to_str())
    stored["model"]["vocab"].append([last, 0.0])
    stored["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(stored))
    _special(tokenizer, [*special, last])
    return tokenizer


def xlm_roberta() -> Tokenizer:
    """Unigram with `<unk>` for unknown characters."""
    tokenizer = _unigram(ROBERTA, "<unk>", last="<mask>")
    _like_roberta(tokenizer)
    return tokenizer


def camembert() -> Tokenizer:
    """Unigram with unused entries among the special tokens."""
    tokenizer = _unigram([*CAMEMBERT, "<s>", "</s>"], "<unk>", last="<mask>")
    _like_roberta(tokenizer)
    return tokenizer


def albert() -> Tokenizer:
    """Unigram of lower-cased text without accents."""
    tokenizer = _unigram(["<pad>", "<unk>", "[CLS]", "[SEP]"], "<unk>", last="[MASK]")
    parts = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD()]
    parts += [normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(parts)
    _like_bert(tokenizer)
    return tokenizer


def deberta() -> Tokenizer:
    """Unigram that keeps spaces at the start of a text."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokenizer = _unigram(special, "[UNK]", last="[MASK]", split=False)
    blanks = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    tokenizer.normalizer = normalizers.Sequence(
        [blanks, normalizers.NFC(), normalizers.Strip(left=False, right=True)]
    )
    _like_bert(tokenizer)
    return tokenizer


def _wordpiece(special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=SIZE + 300, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bert() -> Tokenizer:
    """WordPiece, also for DistilBERT, ELECTRA and NomicBERT."""
    tokenizer = _wordpiece(BERT)
    _like_bert(tokenizer)
    return tokenizer


def mpnet() -> Tokenizer:
    """WordPiece with the special tokens of RoBERTa, except for [UNK]."""
    tokenizer = _wordpiece([*ROBERTA, "[UNK]", "<mask>"])
    _special(tokenizer, [*ROBERTA, "[UNK]", "<mask>"])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("</s>", "<s>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, True, False)
    return tokenizer


KINDS = {
    made.__name__: made
    for made in (
        roberta,
        modernbert,
        llama,
        metaspace,
        xlm_roberta,
        camembert,
        albert,
        deberta,
        bert,
    )
} | {"mpnet": mpnet, "gemma": gemma, "roberta_prefix": partial(roberta, prefix=True)}


@lru_cache
def stored(kind: str) -> str:
    """Return the tokenizer.json of a kind, trained once per session."""
    return KINDS[kind]().to_str()


def folder_of(kind: str, path: Path, **settings: Any) -> Path:
    """Write both files of a tokenizer. Settings of None are left out."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "tokenizer.json").write_text(stored(kind), "utf-8")
    said = {key: value for key, value in settings.items() if value is not None}
    put_json(path / "tokenizer_config.json", said)
    return path


def _named(*names: str) -> dict[str, str]:
    return dict(zip(ROLES, names, strict=True))


ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
LIKE_BERT = _named(*BERT)
LIKE_ROBERTA = _named("<pad>", "<unk>", "<s>", "</s>", "<mask>")
LIKE_ROBERTA |= {"bos_token": "<s>", "eos_token": "</s>"}
NO_TYPES = ["input_ids", "attention_mask"]
# tokenizer_config.json per family. transformers uses tokenizer.json unchanged for modernbert and
# metaspace; for the others, it rebuilds parts from these settings.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("roberta", {"tokenizer_class": "RobertaTokenizer", **LIKE_ROBERTA}),
    "roberta_prefix": (
        "roberta_prefix",
        {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True, **LIKE_ROBERTA},
    ),
    "xlm_roberta": ("xlm_roberta", {"tokenizer_class": "XLMRobertaTokenizer", **LIKE_ROBERTA}),
    "camembert": ("camembert", {"tokenizer_class": "CamembertTokenizer", **LIKE_ROBERTA}),
    "albert": (
        "albert",
        {
            "tokenizer_class": "AlbertTokenizer",
            **_named("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
            "do_lower_case": True,
        },
    ),
    "deberta": (
        "deberta",
        {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": False, **LIKE_BERT},
    ),
    "modernbert": (
        "modernbert",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": NO_TYPES,
            "clean_up_tokenization_spaces": True,
            **LIKE_BERT,
        },
    ),
    "eurobert": (
        "llama",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_input_names": NO_TYPES,
            "clean_up_tokenization_spaces": True,
            "bos_token": "<|begin_of_text|>",
            "eos_token": "<|end_of_text|>",
            "mask_token": "<|mask|>",
            "pad_token": "<|pad|>",
        },
    ),
    "gemma": (
        "gemma",
        {
            "tokenizer_class": "GemmaTokenizer",
            "add_bos_token": True,
            "add_eos_token": True,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "unk_token": "<unk>",
            "pad_token": "<pad>",
            "mask_token": "<mask>",
            "padding_side": "right",
        },
    ),
    "metaspace": ("metaspace", {"tokenizer_class": "PreTrainedTokenizerFast", **LIKE_ROBERTA}),
    "distilbert": (
        "bert",
        {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True, **LIKE_BERT},
    ),
    "electra": ("bert", {"tokenizer_class": "ElectraTokenizer", "do_lower_case": True}),
    "mpnet": (
        "mpnet",
        {
            "tokenizer_class": "MPNetTokenizer",
            "do_lower_case": True,
            **(LIKE_ROBERTA | {"unk_token": "[UNK]"}),
        },
    ),
}


def _made(family: str, path: Path, **settings: Any) -> Path:
    kind, said = FAMILIES[family]
    return folder_of(kind, path, **(said | settings))


MADE = {family: partial(_made, family) for family in FAMILIES}
bpe_folder, unigram_folder = MADE["roberta"], MADE["xlm_roberta"]


def wordpiece_folder(path: Path, family: str = "distilbert", **settings: Any) -> Path:
    """Write a WordPiece tokenizer of a family: distilbert, electra or mpnet."""
    return MADE[family](path, **settings)


def for_words(theirs: Any, ours: Any, folder: Path) -> Any:
    """Return transformers' tokenizer for pre-split texts, with a space before each word."""
    if ours.words_core is ours.core:
        return theirs
    if theirs.backend_tokenizer.pre_tokenizer.__class__.__name__ == "Sequence":
        spaced = type(theirs).from_pretrained(folder)
        spaced.backend_tokenizer.normalizer = normalizers.Prepend(" ")
        return spaced
    prefixed = type(theirs).from_pretrained(folder, add_prefix_space=True)
    prefixed.backend_tokenizer.pre_tokenizer.add_prefix_space = True  # one class ignores the option
    return prefixed
