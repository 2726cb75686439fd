"""Encode many texts to flat id arrays (with nanotoken where it is exact), and write them as lines.

    ids, offsets = WordPieceEngine(core)(['I love NLP!', ""])   # uint32 [T], int64 [B + 1]
    fill_json_lines(template, batch, ["input_ids"])   # `HOLE` stands for the lists

`fill_json_lines` serializes the ids of many texts with one orjson call, with a separator between
texts that is not an id, and splits the result there. `B` is the number of texts, `T` the number of
all their tokens.

nanotoken (Rust, MIT) implements WordPiece only, without pairs or offsets. Findings for 0.1.0:

- Its ids equal those of tokenizers 0.23.3 for every code point: alone, inside words, doubled, under
  combining marks in and out of order, composed, decomposed and between jamo, with the vocabularies
  of BERT uncased, cased, multilingual and Chinese and of the default model; for 20,000 adversarial
  texts each; for added tokens with all 16 settings of their flags; for all switches of
  BertNormalizer; for words of 99 to 10^6 characters, control characters, NUL and empty texts.
- It has no `encode_special_tokens`, so it is not used if special tokens are not parsed.
- A lone surrogate raises UnicodeEncodeError (TypeError in tokenizers); our readers reject lone
  surrogates. Invalid UTF-8 becomes U+FFFD silently, so it receives texts, never bytes; texts are
  faster, too.
- Its own thread pool gains little on two cores; two of our threads halve the time, because it
  releases the GIL. Without its pool it is safe after a fork, and eight threads that share a
  tokenizer agree.
- Its cache never evicts entries: 2^20 entries per level take 175 MB after random words.
- 0.1.0 has wheels for x86-64 (Linux glibc, macOS, Windows) and ARM (Linux glibc, macOS).

Because it is young and has one author, it is compared with tokenizers on PROOF for each tokenizer
that is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from bertcli.formats.row_offsets import offsets_of
from bertcli.formats.tables import NumbersText
from bertcli.io.typed_json import parse
from bertcli.tokenizing.batch import TokenBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    Counts = NDArray[np.int64]
    Flat = tuple[NDArray[np.uint32], Counts]  # ids [T], offsets [B + 1]

HOLE = NumbersText("[\0]")  # placeholder for the list of the first column; never in JSON
NANOTOKEN_CHARACTERS = 1 << 19  # at which it pays for its import and proof (1/6 s)
CACHE_ENTRIES = 1 << 17  # per level
PROOF_LOCK = Lock()  # held while the proof runs, so threads do not repeat it

PROOF = (
    "", " ", "a", "I love NLP!", "don't", "U.S.A. -- $3.50, 50% (yes/no) {x} e-mail@x.org",
    "unaffable UNAFFABLE UnAffAble", "naïve café Ångström ﬁne œuvre Straße GRÜẞE",
    "İstanbul ılık", "ΣΊΣΥΦΟΣ ᾳ ΐ", "Съешь ещё йод ЇЖАК",
    "السَّلَامُ عَلَيْكُمْ ؟ ١٢٣", "שָׁלוֹם", "मुँह क्षत्रिय १२३", "เป็นมนุษย์",
    "키스의 ᄒᆞᆫ글 각\u0301", "東京都庁 ガ が 々〆〇", "㐀𠀀 繁體，「引號」world世界abc",
    "Tiếng Việt ĐẶNG", "አማርኛ မြန်မာ தமிழ்", "👩‍👩‍👧‍👦🏳️‍🌈 👍🏽 ❤️ 1️⃣",
    "½ ² Ⅻ ㍿ ℌ𝓗 Ａｂｃ１２３ ©®™",
    "https://example.org/a_b?c=d&e=%20#f ~/.x x=y+z*3^2",
    "a\tb\nc\rd\ve\ff\x1cg\x1fh\x85i\u2028j\u2029k", "a\x00b\x01c\x7fd\x80e\ufffdf",
    "a\u00a0b\u3000c\u1680d", "a\u00adb\u200bc\u200dd\u202ee\ufefff", "\u0301",
    "e\u0301\u0323 \u0345\u0308\u0301x", "K Å ſ ẞ i\u0307",
    "\U0001d400\U00020000\U0002fa1d\U0010ffff\ue000\ufdd0\uffff", "##ing ## ### _ __ a_b",
    "[ SEP ] [SEP [[MASK]]", "a" * 99, "a" * 100, "a" * 101, "x1" * 60 + ".", "é" * 100,
    "é" * 101, "e\u0301" * 60, "一" * 130, "。" * 120,
)  # fmt: skip


class WordPieceEngine:
    """The fastest exact batch encoder for a tokenizer: nanotoken if it passes the proof."""

    def __init__(self, core: Tokenizer, expected_characters: int = 0) -> None:
        self.core = core
        self.characters = expected_characters  # expected, and read so far

    def __call__(self, texts: Sequence[str]) -> Flat:
        """Return the ids of all texts, concatenated [T], and their row offsets [B + 1]."""
        nanotoken = None
        with PROOF_LOCK:
            if self.characters < NANOTOKEN_CHARACTERS:
                self.characters += sum(map(len, texts))
            is_many = self.characters >= NANOTOKEN_CHARACTERS
            if is_many and not self.core.encode_special_tokens:
                nanotoken = self.nanotoken
        if nanotoken is not None:
            return nanotoken.encode_batch(texts, add_special_tokens=False, parallel=False)
        encodings = self.core.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        offsets = offsets_of([*map(len, ids)])
        flat = (number for row in ids for number in row)
        return np.fromiter(flat, np.uint32, int(offsets[-1])), offsets

    @cached_property
    def nanotoken(self) -> Any:
        """The tokenizer in nanotoken, or None if it is unsupported, not installed or not exact."""
        if type(self.core.model).__name__ != "WordPiece":
            return None
        try:
            import nanotoken
        except ImportError:
            return None
        nanotoken.set_cache_entries(CACHE_ENTRIES)
        settings = parse(self.core.to_str())
        settings |= {"post_processor": None, "truncation": None, "padding": None}
        try:
            tokenizer = nanotoken.WordPieceTokenizer.from_json(orjson.dumps(settings))
        except ValueError:  # nanotoken does not support this tokenizer
            return None
        words = [token.content for token in self.core.get_added_tokens_decoder().values()]
        texts = [*PROOF, *words]
        for word in words:
            texts += [f"a{word}b", f" {word} {word}{word}. {word.upper()}{word.lower()}"]
        ids, offsets = tokenizer.encode_batch(texts, add_special_tokens=False, parallel=False)
        rows = [ids[start:stop].tolist() for start, stop in pairwise(offsets)]
        expected = self.core.encode_batch_fast(texts, add_special_tokens=False)
        return tokenizer if rows == [encoding.ids for encoding in expected] else None


def fill_json_lines(template: str, batch: TokenBatch, names: Sequence[str]) -> bytes:
    """Return JSON lines of a batch of arrays: the template with lists of ids for each `HOLE`.

    The template has a line and a hole per text; ``names`` are the columns, ``input_ids`` first.
    """
    offsets = batch.offsets.tolist()
    separator = 2**32 - 1  # not an id
    separated = np.insert(batch.ids, batch.offsets[1:-1], separator)
    ids = orjson.dumps(separated, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    if 0 in batch.lengths:  # separators beside empty rows share a comma
        columns = [[numbers.strip(b",") for numbers in ids.split(b"%d" % separator)]]
    else:
        columns = [ids.split(b",%d," % separator)]
    for name in names[1:]:
        values = batch.columns[name]  # single digits
        key = b'],"%s":[' % name.encode()
        if len(values) and values.min() == values.max():  # one string for each length
            digit = b",%d" % values[0]
            list_by_length = {length: key + (digit * length)[1:] for length in {*batch.lengths}}
            columns.append([list_by_length[length] for length in batch.lengths])
            continue
        digits = np.full(2 * len(values), ord(","), np.uint8)
        digits[1::2] = values + ord("0")
        flat = digits.tobytes()
        rows = pairwise(offsets)
        columns.append([key + flat[2 * start + 1 : 2 * stop] for start, stop in rows])
    # A line is its template before the hole, then the lists, then its template after it.
    step = 1 + len(columns)
    pieces = [b""] * (step * len(batch) + 1)
    pieces[::step] = template.encode().split(b"\0")
    for position, column in enumerate(columns, 1):
        pieces[position::step] = column
    return b"".join(pieces)
