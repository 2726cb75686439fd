"""Labelled texts, parted for training and evaluation: read, checked and counted. No torch."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import bert_folder, require_weights
from bertcli.errors import InputError, UsageError, counted
from bertcli.files.digests import sha256
from bertcli.records.example_forms import CONTRAST
from bertcli.records.examples import AnswerSpan, Example, Examples, read_examples
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
    sources: tuple[str, ...]  # files
    notes: Sequence[str] = ()

    @classmethod
    def read(cls, job: FineTuningJob, opened: Callable[[str], Reader], seed: int) -> LabelledTexts:
        """Read the examples, and those of the evaluation file.

        Raises InputError for examples that nothing can be learnt from.
        """
        fields = tuple(dict.fromkeys(job.extra.values()))
        examples = read_examples(opened(job.file), job.task, fields, job.fields)
        task = examples.form.task
        if fields and task in ("answer", "embed"):
            raise UsageError(f"--extra cannot be combined with --task {task}")
        names = label_names(examples)
        if (job.class_weights or job.label_smoothing) and task in UNNAMED:
            raise UsageError(
                f"--class-weights and --label-smoothing have no effect on {task}", "leave them out"
            )
        notes, every = list(label_notes(examples)), list(examples.examples)
        targets = target_array(task, every, names)
        if job.eval is None:
            train, held = parted(every, job.eval_fraction, seed)
            if job.eval_fraction and not len(held):
                notes.append("all examples have the same text: none can be held out")
        else:
            other = read_examples(opened(job.eval), task, fields, job.fields)
            targets = np.concatenate([targets, target_array(task, other.examples, names)])
            train, held = np.arange(len(every)), np.arange(len(every), len(targets))
            notes += _shared(every, other)
            every += other.examples
        _refuse_too_few(examples, task, targets[train])
        return cls(
            replace(examples, examples=every),
            names,
            targets,
            train,
            held,
            tuple(filter(None, (job.file, job.eval))),
            notes,
        )

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
            said = (record.text, record.pair, example.target)
            digest.update(repr((*said, record.extra) if record.extra else said).encode())
        digest.update(self.held.tobytes())
        return digest.hexdigest()


def _shared(every: Sequence[Example], other: Examples) -> list[str]:
    """Say how many texts of the evaluation file are trained on as well."""
    known = {str(example.record.text) for example in every}
    count = sum(str(example.record.text) in known for example in other.examples)
    if not count:
        return []
    return [f"{count:,} of {len(other):,} texts of {other.source} are in the training data as well"]


def _refuse_too_few(examples: Examples, task: str, targets: Any) -> None:
    """Raise InputError when the rows to train on are none, or all of one class."""
    if len(targets) < 2 or (task == "classify" and len(np.unique(targets)) < 2):
        those = counted(len(targets), "example to train on has", "examples to train on have")
        raise InputError(
            f"{examples.source}: the {those} one label",
            "give more examples, or --eval-fraction 0",
        )


# Tasks whose labels are not in the data.
UNNAMED = {"regress": ["score"], "embed": [], "answer": ["LABEL_0", "LABEL_1"]}


def label_names(examples: Examples) -> list[str]:
    """Return the labels that occur, sorted; whole numbers by their value.

    Raises InputError when there is nothing to tell apart.
    """
    task = examples.form.task
    found: set[str] = set()
    if task in UNNAMED:
        return UNNAMED[task]
    for example in examples.examples:
        found.update([example.target] if task == "classify" else example.target)
    least = 1 if task == "multilabel" else 2
    if len(found) < least:
        only = f"the label {next(iter(found))!r}" if found else "no label"
        those = f"all {len(examples):,} examples have" if len(examples) > 1 else "1 example has"
        raise InputError(
            f"{examples.source}: {those} {only}", "training needs examples of at least two labels"
        )
    numbers = all(name.isdecimal() for name in found)
    return sorted(found, key=int) if numbers else sorted(found)


def target_array(task: str, examples: Sequence[Example], names: Sequence[str]) -> Any:
    """Return the targets: class numbers [n], labels [n, k] of 0 and 1, scores [n], or tags.

    Tags are n arrays of numbers, one for each word.

    Raises InputError for a label that is none of the names.
    """
    if task in UNNAMED:
        if any(not isinstance(example.target, float) for example in examples):
            return np.zeros(len(examples), np.float32)  # of pairs, and of answers
        return np.array([example.target for example in examples], np.float32)
    number = {name: index for index, name in enumerate(names)}
    for example in examples:
        for label in [example.target] if task == "classify" else example.target:
            if label not in number:
                raise InputError(
                    f"{example.record.where}: the label {label!r} does not occur in the training "
                    "data",
                    f"labels: {', '.join(names)}",
                )
    if task == "classify":
        return np.array([number[example.target] for example in examples], np.int64)
    if task == "tag":
        tagged = np.empty(len(examples), object)
        tagged[:] = [np.array([number[tag] for tag in one.target], np.int64) for one in examples]
        return tagged
    found = np.zeros((len(examples), len(names)), np.float32)
    for row, example in enumerate(examples):
        found[row, [number[label] for label in example.target]] = 1
    return found


def balanced(task: str, targets: Any, count: int) -> Any:
    """Return weights that make rare labels count as much as common ones, [k].

    Classes: n / (k * their number), as scikit-learn's "balanced". Several labels: texts without
    the label for each that has it.
    """
    if task == "tag":
        return balanced("classify", np.concatenate(list(targets)), count)
    if task == "classify":
        there = np.bincount(targets, minlength=count)
        return (len(targets) / (count * np.maximum(there, 1))).astype(np.float32)
    there = targets.sum(0)
    return ((len(targets) - there) / np.maximum(there, 1)).astype(np.float32)


def label_notes(examples: Examples) -> Iterator[str]:
    """Yield what a user should know of labels: how many each has, and those that conflict."""
    form = examples.form
    if form.task == "classify":
        counts = Counter(example.target for example in examples.examples).most_common()
        shown = ", ".join(f"{name} {count:,}" for name, count in counts[:10])
        rest = f" and {len(counts) - 10} more" if len(counts) > 10 else ""
        yield f"{counted(len(examples), 'example')}, {counted(len(counts), 'label')}: {shown}{rest}"
    else:
        yield f"{counted(len(examples), 'example')} for {form.task}"
    if form == CONTRAST:  # an anchor may have several positives
        return
    said: dict[Any, set[str]] = {}
    for example in examples.examples:
        key = str(example.record.text), str(example.record.pair), str(example.record.extra)
        said.setdefault(key, set()).add(repr(example.target))
    conflicts = sum(len(values) > 1 for values in said.values())
    if conflicts:
        texts = counted(conflicts, "text has", "texts have")
        yield f"{texts} different values of {examples.target!r} in different examples"


def parted(examples: Sequence[Example], fraction: float, seed: int) -> tuple[Any, Any]:
    """Split rows into those to train on and those held out, [n1] and [n2].

    Equal texts, of answers equal contexts, are on one side: texts are drawn, not examples.
    """
    rows_of: dict[str, list[int]] = {}
    for row, example in enumerate(examples):
        record, answers = example.record, isinstance(example.target, AnswerSpan)
        text = record.pair if answers else record.text
        rows_of.setdefault(str(text), []).append(row)
    wanted = round(len(examples) * fraction)
    held: list[int] = []
    if fraction and len(rows_of) > 1:
        groups = list(rows_of.values())
        for place in np.random.default_rng((seed, 1)).permutation(len(groups)).tolist()[1:]:
            if len(held) >= max(wanted, 1):
                break
            held += groups[place]
    inside = np.zeros(len(examples), bool)
    inside[held] = True
    return np.flatnonzero(~inside), np.flatnonzero(inside)
