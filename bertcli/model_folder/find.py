"""Find the folder of a model: a given folder, an installed package, the cache, or the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from bertcli.errors import ModelError, UsageError, option
from bertcli.model_folder.files import ADAPTER, MODEL_FILES, MODULES, TOKENIZER_FILES, WEIGHTS
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import (
    ALIASES,
    CARRIER,
    CARRIER_PACKAGE,
    CARRIERS,
    cache_root,
    cached_models,
    check_id,
    describe_graph,
    find_snapshot,
    lacking,
    none_of,
    pick,
    pooling_unknown,
    repository,
    suggestion,
    unfinished,
)
from bertcli.versions import pip_command

OFFLINE = ("BERTCLI_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")  # environment variables
YES = ("1", "true", "yes", "on")


def find_model(
    name: str,
    *,
    files: Sequence[str] = TOKENIZER_FILES,
    revision: str | None = None,
    offline: bool = False,
) -> ModelFolder:
    """Return the folder of a model that contains `files`; download missing files as a last resort.

    `files` are names or patterns; of alternatives (weights in several formats) the best one is
    enough. Raises ModelError if the model is not found or incomplete.
    """
    place = os.path.expanduser(name)
    if os.path.isdir(place):
        return _given(name, Path(place), files, revision)
    check_id(name, place)
    name = ALIASES.get(name, name)
    if revision is None and (installed := carried(name, files)):
        return installed
    snapshot = find_snapshot(name, revision or "main")
    gap = unfinished(snapshot, files) if snapshot else None
    cached = ModelFolder(snapshot, name, "cache", snapshot.name) if snapshot and not gap else None
    if offline or any(os.environ.get(name, "").lower() in YES for name in OFFLINE):
        if cached:
            return cached
        if not snapshot:
            install = f"{pip_command()} {CARRIER}" if name in CARRIERS else "give a folder"
            raise ModelError(
                f"model {name!r} is not a folder, not installed and not in the cache "
                f"{cache_root()} (revision {revision or 'main'!r}), and the network is off",
                f"{suggestion(name)}{_online()}, or {install}",
            )
        raise ModelError(
            f"model {name!r} is incomplete in the cache: {gap} is missing in {snapshot}",
            f"{_online()} to fetch the rest",
        )
    if cached and not pooling_unknown(cached.path, files):
        return cached
    return _from_hub(name, files, revision, cached)


def _online() -> str:
    """Return the instruction for turning the network on again."""
    names = [name for name in OFFLINE if os.environ.get(name, "").lower() in YES]
    return f"run once without {' and '.join([f'{name}=1' for name in names]) or option('offline')}"


def _given(name: str, path: Path, files: Sequence[str], revision: str | None) -> ModelFolder:
    if revision is not None:
        raise UsageError(
            f"model {name!r} is a folder, which has no revision {revision!r}",
            f"leave out {option('revision')}, or give a hub id",
        )
    folder = ModelFolder(path, name)
    gap = lacking(folder, files)
    if gap is None:
        return folder
    if graph := describe_graph(folder, files):
        content, hint = graph
        raise ModelError(f"model folder {name!r} has {content}", hint)
    raise ModelError(
        f"model folder {name!r} has no {gap}",
        "give a hub id, or a folder that can be read, as save_pretrained writes it",
    )


def carried(name: str, files: Sequence[str]) -> ModelFolder | None:
    """Return the folder of an installed carrier, without importing the carrier.

    Its import would import sentence-transformers.
    """
    if name not in CARRIERS:
        return None
    from importlib.util import find_spec

    module, inside = CARRIERS[name]
    spec = find_spec(module)
    for place in (spec and spec.submodule_search_locations) or ():
        folder = ModelFolder(Path(place, inside), name, f"installed package {module}")
        if lacking(folder, files) is None:
            return folder
    return None


def _from_hub(
    name: str, files: Sequence[str], revision: str | None, cached: ModelFolder | None
) -> ModelFolder:
    """Download the files that are not in the cache; if that fails, return the cached copy."""
    from bertcli.model_folder.download import download

    def choose(names: Sequence[str]) -> list[str]:
        # A table of token vectors needs no config; modules.json identifies it after the download.
        config = MODULES not in names
        if pick([ADAPTER], names) and not set(files).isdisjoint(WEIGHTS):
            raise ModelError(
                f"model {name!r} is an adapter of another model, not a whole one ({ADAPTER})",
                "merge it with peft (merge_and_unload), save it, and give that folder",
            )
        if gap := none_of(files, lambda name: bool(pick([name], names)), config=config):
            raise ModelError(f"model {name!r} has no {gap} on the hub", "choose a BERT model")
        return pick(files, names)

    try:
        path = download(name, revision, cache_root(), choose)
    except ModelError:
        if cached is None:
            raise
        return cached
    if gap := unfinished(path, files):
        raise ModelError(
            f"model {name!r} was downloaded without {gap}",
            f"its repository is incomplete: choose another {option('revision')} or model",
        )
    return ModelFolder(path, name, "hub", path.name)


def download_model(name: str, revision: str | None = None) -> ModelFolder:
    """Download the files of a model that bertcli uses from the hub to its cache.

    Unlike `find_model`, it always checks the hub for the newest commit. Raises UsageError for a
    folder, for an installed model, and if the environment forbids network access.
    """
    full_name = hub_id(name)
    if revision is None and (installed := carried(full_name, MODEL_FILES)):
        raise UsageError(
            f"model {full_name!r} is installed as a package, in {installed.path}",
            f"use it as it is; {pip_command('uninstall')} {CARRIER_PACKAGE} uninstalls it",
        )
    switches = [f"{switch}=1" for switch in OFFLINE if os.environ.get(switch, "").lower() in YES]
    if switches:
        raise UsageError(f"a download needs the network: {' and '.join(switches)}", _online())
    return _from_hub(full_name, MODEL_FILES, revision, None)


def hub_id(name: str) -> str:
    """Return the full id of a model on the hub. Raises UsageError for a folder."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        raise UsageError(
            f"{name} is a folder, not a model on the hub",
            f"-m {quote(name)} uses it; it is not in the hub's cache",
        )
    check_id(name, path)
    return ALIASES.get(name, name)


class StoredModel(NamedTuple):
    """A model on this machine."""

    name: str  # id on the hub
    state: str  # installed or cached
    path: Path
    size: int  # in bytes
    folder: ModelFolder | None  # None if the cache has no file of the main revision


def stored_models() -> list[StoredModel]:
    """Return the models on this machine, installed ones first."""
    models = []
    for name in CARRIERS:
        if folder := carried(name, ()):
            size = stored_size(folder.path)
            models.append(StoredModel(name, "installed", folder.path, size, folder))
    for name in cached_models():
        path = repository(name)
        size = stored_size(path)
        snapshot = find_snapshot(name, "main")
        folder = ModelFolder(snapshot, name, "cache", snapshot.name) if snapshot else None
        models.append(StoredModel(name, "cached", path, size, folder))
    return models


def linked_size(folder: Path) -> int:
    """Return the total size in bytes of the files below a folder, following links."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def stored_size(folder: Path) -> int:
    """Return the size in bytes of the files below a folder, without links."""
    paths = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return sum(path.lstat().st_size for path in paths if not path.is_symlink())
