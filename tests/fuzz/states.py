"""What others left, broken: caches of the hub, tokenizers; and threads."""

import json
import os
import random
import shutil
import struct
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .folders import LINES, TEXTS, Command, add_file, mutate_file, ordinary, replace_file
from .inputs import text
from .values import mutated_json

COMMIT = "0123456789abcdef" * 2 + "01234567"
RUNS = (["tokenize", "a word"], ["embed", "a word"], ["inspect", "--verify"], ["inspect", "--json"])


def build(seed: int, sound: Path, case: Path) -> list[Command]:
    """Make what a case begins with, in ``case``, and return what is run over it."""
    dice = random.Random(f"state {seed}")
    make = dice.choices([_cache, _tokenizer, _threads], [4, 8, 1])[0]
    return make(dice, sound, case)


def _break(root: Path, dice: random.Random) -> None:
    """Change one to three files below a folder, or put something else in their place."""
    for _ in range(dice.choice([1, 1, 3])):
        files = [path for path in sorted(root.rglob("*")) if ordinary(path)]
        if files:
            path = dice.choice(files)
            (replace_file if dice.random() < 0.5 else mutate_file)(path, dice)


# --- the cache of the hub -----------------------------------------------------------------------


def _cache(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return commands that find a model in a cache which is not as the hub leaves it."""
    repository = case / "hub" / "models--org--bert"
    snapshot = repository / "snapshots" / COMMIT
    shutil.copytree(sound / dice.choice(["tiny", "sentence", "json"]), snapshot)
    sizes = {path.name: {"size": path.stat().st_size} for path in snapshot.iterdir()}
    listing = {"files": sizes}
    for name, content in (
        ("refs/main", COMMIT),
        (f"trees/{COMMIT}.json", json.dumps(listing)),
        (f".no_exist/{COMMIT}/modules.json", ""),
    ):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(content)
    if dice.random() < 0.3:
        (repository / f"trees/{COMMIT}.json").write_text(
            mutated_json(listing, dice), "utf-8", "replace"
        )
    if dice.random() < 0.2:
        add_file(snapshot, dice)
    _break(dice.choice([repository, repository / "refs", repository / "trees"]), dice)
    env = {"HF_HUB_CACHE": str(case / "hub")}
    model = dice.choice([["-m", "org/bert"]] * 3 + [["-m", "org/bert", "--revision", "v1"]])
    return [
        Command([*dice.choice(RUNS), *model, "--offline"], env=env),
        Command(["models", "--json"], env=env),
    ]


# --- tokenizers ---------------------------------------------------------------------------------

LONG = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \u4e2d\ufb01 \u2167"


def _replace(dice: random.Random) -> dict[str, Any]:
    pattern = dice.choice([{"String": dice.choice(["a", "", "##"])}, {"Regex": _regex(dice)}])
    content = dice.choice(["", "a" * 10, "\u4e2d", "a" * 100_000, " a "])
    return {"type": "Replace", "pattern": pattern, "content": content}


def _regex(dice: random.Random) -> str:
    return dice.choice(
        ["(a+)+$", "(x+x+)+y", "", "a*", "(?=a)", "(a|aa)+$", "[", "\\p{L}", "(?<a>a)"]
    )


def _charsmap(dice: random.Random) -> str:
    """Return a double array whose units lead anywhere, and the texts that they stand for."""
    count = dice.choice([0, 1, 4, 256, 512])
    units = [dice.choice([0, dice.getrandbits(32), dice.getrandbits(12)]) for _ in range(count)]
    size = 4 * count if dice.random() < 0.8 else dice.getrandbits(32)
    tail = dice.choice([b"", b"a\0", b"\xff", "\u4e2d\0".encode()])
    return b64encode(struct.pack(f"<I{count}I", size, *units) + tail).decode()


def _part(dice: random.Random, list_key: str) -> dict[str, Any]:
    match dice.randrange(6):
        case 0 | 1:
            return _replace(dice)
        case 2:
            return {"type": "Sequence", list_key: [_part(dice, list_key)] * dice.choice([0, 1, 30])}
        case 3:
            return {"type": "Precompiled", "precompiled_charsmap": _charsmap(dice)}
        case 4:
            kinds = "Prepend StripAccents NFKD Lowercase Nmt Whitespace BertPreTokenizer Fuse"
            kind = dice.choice([*kinds.split(), "ByteFallback", "WordPiece", "BPEDecoder"])
            return {"type": kind, "prepend": "a" * 9, "prefix": "", "cleanup": False, "suffix": "a"}
    behaviour = dice.choice(["Isolated", "Removed", "MergedWithPrevious", "Contiguous"])
    split = {
        "pattern": {"Regex": _regex(dice)},
        "behavior": behaviour,
        "invert": dice.random() < 0.3,
    }
    return {"type": "Split", **split}


def _tokenizer(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return commands that read a tokenizer.json which asks for what the library cannot do."""
    folder = Path(shutil.copytree(sound / "json", case / "model"))
    described = json.loads((folder / "tokenizer.json").read_text())
    keys = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
    for key in dice.sample([*keys], dice.choice([1, 1, 2])):
        described[key] = _part(dice, keys[key])
    if dice.random() < 0.3:
        content = dice.choice(["a", "", " ", "a" * 1000, "[CLS]", "\u4e2d"])
        added = {"id": dice.choice([0, 1, 346, 10**6, 2**32 - 1]), "content": content}
        flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized", "special"], True)
        described["added_tokens"].append({**added, **flags})
    if dice.random() < 0.2:
        described["model"] |= dice.choice(
            [{"max_input_chars_per_word": 2**62}, {"continuing_subword_prefix": ""}, {"vocab": {}}]
        )
    (folder / "tokenizer.json").write_text(json.dumps(described))
    (case / "in.txt").write_bytes(LINES + (LONG + "\n").encode())
    ids = b'{"input_ids":[101,5,7,102]}\n'
    run = dice.choice(
        [
            Command(["tokenize", LONG, *TEXTS]),
            Command(["tokenize", "-i", "in.txt", "--offsets"]),
            Command(["embed", LONG]),
            Command(["chunk", "-i", "in.txt", "--size", "8"]),
            Command(["decode"], ids),
            Command(["inspect", "--tokenizer"]),
        ]
    )
    return [run._replace(argv=[*run.argv, "-m", "model"])]


# --- threads ------------------------------------------------------------------------------------


def _threads(dice: random.Random, sound: Path, case: Path) -> list[Command]:
    """Return calls from several threads, whose vectors are those of one."""
    lists = [[text(dice) or "a" for _ in range(dice.choice([1, 2, 9]))] for _ in range(12)]
    compare = partial(_compared, str(sound / "tiny"), lists, dice.choice(["torch", "auto"]))
    return [Command(["embed", "a", "-m", str(sound / "tiny")], after=compare)]


def _compared(model: str, lists: list[list[str]], backend: str, place: Path) -> None:
    from bertcli import Embedder

    os.environ["BERTCLI_CACHE"] = str(place / "cache")
    embedder = Embedder.load(model, backend=backend)
    alone = [embedder.encode(texts) for texts in lists]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(embedder.encode, lists))
    for expected, found in zip(alone, together, strict=True):
        assert np.array_equal(expected, found), "vectors of another thread"
