"""Which files of a model are needed for what, and what a folder lacks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from glob import escape as glob_escape
from os.path import isfile  # unlike Path.is_file, false where looking is not allowed
from pathlib import Path
from typing import Any

from bertcli.errors import ModelError
from bertcli.files.typed_json import TEXT, is_text, read_object, read_objects

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


def weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> file name of an index of weights; ModelError when it is not one."""
    suffix = Path(index.name.removesuffix(".index.json")).suffix

    def is_shard(name: Any) -> bool:
        beside = is_text(name) and "\0" not in name and Path(name).name == name
        return beside and name.endswith(suffix)

    content = read_object(index)
    content.needed("weight_map", lambda value: value not in (None, {}), "tensors and their files")
    shards = content.object("weight_map")
    shards.check_keys(is_text, "tensor names as keys")
    expected = f"the name of a {suffix} file beside it"
    return {name: shards.needed(name, is_shard, expected) for name in shards}


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
        return sorted(filter(isfile, {*folder.glob(TENSORFLOW), *folder.glob(TENSORFLOW_DATA)}))
    try:
        shards = _shards(folder / name) if name.endswith(".index.json") else []
    except ModelError:
        shards = []
    return [folder / name, *(folder / shard for shard in shards if isfile(folder / shard))]


def model_files(*folders: Path) -> list[Path]:
    """Return the files that a model in these folders is read from, whatever lies beside them."""
    named = {path for folder in folders for name in MODEL_FILES for path in folder.glob(name)}
    return sorted({*named, *(path for folder in folders for path in weight_files(folder))})


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


def lacking(folder: Path, files: Iterable[str], *, strict: bool = False) -> str | None:
    """Name the first thing missing in `folder` without which `files` cannot do their work.

    A broken list of what else is needed counts as missing; with ``strict`` it is a ModelError.
    """
    files = tuple(files)
    if missing := none_of(files, partial(_has, folder)):
        return missing
    if set(files).isdisjoint(WEIGHTS):
        return None
    name = next((name for name in WEIGHTS if isfile(folder / name)), None)
    if name is None and (gap := _lacking_data(folder)):
        return gap
    for listing, check in ((name or "nothing", _lacking_shard), (MODULES, _lacking_pooling)):
        try:
            if gap := check(folder / listing):
                return gap
        except ModelError:
            if strict:
                raise
            return f"readable {listing}"
    return None


def _has(folder: Path, name: str) -> bool:
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


def _lacking_shard(weights: Path) -> str | None:
    if not weights.name.endswith(".index.json"):
        return None
    return next((s for s in _shards(weights) if not isfile(weights.parent / s)), None)


def _shards(index: Path) -> list[str]:
    return sorted(set(weight_map(index).values()))


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


def _lacking_pooling(modules: Path) -> str | None:
    """Name a missing pooling config: without it the vectors would be wrong, and in silence."""
    entries = read_objects(modules)
    kinds = [entry.needed("type", *TEXT) for entry in entries]
    parts = [entry.needed("path", *TEXT) for entry in entries]
    pooling = [part for kind, part in zip(kinds, parts, strict=True) if kind.endswith(".Pooling")]
    configs = [f"{part}/config.json" for part in pooling]
    return next((config for config in configs if not isfile(modules.parent / config)), None)
