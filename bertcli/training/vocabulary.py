"""A WordPiece vocabulary from text, by the trainer of the tokenizers library.

That trainer numbers pieces in the order in which it meets them, and that order changes from run to
run: so the characters and their continuing forms are given to it beforehand, sorted. Then the same
words give the same vocabulary. To know the characters, words are counted first; memory is that of
the different words, as they stand in the text.
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
from bertcli.model_folder.tokenizer_files import normalizer
from bertcli.tokenizing.tokenizer import Tokenizer

VOCABULARY, CONFIG, WHOLE = "vocab.txt", "tokenizer_config.json", "tokenizer.json"
FREE = 99  # unused tokens: [UNK] is then 100, as in Google's vocabularies
LONGEST = 100  # characters; longer words become [UNK]
REPEATS = 1000  # of a word, in one text for the trainer
SPECIAL = re.compile("|".join(map(re.escape, ROLES.values())))  # already tokens, not words


@dataclass(frozen=True)
class WordPieceOptions:
    """Size and contents of a vocabulary."""

    size: int = 30522
    min_frequency: int = 2
    limit_alphabet: int = 1000
    cased: bool = False
    unused: bool = True
    max_length: int = 512

    def special(self) -> list[str]:
        """Return the tokens that come first."""
        free = [f"[unused{number}]" for number in range(FREE if self.unused else 0)]
        first = (ROLES["unk_token"], ROLES["cls_token"], ROLES["sep_token"], ROLES["mask_token"])
        return [ROLES["pad_token"], *free, *first]


def count_words(texts: Iterable[str], *, cased: bool) -> Counter[str]:
    """Count the words of texts, split as BERT does: each punctuation mark is a word."""
    from tokenizers.pre_tokenizers import BertPreTokenizer

    clean = normalizer(NOTHING, lower=not cased).normalize_str
    cut = BertPreTokenizer().pre_tokenize_str
    counts: Counter[str] = Counter()
    for part, count in Counter(part for text in texts for part in text.split()).items():
        for word, _ in cut(clean(SPECIAL.sub(" ", part))):
            if len(word) <= LONGEST:
                counts[word] += count
    return counts


def train(counts: Mapping[str, int], options: WordPieceOptions) -> list[str]:
    """Return the tokens of a vocabulary by their ids.

    Raises UsageError when the size has no room for the characters.
    """
    from tokenizers import Tokenizer as Core
    from tokenizers import models, pre_tokenizers, trainers

    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    common = sorted(characters, key=lambda character: (-characters[character], character))
    alphabet = sorted(common[: options.limit_alphabet])
    kept_characters = frozenset(alphabet)
    whole = {word: count for word, count in counts.items() if kept_characters.issuperset(word)}
    inside = sorted({character for word in whole for character in word[1:]})
    special = options.special()
    first = [*special, *alphabet, *(PREFIX + character for character in inside)]
    if options.size < len(first):
        raise UsageError(
            f"{option('size', options.size)} is too small: {len(special)} special and unused "
            "tokens "
            f"and {len(first) - len(special)} for single characters are {len(first)}",
            f"give a larger one, a smaller {option('limit_alphabet')}, or "
            f"{option('unused', False)}",
        )
    if not whole:
        raise InputError("no words in the corpus", "give files of text")
    core = Core(models.WordPiece(unk_token=ROLES["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=options.size,
        min_frequency=options.min_frequency,
        special_tokens=first,
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    texts = (  # with each word as often as it was counted
        f"{word} " * min(REPEATS, count - start)
        for word, count in whole.items()
        for start in range(0, count, REPEATS)
    )
    core.train_from_iterator(texts, trainer)
    vocabulary = core.get_vocab(with_added_tokens=True)
    return sorted(vocabulary, key=vocabulary.__getitem__)


def write(tokens: list[str], options: WordPieceOptions, folder: Path) -> None:
    """Write a tokenizer to an empty folder."""
    (folder / VOCABULARY).write_bytes("".join(f"{token}\n" for token in tokens).encode())
    settings = {
        "do_lower_case": not options.cased,
        "model_max_length": options.max_length,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "tokenizer_class": "BertTokenizer",
        **ROLES,
    }
    write_json(folder / CONFIG, settings)
    # tokenizers' own save raises a bare Exception on a full disk.
    whole = Tokenizer.load(folder).core.to_str(pretty=True)
    (folder / WHOLE).write_bytes(whole.encode())
