"""Tasks that run each text with each of several second texts, and give one result for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from bertcli.records.batch import RecordBatch, record_windows
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
        layout = self.layout
        tokenizer = self.head.tokenizer
        tally = run.tally
        reader = run.reader
        start = run.start
        for records in self.windows(run):
            texts = reader.collect(self._numbered_pairs, count(start), records)
            start += len(records)
            run.skipped += len(records) - len(texts)
            pairs: list[Record] = []
            samples: list[int] = []
            for sample, pairs_of_text in texts:
                pairs += pairs_of_text
                samples += [sample] * len(pairs_of_text)
            prepared = self.prepare(pairs)
            tally.literals += tokenizer.count_literals(prepared)
            batch = tokenizer.encode_records(prepared, layout)
            batch = replace(batch, records=RecordBatch.of(pairs), samples=samples)
            tally.add(batch, tokenizer.limit)
            yield batch
            run.finish(start)

    def _numbered_pairs(self, sample: int, record: Record) -> tuple[int, list[Record]]:
        """Return the index of a text in the run, and its pairs."""
        return sample, self.pairs(record)

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the result of each text, whose record has no pair."""
        return [
            result._replace(record=result.record._replace(pair=None))
            for result in super().judge(batch)
        ]
