"""Which files of a model are needed for what, and what a folder lacks of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from glob import escape as glob_escape
from os.path import isfile  # unlike Path.is_file, false where looking is not allowed
from pathlib import Path
from typing import Any

TOKENIZERS = ("tokenizer.json", "vocab.txt")
CONFIGS = ("config.json", "bert_config.json")
WEIGHTS = (  # best first; an index names its shards
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TENSORFLOW = "*.ckpt*.index"  # Google's own checkpoints; they count where there is nothing better
TENSORFLOW_DATA = "*.ckpt*.data-*-of-*"
MODULES = "modules.json"  # of sentence-transformers: which parts follow the transformer

TOKENIZER_FILES: tuple[str, ...] = (
    *TOKENIZERS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    *CONFIGS,
    "sentence_bert_config.json",
)
MODEL_FILES: tuple[str, ...] = (
    *TOKENIZER_FILES,
    MODULES,
    "config_sentence_transformers.json",
    "[0-9]*_*/config.json",  # 1_Pooling and what else modules.json names
    *WEIGHTS,
    "model-*-of-*.safetensors",
    "pytorch_model-*-of-*.bin",
    TENSORFLOW,
    TENSORFLOW_DATA,
)

NOT_NAMED = (".index.json", TENSORFLOW)  # in a message about what is missing

# What reading a JSON file and looking into it raises when it is unreadable or of another shape.
BAD_JSON = (OSError, ValueError, LookupError, TypeError, AttributeError)


def read_json(path: Path) -> Any:
    """Parse a JSON file; one that is missing or broken raises one of BAD_JSON."""
    return json.loads(path.read_bytes())


def pick(files: Iterable[str], names: Iterable[str]) -> list[str]:
    """Choose from the names in a repository those that `files` ask for, each thing only once."""
    patterns = tuple(files)
    found = [name for name in names if _matches(name, patterns)]
    weights = next((name for name in WEIGHTS if name in found), "")
    spare: list[str] = []  # beginnings of names that something better in `found` replaces
    if "tokenizer.json" in found:
        spare += ["vocab.txt"]
    if weights == "model.safetensors":
        spare += ["model-", "model.safetensors.index.json"]
    if weights == "pytorch_model.bin":
        spare += ["pytorch_model-", "pytorch_model.bin.index.json"]
    if weights.startswith("model"):
        spare += ["pytorch_model"]
    kept = [name for name in found if not name.startswith(tuple(spare))]
    return [name for name in kept if not (of_tensorflow(name) and (weights or "/" in name))]


def of_tensorflow(name: str) -> bool:
    """Tell whether a file is of a TensorFlow checkpoint."""
    return _matches(name, (TENSORFLOW, TENSORFLOW_DATA))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, those of the best format only."""
    name = next((name for name in WEIGHTS if isfile(folder / name)), None)
    if name is None:
        return sorted({*folder.glob(TENSORFLOW), *folder.glob(TENSORFLOW_DATA)})
    try:
        shards = _shards(folder / name) if name.endswith(".index.json") else []
    except BAD_JSON:
        shards = []
    return [folder / name, *(folder / shard for shard in shards if isfile(folder / shard))]


def none_of(files: Iterable[str], has: Callable[[str], bool]) -> str | None:
    """Name the first kind of file that `files` cannot do without and of which there is none.

    `has` is asked about names, and about patterns of names.
    """
    wanted = set(files)
    kinds: list[tuple[str, ...]] = [TOKENIZERS] if wanted.issuperset(TOKENIZERS) else []
    if not wanted.isdisjoint(WEIGHTS):
        kinds += [CONFIGS, (*WEIGHTS, TENSORFLOW)]
    missing: tuple[str, ...] = next((kind for kind in kinds if not any(map(has, kind))), ())
    return " or ".join(name for name in missing if not name.endswith(NOT_NAMED)) or None


def lacking(folder: Path, files: Iterable[str]) -> str | None:
    """Name the first thing missing in `folder` without which `files` cannot do their work."""
    files = tuple(files)
    if missing := none_of(files, partial(_has, folder)):
        return missing
    if set(files).isdisjoint(WEIGHTS):
        return None
    return _lacking_shard(folder) or _lacking_pooling(folder)


def _has(folder: Path, name: str) -> bool:
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


def _lacking_shard(folder: Path) -> str | None:
    name = next((name for name in WEIGHTS if isfile(folder / name)), None)
    if name is None:
        return _lacking_data(folder)
    if not name.endswith(".index.json"):
        return None
    try:
        return next((shard for shard in _shards(folder / name) if not isfile(folder / shard)), None)
    except BAD_JSON:
        return f"readable {name}"


def _shards(index: Path) -> list[str]:
    return sorted(set(read_json(index)["weight_map"].values()))


def _lacking_data(folder: Path) -> str | None:
    """Name a missing data file of TensorFlow's: each says of how many it is one."""
    for index in sorted(folder.glob(TENSORFLOW)):
        prefix = index.name.removesuffix(".index")
        data = sorted(folder.glob(f"{glob_escape(prefix)}.data-*-of-*"))
        end = data[0].name[-5:] if data else "00001"
        for shard in range(int(end) if end.isdecimal() else 0):
            name = f"{prefix}.data-{shard:05}-of-{end}"
            if not isfile(folder / name):
                return name
    return None


def _lacking_pooling(folder: Path) -> str | None:
    """Name a missing pooling config: without it the vectors would be wrong, and in silence."""
    if not isfile(folder / MODULES):
        return None
    try:
        parts = [part["path"] for part in read_json(folder / MODULES) if _is_pooling(part["type"])]
        configs = [f"{part}/config.json" for part in parts]
        return next((config for config in configs if not isfile(folder / config)), None)
    except BAD_JSON:
        return f"readable {MODULES}"


def _is_pooling(kind: str) -> bool:
    return kind.endswith(".Pooling")
