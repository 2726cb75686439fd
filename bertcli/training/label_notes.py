"""Notes about labels that a model can hardly learn: rare ones, and those that conflict.

label_notes(examples, task="classify")   # ["fewer than 2 examples: neutral (1)"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from bertcli.errors import counted, option
from bertcli.tasks.learning import Example

MIN_EXAMPLES = 2  # of a label
MAX_IMBALANCE = 20  # times as many examples as of the rarest label
SHOWN = 5  # labels in a note


def label_notes(examples: Sequence[Example], task: str, *, weighted: bool = False) -> Iterator[str]:
    """Yield notes about the labels of examples to train on.

    ``weighted`` labels count alike however many examples they have.
    """
    if task not in ("classify", "multilabel"):
        return
    counts = Counter(label for example in examples for label in example.target)
    rare = [label for label, count in counts.items() if count < MIN_EXAMPLES]
    if rare:
        listed = ", ".join(map(str, rare[:SHOWN])) + (", ..." if len(rare) > SHOWN else "")
        labels = counted(len(rare), "label has", "labels have")
        yield f"{labels} fewer than {MIN_EXAMPLES} examples to train on: {listed}"
    if counts and not rare and not weighted:
        by_count = counts.most_common()
        common, most = by_count[0]
        rarest, least = by_count[-1]
        if most >= MAX_IMBALANCE * least:
            yield (
                f"labels are unbalanced: {most:,} examples of {common}, {least:,} of {rarest}; "
                f"{option('class_weights', 'balanced')} gives them equal weight"
            )
    yield from _conflicts(examples)


def _conflicts(examples: Sequence[Example]) -> Iterator[str]:
    """Yield a note if equal texts have different labels."""
    labels: dict[Any, dict[tuple[str, ...], Example]] = {}
    for example in examples:
        text = repr((example.record.text, example.record.pair))
        labels.setdefault(text, {}).setdefault(tuple(sorted(example.target)), example)
    conflicts = [by_labels for by_labels in labels.values() if len(by_labels) > 1]
    if conflicts:
        (first, one), (second, other), *_ = conflicts[0].items()
        texts = counted(len(conflicts), "text has", "texts have")
        yield (
            f"{texts} conflicting labels, for example {', '.join(first) or 'none'} in "
            f"{one.record.where} and {', '.join(second) or 'none'} in {other.record.where}"
        )
