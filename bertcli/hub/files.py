"""Which files of a model are fetched, and what a folder lacks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from os.path import isfile  # unlike Path.is_file, false where looking is not allowed
from pathlib import Path

from bertcli.checkpoints.scan import (
    CONFIGS,
    MODULES,
    TENSORFLOW,
    TENSORFLOW_DATA,
    TOKENIZERS,
    WEIGHTS,
    find_weights,
    read_modules,
)
from bertcli.errors import ModelError

NOT_NAMED = (".index.json", TENSORFLOW)  # in a message about what is missing


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
    index = next((name for name in WEIGHTS if isfile(folder / name)), TENSORFLOW)
    for listing, needed in ((index, _weights), (MODULES, _pooling_configs)):
        try:
            gap = next((path for path in needed(folder) if not isfile(path)), None)
        except ModelError:
            if strict:
                raise
            return f"readable {listing}"
        if gap is not None:
            return gap.relative_to(folder).as_posix()
    return None


def _has(folder: Path, name: str) -> bool:
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


def _weights(folder: Path) -> Iterator[Path]:
    """Yield the files with the weights. Each data file of TensorFlow says of how many it is one."""
    weights = find_weights(folder)
    yield from weights.files
    if weights.format == "tensorflow":
        index, *data = weights.files
        end = data[0].name[-5:] if data else "00001"
        for shard in range(int(end) if end.isdecimal() else 0):
            yield index.with_name(f"{index.stem}.data-{shard:05}-of-{end}")


def _pooling_configs(folder: Path) -> Iterator[Path]:
    """Yield the configs of pooling: without them the vectors would be wrong, and in silence."""
    for module in read_modules(folder):
        if module.kind == "Pooling":
            yield folder / module.path / "config.json"
