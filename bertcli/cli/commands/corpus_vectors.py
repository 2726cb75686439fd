"""Common parts of the commands that search a corpus: its vectors, and where they are kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from bertcli.cli.display.console import Console
from bertcli.cli.display.messages import truncated
from bertcli.errors import OutputError, UsageError, counted
from bertcli.files.streams import can_be_reread
from bertcli.records.reader import Reader

if TYPE_CHECKING:
    from bertcli.vectors.run import EmbedRun
    from bertcli.vectors.search import Search
    from bertcli.vectors.stream import EmbedStream

WINDOWS = "; bertcli embed --on-truncate window -o FILE encodes all of them, for --vectors FILE"
MANY = 1000  # texts whose vectors are worth keeping


def refuse_pipes(texts: Reader) -> None:
    """Raise UsageError for texts that cannot be read twice."""
    for path in texts.source.paths:
        if not can_be_reread(path):
            name = "stdin" if path == "-" else path
            raise UsageError(f"{name}: cannot be read twice, as is needed here", "give a file")


@contextmanager
def stored_vectors(search: "Search", console: Console) -> Iterator["Search"]:
    """Yield the search once the vectors of its corpus are stored, in a place of a while if need be.

    They are computed with a progress bar, unless they are there.
    """
    with TemporaryDirectory() as folder:
        if search.options.vectors is None:
            place = Path(folder, "vectors.npz" if search.embedder.terms else "vectors.npy")
            search = replace(search, options=replace(search.options, vectors=place))
            refuse_pipes(search.texts)
            with _without_resume("free disk space, or set TMPDIR to another folder"):
                follow_embedding(search.writing(), search, console)
        else:
            store_vectors(search, console)
        yield search


def store_vectors(search: "Search", console: Console) -> None:
    """Compute the vectors of the corpus with a progress bar, unless their file is there."""
    if not search.stored:
        refuse_pipes(search.texts)
        run = search.writing()
        with _without_resume("free disk space, then run the same command again"):
            console.follow(run)
        console.warn(truncated(run.tally, search.embedder.max_length, WINDOWS))
        texts = counted(run.tally.records, "text")
        console.note(f"vectors of {texts} kept in {search.options.vectors} for the next search")


@contextmanager
def _without_resume(hint: str) -> Iterator[None]:
    """Give another hint for a full disk: these commands have no --resume."""
    try:
        yield
    except OutputError as failed:
        raise OutputError(str(failed), hint if "--resume" in failed.hint else failed.hint) from None


def follow_embedding(run: "EmbedStream | EmbedRun", search: "Search", console: Console) -> None:
    """Compute vectors of the corpus that are not kept, with a progress bar."""
    console.follow(run)
    console.warn(truncated(run.tally, search.embedder.max_length, WINDOWS))
    say_not_kept(run.tally.records, console)


def say_not_kept(texts: int, console: Console) -> None:
    """Say that the vectors of many texts were not kept."""
    if texts > MANY:
        console.note("vectors of the corpus not kept; --vectors FILE keeps them")
