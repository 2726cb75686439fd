"""What the user named, as files: folders, globs and lists of names become paths, in order.

    input_files(("docs", "more/**/*.md", "-"), Source(...))   # every file below, sorted; stdin

A folder stands for its files with known suffixes, at any depth; with --input-format for all of
them. Hidden ones, and those that bertcli writes next to an output, are left out; links to folders
are not followed. A glob stands for the files that match it. A name of something that exists is
never a glob.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import PurePath

from bertcli.errors import InputError, counted
from bertcli.files.streams import PACKED, blocks, open_bytes, unreadable
from bertcli.files.writers import TENSORS
from bertcli.records.source import FORMATS, QUOTE, Source

MAGIC = "*?["  # a name with one of these may be a glob
OURS = ("manifest.json", ".errors.jsonl", ".index.jsonl")  # what is written next to outputs
NAMES = "--files-from reads names of files, one a line, or with -0 up to a NUL; -i reads texts"


def input_files(named: Iterable[str], source: Source) -> tuple[str, ...]:
    """Return the files to read, in the order of the names and sorted below each.

    Raises InputError for a name that stands for no file.
    """
    return tuple(file for name in named for file in _files(name, source))


def _files(name: str, source: Source) -> Sequence[str]:
    if name == "-":
        return (name,)
    if os.path.isdir(name):
        return _in_folder(name, source)
    if is_glob(name) and not os.path.lexists(name):
        matching = _matches("", *_parts(name))
        found = sorted({path for path in matching if is_data(path, source, glob=True)})
        if not found:
            raise InputError(f"{name}: no matching files", QUOTE)
        return found
    try:
        os.stat(name)
    except (OSError, ValueError) as failed:  # ValueError: a NUL in the name
        raise unreadable(name, failed) from None
    return (name,)


def is_glob(name: str) -> bool:
    """Tell whether a name may be a glob."""
    return any(letter in name for letter in MAGIC)


def is_data(name: str, source: Source, *, glob: bool = False) -> bool:
    """Tell whether a file of a folder, or one that a ``glob`` matches, is one of records."""
    path = PurePath(name)
    suffix = (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()
    known = glob or source.format != "auto" or suffix in _known(source)
    return known and not name.endswith(OURS)


def _known(source: Source) -> list[str]:
    return [end for end, form in FORMATS.items() if source.ids or form not in TENSORS]


def no_data(named: str, count: int, source: Source) -> InputError:
    """Return the error for folders whose ``count`` files are none of records."""
    none = f"none of {counted(count, 'file')} has a known suffix" if count else "no files"
    return InputError(
        f"{named}: {none}",
        f"known: {', '.join(_known(source))}; --input-format reads any file" if count else "",
    )


def _in_folder(folder: str, source: Source) -> list[str]:
    def failed(error: OSError) -> None:
        raise unreadable(str(error.filename), error) from None

    there = []
    for place, folders, names in os.walk(folder, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        there += [os.path.join(place, name) for name in names if not name.startswith(".")]
    found = sorted(path for path in there if is_data(path, source))
    if not found:
        raise no_data(folder, len(there), source)
    for path in found:
        if not os.path.exists(path):
            raise InputError(f"{path}: broken or circular symlink")
    return found


def _parts(pattern: str) -> list[str]:
    """Return the parts of a glob; the last one matches files."""
    parts = pattern.replace(os.sep, "/").split("/")
    return [*parts, "*"] if parts[-1] == "**" else parts


def _matches(base: str, part: str, *rest: str) -> Iterator[str]:
    """Yield the files below a folder that match; no wildcard matches a hidden name."""
    if part == "**":
        yield from _matches(base, *rest)
        for name, link in _entries(base):
            if not link and not name.startswith(".") and os.path.isdir(base + name):
                yield from _matches(f"{base}{name}/", part, *rest)
        return
    names = [name for name, _ in _entries(base) if _fits(name, part)] if is_glob(part) else [part]
    for name in names:
        if rest:
            yield from _matches(f"{base}{name}/", *rest)
        elif os.path.isfile(base + name):
            yield base + name


def _fits(name: str, part: str) -> bool:
    return fnmatch(name, part) and (part.startswith(".") or not name.startswith("."))


def _entries(folder: str) -> list[tuple[str, bool]]:
    """Return the names in a folder, and whether each is a link; none of what is no folder."""
    try:
        with os.scandir(folder or ".") as entries:
            return [(entry.name, entry.is_symlink()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as failed:
        raise unreadable(folder, failed) from None


def listed_files(path: str, *, null: bool) -> tuple[str, ...]:
    """Return the names in a list of files, one a line or up to a NUL; ``-`` is stdin.

    Raises InputError for a name, with its line, that is not one of a file, and for an empty list.
    """
    where, found = "stdin" if path == "-" else path, []
    with open_bytes(path) as stream:
        for block in blocks(stream, where, b"\0" if null else b"\n"):
            for number, line in enumerate(block.lines, block.number):
                name = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if name := name if null else name.removesuffix(b"\r"):
                    found.append(_listed(os.fsdecode(name), f"{where}:{number}"))
    if not found:
        raise InputError(
            f"{where}: the list of files is empty", "--files-from reads names of files"
        )
    return tuple(found)


def _listed(name: str, where: str) -> str:
    """Return a name from a list. Raises InputError where it is not one of a file."""
    if "://" in name:  # of another machine
        return name
    try:
        if os.path.isdir(name):
            raise InputError(f"{where}: {name}: is a folder", "list files only, or use -i FOLDER")
        os.stat(name)
    except (OSError, ValueError) as failed:
        raise InputError(f"{where}: {unreadable(name, failed)}", NAMES) from None
    return name
