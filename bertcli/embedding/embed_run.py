"""A run of a model over texts: what `bertcli embed` streams, and vectors from Python.

    run = RecordVectors(embedder, [Record("A text.")])
    run.execute()
    run.vectors         # [1, D]

A stream keeps nothing, and starts without what `runs.vector_run` needs, which writes a file.
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
    """A run whose records go to a function, window by window, as they are embedded."""

    embedder: Embedder
    reader: Reader
    put: Callable[[EmbeddedBlock], None]
    full: bool = False  # whether windows do not depend on how fast the records come
    tally: TokenCounts = field(default_factory=TokenCounts, kw_only=True)

    def __post_init__(self) -> None:
        self.consumed = self.embedder.runtime.extra.read_by(self.reader)

    def execute(self, show: Show = show_nothing) -> TokenCounts:
        """Pass the vectors of all records to the function; return the counts of texts."""
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
    """The vectors of texts from Python, which are collected in ``blocks``."""

    def __init__(self, embedder: Embedder, texts: Any, *, pre_split: bool = False) -> None:
        self.blocks: list[EmbeddedBlock] = []
        self.given = GivenTexts(texts, Input(pre_split=pre_split))
        super().__init__(embedder, self.given, self.blocks.append, full=True)

    @property
    def vectors(self) -> np.ndarray:
        """All vectors, [n, D]."""
        return np.concatenate([self.embedder.nothing, *(block.stacked for block in self.blocks)])
