"""What others left, broken: caches of the hub, tokenizers."""

import json
import random
import shutil
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

from front import json_in, put_json

from .folders import JSON_IDS, LINES, TEXTS, add_file, mutate_file, ordinary, replace_file
from .grammar import Command, command
from .values import mutated_json

COMMIT = "0123456789abcdef" * 2 + "01234567"


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make what a case begins with, in ``case``, and return what is run over it."""
    dice = random.Random(f"state {seed}")
    (make,) = dice.choices([_cache, _tokenizer], [1, 2])
    return make(dice, sound, case)


def _cache(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return commands that find a model in a cache which is not as the hub leaves it."""
    repository = case / "hub" / "models--org--bert"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(sound / dice.choice(["tiny", "sentence", "json"]), snapshot)
    listing = {"files": {path.name: {"size": path.stat().st_size} for path in snapshot.iterdir()}}
    trees = mutated_json(listing, dice) if dice.random() < 0.3 else json.dumps(listing)
    for name, content in (
        ("refs/main", COMMIT),
        (f"trees/{COMMIT}.json", trees),
        (f".no_exist/{COMMIT}/modules.json", ""),
    ):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(content, "utf-8", "replace")
    if dice.random() < 0.2:
        add_file(snapshot, dice)
    root = dice.choice([repository, repository / "refs", repository / "trees"])
    for _ in range(dice.choice([1, 1, 3])):
        files = [path for path in sorted(root.rglob("*")) if ordinary(path)]
        if files:
            (replace_file if dice.random() < 0.5 else mutate_file)(dice.choice(files), dice)
    env = {"HF_HUB_CACHE": str(case / "hub")}
    return [command(dice, "cached")._replace(env=env), Command(["models", "-f", "jsonl"], env=env)]


# --- tokenizers ---------------------------------------------------------------------------------

LONG = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \u4e2d\ufb01 \u2167"
PATTERNS = ["(a+)+$", "(x+x+)+y", "", "a*", "(?=a)", "(a|aa)+$", "[", "\\p{L}", "(?<a>a)"]
PARTS = "Prepend StripAccents NFKD Lowercase Nmt Whitespace BertPreTokenizer Fuse ByteFallback"
PARTS += " WordPiece BPEDecoder"


def _charsmap(dice: random.Random) -> str:
    """Return a double array whose units lead anywhere, and the texts that they stand for."""
    count = dice.choice([0, 1, 4, 256, 512])
    units = [dice.choice([0, dice.getrandbits(32), dice.getrandbits(12)]) for _ in range(count)]
    size = 4 * count if dice.random() < 0.8 else dice.getrandbits(32)
    tail = dice.choice([b"", b"a\0", b"\xff", "\u4e2d\0".encode()])
    return b64encode(struct.pack(f"<I{count}I", size, *units) + tail).decode()


def _part(dice: random.Random, list_key: str) -> dict[str, Any]:
    regex = {"Regex": dice.choice(PATTERNS)}
    match dice.randrange(6):
        case 0 | 1:
            pattern = dice.choice([{"String": dice.choice(["a", "", "##"])}, regex])
            content = dice.choice(["", "a" * 10, "\u4e2d", "a" * 100_000, " a "])
            return {"type": "Replace", "pattern": pattern, "content": content}
        case 2:
            return {"type": "Sequence", list_key: [_part(dice, list_key)] * dice.choice([0, 1, 30])}
        case 3:
            return {"type": "Precompiled", "precompiled_charsmap": _charsmap(dice)}
        case 4:
            kind = dice.choice(PARTS.split())
            return {"type": kind, "prepend": "a" * 9, "prefix": "", "cleanup": False, "suffix": "a"}
    behaviour = dice.choice(["Isolated", "Removed", "MergedWithPrevious", "Contiguous"])
    split = {"type": "Split", "pattern": regex, "behavior": behaviour}
    return {**split, "invert": dice.random() < 0.3}


def _tokenizer(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return commands that read a tokenizer.json which asks for what the library cannot do."""
    folder = Path(shutil.copytree(sound / "json", case / "model"))
    described = json_in(folder / "tokenizer.json")
    keys = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    for key in dice.sample([*keys], dice.choice([1, 1, 2])):
        described[key] = _part(dice, keys[key])
    if dice.random() < 0.3:
        content = dice.choice(["a", "", " ", "a" * 1000, "[CLS]", "\u4e2d"])
        added = {"id": dice.choice([0, 1, 346, 10**6, 2**32 - 1]), "content": content}
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], True)
        described["added_tokens"].append({**added, **flags})
    if dice.random() < 0.2:
        odd = {"max_input_chars_per_word": 2**62, "continuing_subword_prefix": "", "vocab": {}}
        key = dice.choice([*odd])
        described["model"][key] = odd[key]
    put_json(folder / "tokenizer.json", described)
    (case / "in.txt").write_bytes(LINES + (LONG + "\n").encode())
    return [command(dice, "tokenizer", texts=[LONG, *TEXTS])._replace(stdin=JSON_IDS)]
