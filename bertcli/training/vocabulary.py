"""Train a WordPiece vocabulary from text, with the trainer of the tokenizers library.

The trainer numbers characters in an order that differs from run to run. So they are passed to it as
special tokens, sorted, and equal texts give equal vocabularies. Words are counted first to find the
characters; memory grows with the number of different words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bertcli.errors import InputError, UsageError, option
from bertcli.io.typed_json import NOTHING, write_json
from bertcli.model_folder.tokenizer_classes import PREFIX, ROLES
from bertcli.model_folder.tokenizer_files import bert_normalizer
from bertcli.tokenizing.tokenizer import Tokenizer

VOCABULARY_FILE = "vocab.txt"
CONFIG_FILE = "tokenizer_config.json"
TOKENIZER_FILE = "tokenizer.json"
UNUSED_TOKENS = 99  # [UNK] is then 100, as in Google's vocabularies
MAX_WORD_LENGTH = 100  # characters; longer words become [UNK]
MAX_REPEATS_PER_TEXT = 1000  # of a word, in one text for the trainer
SPECIAL_TOKEN = re.compile("|".join(map(re.escape, ROLES.values())))


@dataclass(frozen=True)
class WordPieceOptions:
    """Size and contents of a vocabulary."""

    size: int = 30522
    min_frequency: int = 2
    limit_alphabet: int = 1000
    cased: bool = False
    unused: bool = True
    max_length: int = 512

    def special_tokens(self) -> list[str]:
        """Return the special and unused tokens, with which the vocabulary starts."""
        tokens = [ROLES["pad_token"]]
        if self.unused:
            tokens += [f"[unused{number}]" for number in range(UNUSED_TOKENS)]
        tokens += [ROLES[role] for role in ("unk_token", "cls_token", "sep_token", "mask_token")]
        return tokens


def count_words(texts: Iterable[str], *, cased: bool) -> Counter[str]:
    """Count the words of texts, split as BERT does: each punctuation mark is a word.

    Special tokens are not counted.
    """
    from tokenizers.pre_tokenizers import BertPreTokenizer

    normalize = bert_normalizer(NOTHING, lower=not cased).normalize_str
    split = BertPreTokenizer().pre_tokenize_str
    chunk_counts: Counter[str] = Counter()
    for text in texts:
        chunk_counts.update(text.split())
    counts: Counter[str] = Counter()
    for chunk, count in chunk_counts.items():
        for word, _ in split(normalize(SPECIAL_TOKEN.sub(" ", chunk))):
            if len(word) <= MAX_WORD_LENGTH:
                counts[word] += count
    return counts


def train(counts: Mapping[str, int], options: WordPieceOptions) -> list[str]:
    """Return the tokens of a vocabulary, in the order of their ids.

    Raises UsageError if the size is too small for the special tokens and characters, InputError if
    there are no words.
    """
    from tokenizers import Tokenizer as TokenizerCore
    from tokenizers import models, pre_tokenizers, trainers

    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    common = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(common[: options.limit_alphabet])
    kept_characters = frozenset(alphabet)
    words = {word: count for word, count in counts.items() if kept_characters.issuperset(word)}
    inner_characters = sorted({character for word in words for character in word[1:]})
    special_tokens = options.special_tokens()
    character_tokens = alphabet + [PREFIX + character for character in inner_characters]
    initial_tokens = special_tokens + character_tokens
    if options.size < len(initial_tokens):
        raise UsageError(
            f"{option('size', options.size)} is too small: {len(special_tokens)} special and "
            f"unused tokens and {len(character_tokens)} for single characters are "
            f"{len(initial_tokens)}",
            f"give a larger one, a smaller {option('limit_alphabet')}, or "
            f"{option('unused', False)}",
        )
    if not words:
        raise InputError("no words in the corpus", "give files of text")
    core = TokenizerCore(models.WordPiece(unk_token=ROLES["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=initial_tokens,
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    texts = (  # each word occurs as often as it was counted
        f"{word} " * min(MAX_REPEATS_PER_TEXT, count - start)
        for word, count in words.items()
        for start in range(0, count, MAX_REPEATS_PER_TEXT)
    )
    core.train_from_iterator(texts, trainer)
    vocabulary = core.get_vocab(with_added_tokens=True)
    return sorted(vocabulary, key=vocabulary.__getitem__)


def write(tokens: list[str], options: WordPieceOptions, folder: Path) -> None:
    """Write a tokenizer to an empty folder."""
    (folder / VOCABULARY_FILE).write_bytes("".join(f"{token}\n" for token in tokens).encode())
    settings = {
        "do_lower_case": not options.cased,
        "model_max_length": options.max_length,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
    }
    write_json(folder / CONFIG_FILE, settings | ROLES)
    # Not `save` of tokenizers, which raises a bare Exception on a full disk.
    tokenizer = Tokenizer.load(folder).core.to_str(pretty=True)
    (folder / TOKENIZER_FILE).write_bytes(tokenizer.encode())
