"""Find the folder of a model: a given folder, an installed package, the cache, or the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from bertcli.errors import ModelError, UsageError, option
from bertcli.model_folder.files import ADAPTER, MODEL_FILES, MODULES, TOKENIZER_FILES
from bertcli.model_folder.folder import ModelFolder
from bertcli.model_folder.hub_cache import (
    ALIASES,
    CARRIER_PACKAGE,
    CARRIER_REQUIREMENT,
    CARRIERS,
    cache_root,
    cached_models,
    describe_graph,
    did_you_mean,
    find_snapshot,
    missing_alternatives,
    missing_file,
    missing_in_snapshot,
    needs_weights,
    pooling_unknown,
    refuse_invalid_id,
    repository_folder,
    select_files,
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
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return _given_folder(name, Path(path), files, revision)
    refuse_invalid_id(name)
    name = ALIASES.get(name, name)
    if revision is None and (installed := installed_model(name, files)):
        return installed
    folder = _cached_folder(name, revision)
    missing = None if folder is None else missing_in_snapshot(folder, files)
    if offline or offline_variables():
        if folder is None:
            requirement = f"{pip_command()} {CARRIER_REQUIREMENT}"
            alternative = requirement if name in CARRIERS else "give a folder"
            raise ModelError(
                f"model {name!r} is not a folder, not installed and not in the cache "
                f"{cache_root()} (revision {revision or 'main'!r}), and the network is off",
                f"{did_you_mean(name)}{how_to_go_online()}, or {alternative}",
            )
        if missing:
            raise ModelError(
                f"model {name!r} is incomplete in the cache: {missing} is missing in {folder}",
                f"{how_to_go_online()} to fetch the rest",
            )
        return folder
    if missing:
        folder = None
    if folder is not None and not pooling_unknown(folder.path, files):
        return folder
    return _from_hub(name, files, revision, folder)


def _cached_folder(name: str, revision: str | None) -> ModelFolder | None:
    """Return the folder of a revision in the cache, complete or not; by default that of main."""
    snapshot = find_snapshot(name, revision or "main")
    if snapshot is None:
        return None
    return ModelFolder(snapshot, name, "cache", snapshot.name)


def offline_variables() -> list[str]:
    """Return the environment variables that turn the network off, such as "HF_HUB_OFFLINE=1"."""
    return [f"{name}=1" for name in OFFLINE if os.environ.get(name, "").lower() in YES]


def how_to_go_online() -> str:
    """Return the instruction for turning the network on again."""
    return f"run once without {' and '.join(offline_variables()) or option('offline')}"


def _given_folder(name: str, path: Path, files: Sequence[str], revision: str | None) -> ModelFolder:
    """Return the folder that the user gave. Raises ModelError if it lacks one of the files."""
    if revision is not None:
        raise UsageError(
            f"model {name!r} is a folder, which has no revision {revision!r}",
            f"leave out {option('revision')}, or give a hub id",
        )
    folder = ModelFolder(path, name)
    missing = missing_file(folder, files)
    if missing is None:
        return folder
    if graph := describe_graph(folder, files):
        description, hint = graph
        raise ModelError(f"model folder {name!r} has {description}", hint)
    raise ModelError(
        f"model folder {name!r} has no {missing}",
        "give a hub id, or a folder that can be read, as save_pretrained writes it",
    )


def installed_model(name: str, files: Sequence[str]) -> ModelFolder | None:
    """Return the folder of a model in an installed package, or None without one.

    The package is not imported, because it would import sentence-transformers.
    """
    if name not in CARRIERS:
        return None
    from importlib.util import find_spec

    module, subfolder = CARRIERS[name]
    spec = find_spec(module)
    for location in (spec and spec.submodule_search_locations) or ():
        folder = ModelFolder(Path(location, subfolder), name, f"installed package {module}")
        if missing_file(folder, files) is None:
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
        if select_files([ADAPTER], names) and needs_weights(files):
            raise ModelError(
                f"model {name!r} is an adapter of another model, not a whole one ({ADAPTER})",
                "merge it with peft (merge_and_unload), save it, and give that folder",
            )

        def exists(pattern: str) -> bool:
            return bool(select_files([pattern], names))

        if missing := missing_alternatives(files, exists, config=config):
            raise ModelError(f"model {name!r} has no {missing} on the hub", "choose a BERT model")
        return select_files(files, names)

    try:
        snapshot = download(name, revision, cache_root(), choose)
    except ModelError:
        if cached is None:
            raise
        return cached
    folder = ModelFolder(snapshot, name, "hub", snapshot.name)
    if missing := missing_in_snapshot(folder, files):
        raise ModelError(
            f"model {name!r} was downloaded without {missing}",
            f"its repository is incomplete: choose another {option('revision')} or model",
        )
    return folder


def download_model(name: str, revision: str | None = None) -> ModelFolder:
    """Download the files of a model that bertcli uses from the hub to its cache.

    Unlike `find_model`, it always checks the hub for the newest commit. Raises UsageError for a
    folder, for an installed model, and if the environment forbids network access.
    """
    full_name = hub_id(name)
    if revision is None and (installed := installed_model(full_name, MODEL_FILES)):
        raise UsageError(
            f"model {full_name!r} is installed as a package, in {installed.path}",
            f"use it as it is; {pip_command('uninstall')} {CARRIER_PACKAGE} uninstalls it",
        )
    if variables := offline_variables():
        raise UsageError(
            f"a download needs the network: {' and '.join(variables)}", how_to_go_online()
        )
    return _from_hub(full_name, MODEL_FILES, revision, None)


def hub_id(name: str) -> str:
    """Return the id on the hub that a name or an alias stands for.

    Raises UsageError for a folder, ModelError for an invalid id.
    """
    if os.path.isdir(os.path.expanduser(name)):
        raise UsageError(
            f"{name} is a folder, not a model on the hub",
            f"-m {quote(name)} uses it; it is not in the hub's cache",
        )
    refuse_invalid_id(name)
    return ALIASES.get(name, name)


class StoredModel(NamedTuple):
    """A model on this machine."""

    name: str  # id on the hub
    state: str  # installed or cached
    path: Path
    size: int  # in bytes
    folder: ModelFolder | None  # of the main revision; None if the cache has no file of it


def stored_models() -> list[StoredModel]:
    """Return the models on this machine, installed ones first."""
    models = []
    for name in CARRIERS:
        if folder := installed_model(name, ()):
            size = stored_size(folder.path)
            models.append(StoredModel(name, "installed", folder.path, size, folder))
    for name in cached_models():
        path = repository_folder(name)
        size = stored_size(path)
        models.append(StoredModel(name, "cached", path, size, _cached_folder(name, None)))
    return models


def linked_size(folder: Path) -> int:
    """Return the total size in bytes of the files below a folder, following links."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def stored_size(folder: Path) -> int:
    """Return the size in bytes of the files below a folder, without links."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                total += path.lstat().st_size
    return total
