"""The shards of a run: which files are read, and which file is written for each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from bertcli.errors import InputError, OutputError, UsageError
from bertcli.files.paths import beside, public, refuse_inputs
from bertcli.files.streams import PACKED
from bertcli.ray.locations import is_local, listed, local_path, named
from bertcli.records.source import FORMATS, Source, is_data, is_glob, no_data
from bertcli.vectors.run_folder import RunFiles

DEAD = ".errors.jsonl"  # why records of a shard were skipped
SCHEMAS = 1000  # Parquet files whose fields are compared before anything starts


class Shard(NamedTuple):
    """An input file and its output file."""

    source: str
    output: str


def plan(source: Source, output: str, form: str) -> list[Shard]:
    """Return the shards of a source's patterns: one file out, in the same order, for each one in.

    What a folder holds keeps its place in it. Raises InputError for patterns that name nothing, or
    files that do not go together.
    """
    if source.texts or "-" in source.paths:
        raise UsageError("--engine ray reads files only", "give folders, globs or files with -i")
    listing = [(name, path) for path in source.paths for name in listed(path)]
    fit = (n for n, path in listing if n == path or is_data(named(n), source, glob=is_glob(path)))
    files = list(dict.fromkeys(fit))
    if not files:
        raise no_data(public(", ".join(source.paths)), len(listing), source)
    shown = [named(file) for file in files]
    _alike(shown, source)
    names = _names(shown)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        same = [file for file, name in zip(shown, names, strict=True) if name == twice[0]]
        raise InputError(
            f"{' and '.join(same)} would both be written to {twice[0]}", "rename one of them"
        )
    folder = output.rstrip("/")
    shards = [
        Shard(file, f"{folder}/{name}.{form}") for file, name in zip(files, names, strict=True)
    ]
    if is_local(folder):
        place, own = local_path(folder), []
        for out in (local_path(shard.output) for shard in shards):
            own += [out, *RunFiles(out).own, beside(out, DEAD)]
        sources = [local_path(shard.source) for shard in shards if is_local(shard.source)]
        refuse_inputs(sources, [place, place / "manifest.json", *own])
    return shards


def refuse_unwritable(folder: str) -> None:
    """Raise OutputError where the folder of the outputs is one of this machine that cannot be."""
    path = local_path(folder)
    above = next((part for part in (path, *path.parents) if part.exists()), path)
    if is_local(folder) and not (above.is_dir() and os.access(above, os.W_OK)):
        reason = "Permission denied" if above.is_dir() else "Not a directory"
        raise OutputError(f"{path}: cannot be written: {reason}", "give another folder with -o")


def _without(name: str, suffixes: Collection[str]) -> str:
    """Return a name without a suffix that is one of these."""
    path = PurePosixPath(name)
    return str(path.with_suffix("") if path.suffix.lower() in suffixes else path)


def _names(files: Sequence[str]) -> list[str]:
    """Return the name of each file below what all have in common, without its suffixes."""
    parents = [str(PurePosixPath(file).parent) for file in files]
    base = os.path.commonpath(parents) if len(set(parents)) > 1 else parents[0]
    inner = [os.path.relpath(file, base) for file in (str(PurePosixPath(file)) for file in files)]
    return [_without(_without(name, PACKED), FORMATS) for name in inner]


def _alike(files: Sequence[str], source: Source) -> None:
    """Raise InputError unless all files have one format and, in Parquet, the fields that are read.

    A long run should not find this out at its last file.
    """
    formats = {source.format_of(file): file for file in reversed(files)}
    if len(formats) > 1:
        examples = " and ".join(f"{form} ({file})" for form, file in sorted(formats.items()))
        raise InputError(
            f"the files have several formats: {examples}", "select one format with a glob"
        )
    if "parquet" not in formats:
        return
    from bertcli.files.parquet import opened

    name = source.text_field or "text"
    kinds: dict[str, tuple[str, str]] = {}  # of the text field -> (file, fields)
    for file in list(filter(is_local, files))[:SCHEMAS]:
        with opened(str(local_path(file)), file) as table:
            kind = table.kinds.get(name, "no field")
            kinds.setdefault(kind, (file, ", ".join(table.names)))
    if len(kinds) > 1:
        differing = "; ".join(
            f"{kind} in {file} (of {names})" for kind, (file, names) in kinds.items()
        )
        raise InputError(f"{name!r} differs between the files: {differing}", "use a run for each")
