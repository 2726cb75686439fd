"""Tasks that run several texts or pairs for each record, and give one result for all."""

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
class SeveralTextsTask(HeadTask):
    """A task whose `fields` get the outputs of all texts or pairs of a record."""

    @abstractmethod
    def texts_of(self, record: Record) -> list[Record]:
        """Return the texts or pairs to run, at least one. Raises InputError for one to skip."""

    def windows(self, run: TokenizeRun) -> Iterator[Sequence[Record]]:
        """Yield the records whose texts are tokenized together."""
        return record_windows(run.blocks(), min(FIRST_WINDOW, self.head.settings.window))

    def encoded(self, run: TokenizeRun) -> Iterator[Sequence[Encoded]]:
        """Yield the tokens of the texts of several records."""
        layout = self.layout
        tokenizer = self.head.tokenizer
        tally = run.tally
        reader = run.reader
        start = run.start
        for records in self.windows(run):
            found = reader.collect(self._numbered_texts, count(start), records)
            start += len(records)
            run.skipped += len(records) - len(found)
            texts: list[Record] = []
            samples: list[int] = []
            for sample, texts_of_record in found:
                texts += texts_of_record
                samples += [sample] * len(texts_of_record)
            prepared = self.prepare(texts)
            tally.literals += tokenizer.count_literals(prepared)
            batch = tokenizer.encode_records(prepared, layout)
            batch = replace(batch, records=RecordBatch.of(texts), samples=samples)
            tally.add(batch, tokenizer.limit)
            yield batch
            run.finish(start)

    def _numbered_texts(self, sample: int, record: Record) -> tuple[int, list[Record]]:
        """Return the index of a record in the run, and its texts."""
        return sample, self.texts_of(record)

    def judge(self, batch: Sequence[Encoded]) -> list[Result]:
        """Return the result of each record, without the pair of its texts.

        ``batch`` has the texts or pairs of each record one after the other, with all windows of
        each, as `encoded` yields them: T rows for R records give R results. `fields` gets the rows
        of one record and their outputs. Raises as `HeadTask.judge` does.
        """
        return [
            result._replace(record=result.record._replace(pair=None))
            for result in super().judge(batch)
        ]
