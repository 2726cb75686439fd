"""Tasks that run each text with each of several second texts, and give one result for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertcli.records.batch import record_windows
from bertcli.records.record import Record
from bertcli.tasks.head import FIRST_WINDOW, HeadTask
from bertcli.tasks.results import Result
from bertcli.tokenizing.batch import Encoded
from bertcli.tokenizing.run import TokenizeRun


@dataclass(frozen=True)
class PairwiseTask(HeadTask):
    """A task whose `fields` get the outputs of all pairs of a text."""

    @abstractmethod
    def pairs(self, record: Record) -> list[Record]:
        """Return the pairs of a text, at least one. Raises InputError for a text to skip."""

    def windows(self, run: TokenizeRun) -> Iterator[Sequence[Record]]:
        """Yield the texts whose pairs are tokenized together."""
        return record_windows(run.blocks(), min(FIRST_WINDOW, self.head.settings.window))

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield the tokens of the pairs of several texts."""
        return self.encoded_texts(run, self.windows(run), self._numbered_pairs)

    def _numbered_pairs(self, sample: int, record: Record) -> tuple[int, list[Record]]:
        """Return the index of a text in the run, and its pairs."""
        return sample, self.pairs(record)

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the result of each text, whose record has no pair."""
        return [
            result._replace(record=result.record._replace(pair=None))
            for result in super().judge(batch)
        ]
