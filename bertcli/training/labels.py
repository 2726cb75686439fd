"""The labels of examples: their numbers, weights, and what is wrong with them. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bertcli.errors import InputError
from bertcli.records.example_forms import CONTRAST
from bertcli.records.examples import AnswerSpan, Example, Examples

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
        raise InputError(
            f"{examples.source}: all {len(examples):,} examples have {only}",
            "training needs examples of at least two labels",
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
        yield f"{len(examples):,} examples, {len(counts)} labels: {shown}{rest}"
    else:
        yield f"{len(examples):,} examples for {form.task}"
    if form == CONTRAST:  # an anchor may have several positives
        return
    said: dict[Any, set[str]] = {}
    for example in examples.examples:
        key = str(example.record.text), str(example.record.pair), str(example.record.extra)
        said.setdefault(key, set()).add(repr(example.target))
    conflicts = sum(len(values) > 1 for values in said.values())
    if conflicts:
        texts = "text has" if conflicts == 1 else "texts have"
        yield f"{conflicts:,} {texts} different values of {examples.target!r} in different examples"


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
