"""Labelled texts, parted for training and evaluation: read, checked and counted. No torch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import bert_folder, require_weights
from bertcli.errors import InputError, UsageError, counted
from bertcli.files.paths import sha256
from bertcli.files.streams import unreadable
from bertcli.records.examples import CONTRAST, AnswerSpan, Example, Examples, read_examples
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.training.options import FineTuningJob


@dataclass(frozen=True)
class LabelledTexts:
    """Examples with numbers for their labels; rows to train on and rows held out."""

    examples: Examples  # those of the evaluation file last
    names: Sequence[str]  # of the labels
    targets: Any  # [n, ...]
    train: Any  # rows
    held: Any  # rows
    sources: Sequence[tuple[str, str | None]]  # files, sha256 before they were read; None: a pipe
    notes: Sequence[str] = ()

    @classmethod
    def read(cls, job: FineTuningJob, opened: Callable[[str], Reader], seed: int) -> LabelledTexts:
        """Read the examples, and those of the evaluation file.

        Raises InputError for examples that nothing can be learnt from.
        """
        fields = tuple(dict.fromkeys(job.extra.values()))
        sources = [(path, _digest(path)) for path in (job.file, job.eval) if path]
        examples = read_examples(opened(job.file), job.task, fields, job.fields)
        task = examples.form.task
        if fields and task in ("answer", "embed"):
            raise UsageError(f"--extra cannot be combined with --task {task}")
        names = label_names(examples)
        if (job.class_weights or job.label_smoothing) and task in UNNAMED:
            raise UsageError(
                f"--class-weights and --label-smoothing have no effect on {task}", "leave them out"
            )
        notes, rows = list(label_notes(examples)), list(examples.examples)
        if job.eval is None:
            train, held = parted(rows, job.eval_fraction, seed)
            if job.eval_fraction and not len(held):
                notes.append("all examples have the same text: none can be held out")
        else:
            other = read_examples(opened(job.eval), task, fields, job.fields)
            seen = {str(example.record.text) for example in rows}
            shared = sum(str(example.record.text) in seen for example in other.examples)
            if shared:
                notes.append(
                    f"{shared:,} of {len(other):,} texts of {other.source} are in the training "
                    "data as well"
                )
            rows += other.examples
            train, held = np.arange(len(examples)), np.arange(len(examples), len(rows))
        targets = target_array(task, rows, {name: number for number, name in enumerate(names)})
        if len(train) < 2 or (task == "classify" and len(np.unique(targets[train])) < 2):
            those = counted(len(train), "example to train on has", "examples to train on have")
            raise InputError(
                f"{examples.source}: the {those} one label",
                "give more examples, or --eval-fraction 0",
            )
        return cls(replace(examples, examples=rows), names, targets, train, held, sources, notes)

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
        """Return the weights of the labels, [k], or None."""
        if asked is None:
            return None
        return balanced(self.task, self.targets[self.train], len(self.names))

    def identity(self, job: FineTuningJob, base: Path) -> dict[str, Any]:
        """Return what decides the results: the data, the model to begin with, the options."""
        return {
            "task": self.task,
            "data_sha256": self.digest,
            "base_sha256": " ".join(map(sha256, require_weights(bert_folder(base)).all)),
            "labels": list(self.names),
            "training": {
                "max_length": job.max_length,
                "class_weights": job.class_weights,
                "label_smoothing": job.label_smoothing,
                "patience": job.patience,
            },
        }

    @cached_property
    def digest(self) -> str:
        """The sha256 of all examples and of how they are parted."""
        digest = hashlib.sha256()
        for example in self.examples.examples:
            record = example.record
            values = (record.text, record.pair, example.target)
            digest.update(repr((*values, record.extra) if record.extra else values).encode())
        digest.update(self.held.tobytes())
        return digest.hexdigest()


def _digest(path: str) -> str | None:
    """Return the sha256 of a file, before it is read: it may change meanwhile; None of a pipe."""
    try:
        return sha256(Path(path)) if Path(path).is_file() else None
    except OSError as failed:
        raise unreadable(path, failed) from None


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
        only = f"the label {names[0]!r}" if names else "no label"
        those = f"all {len(examples):,} examples have" if len(examples) > 1 else "1 example has"
        raise InputError(
            f"{examples.source}: {those} {only}", "training needs examples of at least two labels"
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
        if any(not isinstance(example.target, float) for example in examples):
            return np.zeros(len(examples), np.float32)  # of pairs, and of answers
        return np.array([example.target for example in examples], np.float32)
    for example in examples:
        for label in _labels(task, example):
            if label not in numbers:
                raise InputError(
                    f"{example.record.where}: the label {label!r} does not occur in the training "
                    "data",
                    f"labels: {', '.join(numbers)}",
                )
    if task == "classify":
        return np.array([numbers[example.target] for example in examples], np.int64)
    if task == "tag":
        tagged = np.empty(len(examples), object)
        tagged[:] = [
            np.array([numbers[tag] for tag in example.target], np.int64) for example in examples
        ]
        return tagged
    several = np.zeros((len(examples), len(numbers)), np.float32)
    for row, example in enumerate(examples):
        several[row, [numbers[label] for label in example.target]] = 1
    return several


def balanced(task: str, targets: Any, count: int) -> Any:
    """Return weights that make rare labels count as much as common ones, [k].

    Classes: n / (k * their number), as scikit-learn's "balanced". Several labels: texts without
    the label for each that has it.
    """
    if task == "tag":
        return balanced("classify", np.concatenate(list(targets)), count)
    if task == "classify":
        support = np.bincount(targets, minlength=count)
        return (len(targets) / (count * np.maximum(support, 1))).astype(np.float32)
    support = targets.sum(0)
    return ((len(targets) - support) / np.maximum(support, 1)).astype(np.float32)


def label_notes(examples: Examples) -> Iterator[str]:
    """Yield what a user should know of labels: how many each has, and those that conflict."""
    form = examples.form
    if form.task == "classify":
        counts = Counter(example.target for example in examples.examples).most_common()
        shown = ", ".join(f"{name} {count:,}" for name, count in counts[:10])
        more = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        yield f"{counted(len(examples), 'example')}, {counted(len(counts), 'label')}: {shown}{more}"
    else:
        yield f"{counted(len(examples), 'example')} for {form.task}"
    if form == CONTRAST:  # an anchor may have several positives
        return
    targets: dict[Any, set[str]] = {}
    for record, target in examples.examples:
        key = str(record.text), str(record.pair), str(record.extra)
        targets.setdefault(key, set()).add(repr(target))
    conflicts = sum(len(values) > 1 for values in targets.values())
    if conflicts:
        texts = counted(conflicts, "text has", "texts have")
        yield f"{texts} different values of {examples.target!r} in different examples"


def parted(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Any, Any]:
    """Split rows into those to train on and those held out, [n1] and [n2].

    Equal texts, of answers equal contexts, are on one side: texts are drawn, not examples.
    """
    rows_of: dict[str, list[int]] = {}
    for row, (record, target) in enumerate(examples):
        text = record.pair if isinstance(target, AnswerSpan) else record.text
        rows_of.setdefault(str(text), []).append(row)
    groups, held = list(rows_of.values()), list[int]()
    if fraction and len(groups) > 1:
        for place in np.random.default_rng((seed, 1)).permutation(len(groups)).tolist()[1:]:
            if len(held) >= max(round(len(examples) * fraction), 1):
                break
            held += groups[place]
    inside = np.zeros(len(examples), bool)
    inside[held] = True
    return np.flatnonzero(~inside), np.flatnonzero(inside)
