"""Examples to train on and to hold out, with ids for their labels. Nothing here imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertcli.errors import InputError, UsageError, option
from bertcli.records.reader import Reader
from bertcli.records.record import Record
from bertcli.tasks.examples import Examples, read_examples
from bertcli.tasks.learning import Example, HeadLearningTask, LearningTask, records_of
from bertcli.training.options import FineTuningJob


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with ids for their labels; rows to train on and rows held out."""

    examples: Examples  # those of the evaluation file last
    labels: Sequence[str]  # by id, as the model names them
    ids: Mapping[str, int]  # of the labels, as the examples name them
    train: Any  # rows
    held: Any  # rows

    @classmethod
    def read(cls, job: FineTuningJob, readers: Sequence[Reader], seed: int) -> LabelledTexts:
        """Read the examples, and those of the evaluation file, which may have a reader too.

        Raises InputError for examples that nothing can be learnt from.
        """
        extra_fields = tuple(dict.fromkeys(job.extra.values()))
        examples = read_examples(readers[0], job.task, extra_fields, job.fields)
        task = examples.task
        if extra_fields and not task.takes_extra_ids:
            raise UsageError(
                f"{option('extra')} cannot be combined with {option('task', task.name)}"
            )
        labels = task.labels([example.target for example in examples.examples], examples.source)
        if (job.class_weights or job.label_smoothing) and not task.has_named_labels:
            raise UsageError(
                f"{option('class_weights')} and {option('label_smoothing')} have no effect on "
                f"{task.name}"
            )
        rows = list(examples.examples)
        if len(readers) == 1:
            train, held = split_rows(task, rows, job.eval_fraction, seed)
        else:
            rows += read_examples(readers[1], task.name, extra_fields, job.fields).examples
            train, held = np.split(np.arange(len(rows)), [len(examples.examples)])
        ids = {label: id_ for id_, label in enumerate(labels)}
        texts = cls(replace(examples, examples=rows), labels, ids, train, held)
        targets = texts.targets  # refuses unknown labels, before too few examples
        if len(train) < 2 or not task.can_learn(targets, train):
            raise InputError(
                f"{examples.source}: {len(train)} examples to train on, of one label",
                f"give more examples, or {option('eval_fraction', 0)}",
            )
        return texts

    @property
    def task(self) -> LearningTask:
        """The task that is learnt."""
        return self.examples.task

    @cached_property
    def records(self) -> list[Record]:
        """The texts and pairs."""
        return records_of(self.examples.examples)

    @cached_property
    def targets(self) -> Any:
        """What the task makes of the targets of all examples, in their order."""
        return self.task.targets(self.examples.examples, self.ids)

    def loss_options(self, task: HeadLearningTask, job: FineTuningJob) -> dict[str, Any]:
        """Return the weights of the labels [k], or None, and their smoothing."""
        weights = None
        if job.class_weights:
            weights = task.class_weights(
                [self.targets[row] for row in self.train], len(self.labels)
            )
        return {"weights": weights, "smoothing": job.label_smoothing}

    @property
    def digest(self) -> str:
        """The sha256 of all examples and of which are held out."""
        digest = hashlib.sha256()
        for record, target in self.examples.examples:
            values = record.text, record.pair, record.extra, target
            digest.update(repr(values).encode())
        digest.update(self.held.tobytes())
        return digest.hexdigest()


def split_rows(
    task: LearningTask, examples: Sequence[Example], fraction: float, seed: int
) -> tuple[Any, Any]:
    """Split rows into those to train on and those held out, [n1] and [n2].

    Equal texts, of answers equal contexts, are on one side: texts are drawn, not examples.
    """
    numbers: dict[str, int] = {}
    groups = np.array(
        [numbers.setdefault(task.split_key(example), len(numbers)) for example in examples]
    )
    drawn = np.random.default_rng((seed, 1)).permutation(len(numbers))[1:]
    sizes = np.bincount(groups)[drawn]
    count = max(round(len(examples) * fraction), 1) if fraction else 0
    held = np.isin(groups, drawn[sizes.cumsum() - sizes < count])
    return np.flatnonzero(~held), np.flatnonzero(held)
