"""Texts for testing tokenizers: many scripts, and unusual characters.

``texts`` is a Hypothesis strategy, which shrinks failures; ``composed`` makes thousands at once.
"""

import importlib.util
import os
import random
import shutil
from itertools import islice
from pathlib import Path

from hypothesis import strategies as st

VOCABULARIES = {"uncased": True, "cased": False, "multi_cased": False, "chinese": True}  # lowered?

REAL = [
    "I love NLP!",
    "I don't like NLP. blah blah blah blah blah",
    "The U.S. of A. -- isn't it $3.50, 50% off? (yes/no) [sic] {x} <b>bold</b> e-mail@x.org",
    "Straße, Weißbier, GRÜẞE, Fußgängerübergänge; naïve café, Ångström, œuvre, ﬁne ﬂow",
    "İstanbul'da ılık bir gün, IĞDIR ile Iğdır, DİYARBAKIR",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ёлка йод ЇЖАК",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία ΣΊΣΥΦΟΣ ᾳ ΐ",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر، السَّلَامُ عَلَيْكُمْ ؟ ١٢٣ لا",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה שָׁלוֹם",
    "नहीं नजर किसी की बुरी नहीं किसी का मुँह काला जो करे सो उपर वाला क्षत्रिय १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ᄒᆞᆫ글 ㅋㅋㅋ 가나다",
    "いろはにほへと ちりぬるを ｶﾀｶﾅ カタカナ 東京都庁 ガ が 々〆〇",
    "我能吞下玻璃而不伤身体。㐀㐁 𠀀𠀁 繁體中文，「引號」 你好world世界abc豈",
    "Tiếng Việt có dấu: ngã, hỏi, nặng. ĐẶNG Thị Hồng",
    "ⴰⵣⵓⵍ ამოღება ՀԱՅԵՐԵՆ ᏣᎳᎩ ᓀᐦᐃᔭᐍᐏᐣ አማርኛ မြန်မာ ខ្មែរ ລາວ සිංහල தமிழ் తెలుగు ಕನ್ನಡ മലയാളം",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣ #️⃣ 😀😀😀 ©®™ ½ ² ₂ ① Ⅻ ㍿ ℌ 𝓗𝕖𝔩𝔩𝔬 Ａｂｃ　１２３",
    "https://example.org/a_b?c=d&e=%20#f C:\\dir\\file.txt --flag=value x=y+z*3^2 ~/.bashrc `code`",
]

PIECES = [
    *("[SEP]", "[MASK]", "[CLS]", "[PAD]", "[UNK]", "[sep]", "[mask]", "[ SEP ]", "[SEP", "SEP]"),
    *("<s>", "</s>", "<mask>", "<pad>", "<unk>", "<s", "< s >", "▁", "Ġ", "<0x41>", "<unk>NOTUSED"),
    *("[[SEP]]", "[unused1]", "[SEP][SEP]", "##", "##ing", "# #", "###", "'s", "n't", "...", "--"),
    *("\t", "\r", "\n", "\r\n", "\v", "\f", "\x00", "\x01", "\x1c", "\x1f", "\x7f", "\x80", "\x85"),
    *("\u00a0", "\u00ad", "\u200b", "\u200c", "\u200d", "\u200e", "\u202e", "\u2028", "\u2029"),
    *("\u3000", "\u2009", "\u1680", "\ufeff", "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\ue000"),
    *("\u0301", "\u0308\u0301", "e\u0301", "\u0345", "\u0130", "i\u0307", "ß", "ẞ", "ſ", "K", "Å"),
    *("\U0001d400", "\U00020000", "\U0002fa1d", "\U0010ffff", "\U000e0041", "\U0001f468\u200d"),
    *("\u1100\u1161\u11a8", "각", "\uac01\u0301", "\u4e00", "\u3007", "\uf900", "\u30fc", "々"),
    *("a" * 100, "b" * 101, "ab" * 90, "x1" * 300, "\u4e00" * 120, "é" * 101, "1" * 100 + "."),
    *("a" * 99 + "É", "A" * 100, "_" * 120, "👍" * 101, "ö\u0308" * 60),
    *(chr(n) for n in range(0x21, 0x7F) if not chr(n).isalnum()),
]

_BLOCKS = [
    *((0x20, 0x7E), (0x20, 0x7E), (0x20, 0x7E), (0, 0xFF), (0x100, 0x24F), (0x250, 0x36F)),
    *((0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F)),
    *((0x1100, 0x11FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x20D0, 0x20FF)),
    *((0x2100, 0x214F), (0x2E80, 0x2FDF), (0x3000, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xF900, 0xFFFF), (0x10000, 0x1D7FF)),
    *((0x1F300, 0x1FAFF), (0x20000, 0x2FA1F), (0xE0000, 0x10FFFF)),
]

_letters = st.sampled_from(_BLOCKS).flatmap(
    lambda block: st.text(st.characters(min_codepoint=block[0], max_codepoint=block[1]), max_size=8)
)
_fragments = st.one_of(st.sampled_from(PIECES), st.sampled_from(" ".join(REAL).split()), _letters)
texts = st.builds(
    lambda parts: "".join(part + gap for part, gap in parts),
    st.lists(st.tuples(_fragments, st.sampled_from(["", " ", " ", "  "])), max_size=8),
)
words = st.lists(st.one_of(_fragments, st.just("")), max_size=6)


def composed(seed: int, count: int) -> list[str]:
    """Return texts of real words, unusual pieces and random characters, fixed by the seed."""
    dice = random.Random(seed)
    real = " ".join(REAL).split()

    def fragment() -> str:
        kind = dice.random()
        if kind < 0.5:
            word = dice.choice(real)
            return dice.choice((word, word, word.upper(), word.title(), word[::-1]))
        if kind < 0.75:
            return dice.choice(PIECES)
        low, high = dice.choice(_BLOCKS)
        return "".join(chr(dice.randint(low, high)) for _ in range(dice.randint(1, 6)))

    def text() -> str:
        parts = (fragment() + dice.choice(("", " ", " ")) for _ in range(dice.randint(0, 12)))
        return "".join(parts)

    return [*REAL, *(text() for _ in range(count))]


def english(seed: int, count: int) -> list[str]:
    """Return texts of printable ASCII only, for which the tokenizer has a fast path."""
    dice = random.Random(seed)
    known = [word for word in " ".join(REAL).split() if word.isascii()]
    known += [piece for piece in PIECES if piece.isascii() and piece.isprintable()]

    def text() -> str:
        words = (dice.choice(known) + dice.choice(("", " ", "  ")) for _ in range(15))
        return "".join(islice(words, dice.randint(0, 15)))

    return [text() for _ in range(count)]


def vocabulary_file(name: str) -> Path:
    """Return a vocab.txt of Google's BERT models, located without importing its package."""
    found = importlib.util.find_spec("bert_service")
    assert found and found.submodule_search_locations, "the test extra brings bert-service"
    return Path(found.submodule_search_locations[0], "vocab", f"{name}_vocab.txt")


def real_lines(most: int) -> list[str]:
    """Return the first ``most`` lines of the file BERTCLI_TEST_CORPUS, or [] if it is not set."""
    corpus = os.environ.get("BERTCLI_TEST_CORPUS")
    return Path(corpus).read_text("utf-8").split("\n")[:most] if corpus else []


def copy_vocabulary(name: str, folder: Path) -> Path:
    """Create a folder that contains only a vocab.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(vocabulary_file(name), folder / "vocab.txt")
    return folder
