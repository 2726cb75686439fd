"""Examples for training and evaluation, with ids for their labels. Nothing imports torch."""

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
from bertcli.tasks.learning import Example, HeadLearningTask, LearningTask, example_records
from bertcli.training.options import FineTuningJob


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with ids for their labels; rows to train on and rows held out."""

    examples: Examples  # those of the evaluation file last
    labels: Sequence[str]  # by id, as the model names them
    label_ids: Mapping[str, int]  # ids of labels, as the examples name them
    train_rows: Any  # [n1]
    held_out_rows: Any  # [n2]

    @classmethod
    def read(cls, job: FineTuningJob, readers: Sequence[Reader], seed: int) -> LabelledTexts:
        """Read the examples of the first reader, and those for evaluation of the second, if any.

        Without a second reader, a fraction of the examples is held out. Raises InputError for
        too few examples, or examples of only one label.
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
            train_rows, held_out_rows = split_rows(task, rows, job.eval_fraction, seed)
        else:
            rows += read_examples(readers[1], task.name, extra_fields, job.fields).examples
            train_rows, held_out_rows = np.split(np.arange(len(rows)), [len(examples.examples)])
        label_ids = {label: id_ for id_, label in enumerate(labels)}
        all_examples = replace(examples, examples=rows)
        texts = cls(all_examples, labels, label_ids, train_rows, held_out_rows)
        targets = texts.targets  # raises for unknown labels, before too few examples are an error
        if len(train_rows) < 2 or not task.can_learn(targets, train_rows):
            raise InputError(
                f"{examples.source}: {len(train_rows)} examples to train on, of one label",
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
        return example_records(self.examples.examples)

    @cached_property
    def targets(self) -> Any:
        """The targets of all examples, as the loss of the task takes them."""
        return self.task.targets(self.examples.examples, self.label_ids)

    def loss_options(self, task: HeadLearningTask, job: FineTuningJob) -> dict[str, Any]:
        """Return the keyword arguments of a `HeadObjective` from the options of the loss.

        Those are the weights of the labels, [k] or None, and their smoothing.
        """
        weights = None
        if job.class_weights:
            weights = task.class_weights(
                [self.targets[row] for row in self.train_rows], len(self.labels)
            )
        return {"weights": weights, "smoothing": job.label_smoothing}

    @property
    def digest(self) -> str:
        """The sha256 of all examples and of the held-out rows."""
        digest = hashlib.sha256()
        for record, target in self.examples.examples:
            values = record.text, record.pair, record.extra, target
            digest.update(repr(values).encode())
        digest.update(self.held_out_rows.tobytes())
        return digest.hexdigest()


def split_rows(
    task: LearningTask, examples: Sequence[Example], fraction: float, seed: int
) -> tuple[Any, Any]:
    """Return the rows to train on and those held out, [n1] and [n2].

    Examples with the same `LearningTask.split_key` are a group, which is not split. Groups are
    held out in random order, until about ``fraction`` of the examples are. One group is always
    trained on.
    """
    group_numbers: dict[str, int] = {}
    groups = np.array(  # group of each example
        [
            group_numbers.setdefault(task.split_key(example), len(group_numbers))
            for example in examples
        ]
    )
    shuffled = np.random.default_rng((seed, 1)).permutation(len(group_numbers))[1:]
    sizes = np.bincount(groups)[shuffled]
    count = max(round(len(examples) * fraction), 1) if fraction else 0
    is_held_out = np.isin(groups, shuffled[sizes.cumsum() - sizes < count])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
