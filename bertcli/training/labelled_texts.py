"""Labelled texts, parted for training and evaluation: read, checked and counted. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from bertcli.errors import InputError, UsageError
from bertcli.records.examples import AnswerSpan, Example, Examples, read_examples
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.training.options import FineTuningJob
from bertcli.vectors.run_folder import Inputs


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with numbers for their labels; rows to train on and rows held out."""

    examples: Examples  # those of the evaluation file last
    names: Sequence[str]  # of the labels
    targets: Any  # [n, ...]
    train: Any  # rows
    held: Any  # rows
    sources: Sequence[Mapping[str, Any]]  # name and sha256 of the files, before they were read

    @classmethod
    def read(cls, job: FineTuningJob, opened: Callable[[str], Reader], seed: int) -> LabelledTexts:
        """Read the examples, and those of the evaluation file.

        Raises InputError for examples that nothing can be learnt from.
        """
        fields = tuple(dict.fromkeys(job.extra.values()))
        files = [path for path in (job.file, job.eval) if path]
        sources = Inputs(files).described()  # before they are read: they may change
        examples = read_examples(opened(job.file), job.task, fields, job.fields)
        task = examples.form.task
        if fields and task in ("answer", "embed"):
            raise UsageError(f"--extra cannot be combined with --task {task}")
        names = label_names(examples)
        if (job.class_weights or job.label_smoothing) and task in UNNAMED:
            raise UsageError(
                f"--class-weights and --label-smoothing have no effect on {task}", "leave them out"
            )
        rows = list(examples.examples)
        if job.eval is None:
            train, held = parted(rows, job.eval_fraction, seed)
        else:
            other = read_examples(opened(job.eval), task, fields, job.fields)
            rows += other.examples
            train, held = np.arange(len(examples)), np.arange(len(examples), len(rows))
        targets = target_array(task, rows, {name: number for number, name in enumerate(names)})
        if len(train) < 2 or (task == "classify" and len(np.unique(targets[train])) < 2):
            raise InputError(
                f"{examples.source}: {len(train)} examples to train on, of one label",
                "give more examples, or --eval-fraction 0",
            )
        return cls(replace(examples, examples=rows), names, targets, train, held, sources)

    def numbered(self, names: Sequence[str], numbers: Mapping[str, int]) -> LabelledTexts:
        """Return the examples with other names and numbers of the labels: those of a model."""
        targets = target_array(self.task, self.examples.examples, numbers)
        return replace(self, names=names, targets=targets)

    @property
    def task(self) -> str:
        """What is learnt: classify, multilabel, regress, tag, answer or embed."""
        return self.examples.form.task

    @cached_property
    def records(self) -> list[Record]:
        """The texts and pairs."""
        return [example.record for example in self.examples.examples]

    def weights(self, asked: str | None) -> Any:
        """Return weights that make rare labels count as much as common ones, [k]; None unasked.

        Classes: n / (k * their number), as scikit-learn's "balanced". Several labels: texts without
        the label for each that has it.
        """
        if asked is None:
            return None
        targets, count = self.targets[self.train], len(self.names)
        if self.task == "multilabel":
            support = targets.sum(0)
            weights = (len(targets) - support) / np.maximum(support, 1)
        else:
            targets = np.concatenate([*targets]) if self.task == "tag" else targets
            weights = len(targets) / (count * np.maximum(np.bincount(targets, minlength=count), 1))
        return weights.astype(np.float32)

    @cached_property
    def digest(self) -> str:
        """The sha256 of all examples and of how they are parted."""
        digest = hashlib.sha256()
        for record, target in self.examples.examples:
            values = (record.text, record.pair, target)
            digest.update(repr((*values, record.extra) if record.extra else values).encode())
        digest.update(self.held.tobytes())
        return digest.hexdigest()


# Tasks whose labels are not in the data.
UNNAMED = {"regress": ["score"], "embed": [], "answer": ["LABEL_0", "LABEL_1"]}


def label_names(examples: Examples) -> list[str]:
    """Return the labels that occur, sorted; whole numbers by their value.

    Raises InputError when there is nothing to tell apart.
    """
    task = examples.form.task
    if task in UNNAMED:
        return UNNAMED[task]
    names = sorted({label for example in examples.examples for label in _labels(task, example)})
    if len(names) < (1 if task == "multilabel" else 2):
        raise InputError(
            f"{examples.source}: labels found: {', '.join(names) or 'none'}",
            "training needs examples of at least two labels",
        )
    numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=int) if numbers else names  # equal numbers, 01 and 1, by their names


def _labels(task: str, example: Example) -> Sequence[str]:
    return [example.target] if task == "classify" else example.target


def target_array(task: str, examples: Sequence[Example], numbers: Mapping[str, int]) -> Any:
    """Return the targets: class numbers [n], labels [n, k] of 0 and 1, scores [n], or tags.

    Tags are n arrays of numbers, one for each word.

    Raises InputError for a label that has no number.
    """
    if task in UNNAMED:
        targets = [example.target for example in examples]
        scores = all(isinstance(target, float) for target in targets)
        return np.array(targets if scores else [0] * len(targets), np.float32)
    listed = np.empty(len(examples), object)
    for row, example in enumerate(examples):
        labels = _labels(task, example)
        if unknown := [label for label in labels if label not in numbers]:
            raise InputError(
                f"{example.record.where}: the label {unknown[0]!r} does not occur in the training "
                "data",
                f"labels: {', '.join(numbers)}",
            )
        listed[row] = np.array([numbers[label] for label in labels], np.int64)
    if task == "tag":
        return listed
    if task == "classify":
        return np.concatenate(listed)
    several = np.zeros((len(examples), len(numbers)), np.float32)
    for row, labels in enumerate(listed):
        several[row, labels] = 1
    return several


def parted(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Any, Any]:
    """Split rows into those to train on and those held out, [n1] and [n2].

    Equal texts, of answers equal contexts, are on one side: texts are drawn, not examples.
    """
    rows_of: dict[str, list[int]] = {}
    for row, (record, target) in enumerate(examples):
        text = record.pair if isinstance(target, AnswerSpan) else record.text
        rows_of.setdefault(str(text), []).append(row)
    groups, held = list(rows_of.values()), list[int]()
    if fraction:
        least = max(round(len(examples) * fraction), 1)
        for place in np.random.default_rng((seed, 1)).permutation(len(groups)).tolist()[1:]:
            held += groups[place] if len(held) < least else []
    inside = np.isin(np.arange(len(examples)), held)
    return np.flatnonzero(~inside), np.flatnonzero(inside)
