"""Whether the second sentence follows the first: Section 3.1 of the paper, Task #2."""

from __future__ import annotations

from dataclasses import dataclass

from bertcli.errors import InputError
from bertcli.records.reader import Reader
from bertcli.tasks.head import Head, Stream, streamed, text_logits
from bertcli.tasks.results import Result
from bertcli.tasks.scores import softmax
from bertcli.tokenizing.columns import Encoded

BLANK = {"is_next": 0.0, "not_next": 0.0}


@dataclass(frozen=True)
class NextSentenceTask:
    """A next sentence predictor that is ready to run."""

    head: Head

    def stream(self, reader: Reader) -> Stream:
        """Return the pass over the pairs of a reader. InputError for a text without a pair."""
        return streamed(self.head, reader, self.head.layout(), self._judge, BLANK, ask=_paired)

    def _judge(self, batch: list[Encoded]) -> list[Result]:
        found = self.head.outputs(batch, text_logits)
        results = []
        for item, logits in zip(batch, found, strict=True):
            follows, random = softmax(logits).tolist()
            fields = {"is_next": follows, "not_next": random}
            results.append(Result(item.record, item.sample, fields, item.cut))
        return results


def _paired(item: Encoded) -> Encoded:
    if item.record.pair is None:
        raise InputError(
            f"{item.record.where}: no second sentence",
            "give two texts, --pairs FILE, or records with a pair field",
        )
    return item
