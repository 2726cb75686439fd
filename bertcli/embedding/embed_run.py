"""Run a model over texts without an output file: `bertcli embed` to a pipe, vectors in Python.

    run = RecordVectors(embedder, [Record("A text.")])
    run.execute()
    run.vectors         # [1, D]

A run that writes a file, with a journal, is in `runs.vector_run`; a stream does not import it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertcli.embedding.embedder import Embedder
from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.io.progress import Ran, Show, show_nothing
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts, Reader
from bertcli.tokenizing.run import TokenCounts


@dataclass
class EmbedRun:
    """A run that passes each embedded block to a callback, one window of records at a time."""

    embedder: Embedder
    reader: Reader
    put: Callable[[EmbeddedBlock], None]
    full: bool = False  # True: window sizes do not depend on the speed of the input
    tally: TokenCounts = field(default_factory=TokenCounts, kw_only=True)

    def __post_init__(self) -> None:
        self.consumed = self.embedder.runtime.extra.read_by(self.reader)

    def execute(self, show: Show = show_nothing) -> TokenCounts:
        """Pass the vectors of all records to the callback; return the token counts of the texts."""
        run = self.embedder.run(self.reader, full=self.full)
        run.tally = self.tally
        for window in self.embedder.windows(run):
            for part in window:
                if isinstance(part, Ran):
                    show(part)
                else:
                    part.records = part.records.without(self.consumed)
                    self.put(part)
        return self.tally


class RecordVectors(EmbedRun):
    """A run over texts given in Python; collects the vectors in ``blocks``."""

    def __init__(self, embedder: Embedder, texts: Any, *, pre_split: bool = False) -> None:
        self.blocks: list[EmbeddedBlock] = []
        self.given = GivenTexts(texts, Input(pre_split=pre_split))
        super().__init__(embedder, self.given, self.blocks.append, full=True)

    @property
    def vectors(self) -> np.ndarray:
        """The vectors of all texts, [n, D]."""
        return np.concatenate([self.embedder.nothing, *(block.stacked for block in self.blocks)])
