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

from bertcli.embedding.pooling import EmbeddedBlock
from bertcli.embedding.record_embedder import RecordEmbedder
from bertcli.io.progress import BatchDone, Show, show_nothing
from bertcli.records.input import Input
from bertcli.records.reader import GivenTexts, Reader
from bertcli.tokenizing.run import TokenCounts


@dataclass
class EmbedRun:
    """A run that passes each embedded block to a callback, one window of records at a time."""

    embedder: RecordEmbedder
    reader: Reader
    handle_block: Callable[[EmbeddedBlock], None]
    fixed_windows: bool = False  # True: windows do not depend on the speed of the input
    tally: TokenCounts = field(default_factory=TokenCounts, kw_only=True)

    def __post_init__(self) -> None:
        # fields with ids for the model that the user did not ask to keep
        self.consumed = self.embedder.runtime.extra_columns.request_ids(self.reader)

    def execute(self, show: Show = show_nothing) -> TokenCounts:
        """Pass the vectors of all records to the callback; return the token counts of the texts."""
        run = self.embedder.run(self.reader, fixed_windows=self.fixed_windows)
        run.tally = self.tally
        for window in self.embedder.windows(run):
            for event in window:
                if isinstance(event, BatchDone):
                    show(event)
                else:
                    event.records = event.records.without(self.consumed)
                    self.handle_block(event)
        return self.tally


class RecordVectors(EmbedRun):
    """A run over texts given in Python; collects the vectors in ``blocks``."""

    def __init__(self, embedder: RecordEmbedder, texts: Any, *, pre_split: bool = False) -> None:
        self.blocks: list[EmbeddedBlock] = []
        self.given_texts = GivenTexts(texts, Input(pre_split=pre_split))
        super().__init__(embedder, self.given_texts, self.blocks.append, fixed_windows=True)

    @property
    def vectors(self) -> np.ndarray:
        """The vectors of all texts, [n, D]."""
        return np.concatenate(
            [self.embedder.empty_output, *(block.stacked for block in self.blocks)]
        )
