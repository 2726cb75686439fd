"""Labelled texts, parted for training and evaluation: read, checked and counted. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertcli.checkpoints.scan import bert_folder, require_weights
from bertcli.errors import InputError, UsageError
from bertcli.files.digests import sha256
from bertcli.records.examples import Example, Examples, read_examples
from bertcli.records.reader import Reader
from bertcli.records.records import Record
from bertcli.training.labels import (
    UNNAMED,
    balanced,
    label_names,
    label_notes,
    parted,
    target_array,
)
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
        weights = require_weights(bert_folder(base)).all
        return {
            "task": self.task,
            "data_sha256": self.digest,
            "base_sha256": " ".join(sha256(path) for path in weights),
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
        raise InputError(
            f"{examples.source}: the {len(targets)} examples to train on have one label",
            "give more examples, or --eval-fraction 0",
        )
