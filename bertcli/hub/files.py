"""Which files of a model are fetched, and what a folder lacks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from os.path import isfile  # unlike Path.is_file, false where looking is not allowed
from pathlib import Path

from bertcli.checkpoints.scan import (
    CONFIGS,
    GRAPHS,
    MERGES,
    MODULES,
    PART,
    SHARDS,
    STATIC,
    TENSORFLOW,
    TENSORFLOW_DATA,
    TOKENIZERS,
    WEIGHTS,
    UnsupportedModel,
    bert_folder,
    best_weights,
    find_weights,
    read_modules,
)
from bertcli.errors import ModelError

# In a message about what is missing.
NOT_NAMED = (".index.json", TENSORFLOW, "vocab.json", ".model", ".xml")


def pick(files: Iterable[str], names: Iterable[str]) -> list[str]:
    """Choose from the names in a repository those that `files` ask for, each thing only once.

    Where a sentence model keeps its BERT in a part of its own, that part is looked through as well.
    """
    patterns, names = tuple(files), list(names)
    part = _part_of(names)
    inner = [name.removeprefix(part) for name in names if part and name.startswith(part)]
    of_part = [part + name for name in _pick(patterns, inner)]
    # What says where the BERT is belongs to it.
    return list(dict.fromkeys([*_pick(patterns, names), *of_part, *([MODULES] if of_part else [])]))


def _part_of(names: Sequence[str]) -> str:
    """Return where a repository keeps its BERT: "0_Transformer/", say; "" is the top."""
    if MODULES not in names or any(name in names for name in TOKENIZERS):
        return ""
    folders = [name.rpartition("/")[0] for name in names if name.endswith(TOKENIZERS)]
    parts = sorted(f"{folder}/" for folder in folders if _matches(folder, [PART]))
    return next((part for part in parts if part.count("/") == 1), "")


def _pick(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    matching = [name for name in names if _matches(name, patterns)]
    weights = best_weights(matching.__contains__)
    used = {weights, SHARDS.get(weights)} if weights else {TENSORFLOW, TENSORFLOW_DATA}
    spare = {*WEIGHTS, *SHARDS.values(), TENSORFLOW, TENSORFLOW_DATA} - used
    if TOKENIZERS[0] in matching:
        spare.update((*TOKENIZERS[1:], MERGES))
    picked = [name for name in matching if not _matches(name, spare)]
    return [name for name in picked if not ("/" in name and _is_spare(name, picked))]


def _is_spare(name: str, names: Sequence[str]) -> bool:
    """Tell whether a file in a part of the repository is there in a better format."""
    folder, _, last = name.rpartition("/")
    better = last == "pytorch_model.bin" and f"{folder}/model.safetensors" in names
    return better or of_tensorflow(name)


def of_tensorflow(name: str) -> bool:
    """Tell whether a file is of a TensorFlow checkpoint."""
    return _matches(name, (TENSORFLOW, TENSORFLOW_DATA))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


def none_of(files: Iterable[str], has: Callable[[str], bool], *, config: bool = True) -> str | None:
    """Name the first kind of file that `files` needs and that is missing.

    `has` is asked about names, and about patterns of names. A table of token vectors needs no
    ``config``.
    """
    asked = set(files)
    kinds: list[tuple[str, ...]] = [TOKENIZERS] if asked.issuperset(TOKENIZERS) else []
    if not asked.isdisjoint(WEIGHTS):
        kinds += [*([CONFIGS] if config else []), (*WEIGHTS, TENSORFLOW, *GRAPHS.values())]
    missing: tuple[str, ...] = next((kind for kind in kinds if not any(map(has, kind))), ())
    return " or ".join(name for name in missing if not name.endswith(NOT_NAMED)) or None


def lacking(folder: Path, files: Iterable[str], *, strict: bool = False) -> str | None:
    """Name the first file that `files` needs and `folder` lacks.

    A broken list of what else is needed counts as missing; with ``strict`` it is a ModelError.
    """
    files, listing = tuple(files), MODULES
    try:
        bert = bert_folder(folder)
        static = [module.kind for module in read_modules(folder)[:1]] == [STATIC]
        if missing := none_of(files, partial(_has, bert), config=not static):
            return missing if bert == folder else f"{missing} in {bert.relative_to(folder)}"
        if set(files).isdisjoint(WEIGHTS):
            return None
        listing = best_weights(lambda name: isfile(bert / name)) or TENSORFLOW
        gaps = [path for path in _weights(bert) if not isfile(path)]
        listing = MODULES
        modules = (module.path for module in read_modules(folder) if module.kind == "Pooling")
        configs = (folder / path / "config.json" for path in modules)  # else silently wrong vectors
        gaps += [path for path in configs if not isfile(path)]
    except UnsupportedModel:
        raise
    except ModelError:
        if strict:
            raise
        return f"readable {listing}"
    return gaps[0].relative_to(folder).as_posix() if gaps else None


def _has(folder: Path, name: str) -> bool:
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


def _weights(folder: Path) -> Iterator[Path]:
    """Yield the files with the weights. TensorFlow's data files are numbered 1 of N."""
    weights = find_weights(folder)
    yield from weights.files
    if weights.format == "tensorflow":
        index, *data = weights.files
        end = data[0].name[-5:] if data else "00001"
        for shard in range(int(end) if end.isdecimal() else 0):
            yield index.with_name(f"{index.stem}.data-{shard:05}-of-{end}")
