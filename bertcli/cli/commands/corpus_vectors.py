"""Common parts of the commands that search a corpus: its vectors, and where they are kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import truncated
from bertcli.errors import counted

if TYPE_CHECKING:
    from bertcli.vectors.search import Search

WINDOWS = "; bertcli embed --on-truncate window -o FILE encodes all of them, for --vectors FILE"
MANY = 1000  # texts whose vectors are worth keeping


@contextmanager
def stored_vectors(search: "Search", console: Console) -> Iterator["Search"]:
    """Yield the search once the vectors of its corpus are stored, in a place of a while if need be.

    They are computed with a progress bar, unless they are there.
    """
    with TemporaryDirectory() as folder:
        scratch = search.options.vectors is None
        if scratch:
            place = Path(folder, "vectors.npz" if search.embedder.terms else "vectors.npy")
            search = replace(search, options=replace(search.options, vectors=place))
        if not search.stored:
            run = search.writing()
            console.follow(run)
            console.warn(truncated(run.tally, search.embedder.max_length, WINDOWS))
            if not scratch:
                texts = counted(run.tally.records, "text")
                where = search.options.vectors
                console.note(f"vectors of {texts} kept in {where} for the next search")
            else:
                say_not_kept(run.tally.records, console)
        yield search


def say_not_kept(texts: int, console: Console) -> None:
    """Say that the vectors of many texts were not kept."""
    if texts > MANY:
        console.note("vectors of the corpus not kept; --vectors FILE keeps them")
