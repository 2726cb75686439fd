"""Removal of models from the hub's cache, through `huggingface_hub`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bertcli.errors import ModelError, UsageError
from bertcli.model_folder.find import hub_id, installed_model, stored_size
from bertcli.model_folder.hub_cache import CARRIER_PACKAGE, cache_root, repository_folder
from bertcli.versions import pip_command


class CachedModel(NamedTuple):
    """A model in the hub's cache, with all its revisions."""

    name: str
    path: Path
    size: int  # in bytes


def find_cached(name: str) -> CachedModel:
    """Return a model in the hub's cache.

    Raises UsageError for a folder or an installed package, ModelError for a model that is not
    cached.
    """
    full_name = hub_id(name)
    path = repository_folder(full_name)
    if path.is_dir():
        return CachedModel(full_name, path, stored_size(path))
    if installed := installed_model(full_name, ()):
        raise UsageError(
            f"model {full_name!r} is installed as a package, in {installed.path}",
            f"{pip_command('uninstall')} {CARRIER_PACKAGE}",
        )
    raise ModelError(
        f"model {full_name!r} is not in the cache {cache_root()}",
        "bertcli models lists the models on this machine",
    )


def remove_cached(model: CachedModel) -> None:
    """Remove all revisions of a model from the cache.

    Raises ModelError if the cached model is damaged, or files cannot be removed.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")  # read at import
    from huggingface_hub import scan_cache_dir

    cache = scan_cache_dir(cache_root())
    # The library would search a commit in all models, and a copied model has the same commit.
    repositories = frozenset(
        repository for repository in cache.repos if repository.repo_path.name == model.path.name
    )
    cache_of_model = replace(cache, repos=repositories)
    for repository in repositories:
        commits = (commit.commit_hash for commit in repository.revisions)
        cache_of_model.delete_revisions(*commits).execute()
    if model.path.exists():
        raise ModelError(
            f"model {model.name!r} cannot be removed: {model.path} is damaged or write-protected",
            "remove that folder",
        )
