"""Progress bars: what a person sees of a long run. Rich is imported where one is drawn."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from bertcli.files.streams import size_on_disk

if TYPE_CHECKING:
    from rich.progress import Progress as Drawn

    from bertcli.inference.progress import ModelRun, Progress
    from bertcli.records.reader import Reader

QUIET_SECONDS = 1.0  # work shorter than this shows no bar
REFRESH_SECONDS = 0.1  # time between two pictures of a bar


class ProgressBar:
    """A line on stderr: counts, the share that is done, the time that is left.

    Short work shows none.
    """

    def __init__(self) -> None:
        self.start = monotonic()
        self.drawn: Drawn | None = None
        self.due = self.start + QUIET_SECONDS  # when the next picture is drawn

    def update(self, counts: str, share: float | None, seconds: float) -> None:
        """Show how far the run is after so many seconds; a share of None is unknown."""
        if monotonic() < self.due:
            return
        self.drawn = self.drawn or _drawn()
        left = "" if not share else clock(seconds * (1 - share) / share)
        total = None if share is None else 1.0
        task = self.drawn.task_ids[0]
        self.drawn.update(task, completed=share or 0.0, total=total, counts=counts, left=left)
        self.drawn.start()
        self.drawn.refresh()
        self.due = monotonic() + REFRESH_SECONDS

    def close(self) -> None:
        """Remove the bar."""
        if self.drawn:
            self.drawn.stop()


def _drawn() -> Drawn:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    from bertcli.cli.display.screen import Screen

    drawn = Progress(
        TextColumn("{task.fields[counts]}", markup=False, table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
        TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True)),
        console=Screen(stderr=True),
        transient=True,
        expand=True,
        auto_refresh=False,  # every picture is one of numbers that were given, and no thread draws
    )
    drawn.add_task("", total=None, counts="", left="")
    return drawn


def texts_of_all(done: int, reader: Reader, size: int | None) -> str:
    """Return how many texts of how many are done; of files that are being read, of about so many.

    ``size`` is that of the files, None for pipes.
    """
    if reader.exhausted or reader.source.texts:
        total = f"{reader.records if reader.exhausted else len(reader.source.texts):,}"
    elif size and reader.bytes_read and reader.records:
        total = f"about {float(f'{reader.records * size / reader.bytes_read:.1e}'):,.0f}"
    else:
        return f"{done:,} texts"
    return f"{done:,} of {total} texts"


def clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds."""
    minutes, left = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"


class ModelBar:
    """Of a run that takes a model: it moves with every batch, and shows the end of the file too."""

    def __init__(self, progress: Progress, run: ModelRun) -> None:
        self.progress, self.run = progress, run
        self.size = size_on_disk(run.reader.source.paths)
        self.bar = ProgressBar()
        self.writing, self.truncated = 0.0, 0

    def show(self) -> None:
        """Show what the progress says."""
        progress = self.progress
        if not progress.texts and progress.hashed.size:
            done, size = progress.hashed
            counts = f"hashing the input: {done / 1e9:,.1f} of {size / 1e9:,.1f} GB"
            self.bar.update(counts, min(1.0, done / size), progress.seconds)
            return
        if progress.written:
            self.writing = self.writing or monotonic()
            counts = f"writing {progress.written:,} of {progress.total:,} rows"
            share = min(1.0, progress.written / progress.total)
            self.bar.update(counts, share, monotonic() - self.writing)
            return
        done, tally = progress.before + progress.texts, self.run.tally
        if done >= tally.records:  # a window is tokenized, and counted, before its first batch
            self.truncated = tally.truncated
        counts = f"{texts_of_all(done, self.run.reader, self.size)}  {progress.rates}"
        if self.truncated:
            counts += f"  {self.truncated:,} truncated"
        self.bar.update(counts, self._share(), progress.seconds)

    def _share(self) -> float | None:
        """Return which part of the tokens of this run is done; None when nobody can know.

        The tokens that were not read yet are those of texts as long as the others, and as many as
        the rest of the files has room for.
        """
        reader, tally, progress = self.run.reader, self.run.tally, self.progress
        if reader.source.texts:
            texts = float(len(reader.source.texts))
        elif self.size and reader.bytes_read:
            texts = reader.records * max(1.0, self.size / reader.bytes_read)
        else:
            texts = 0.0
        if not (texts and tally.records):
            return None
        tokens = (texts - progress.before) * tally.tokens / tally.records
        return min(1.0, progress.tokens / tokens) if tokens > 0 else 1.0
