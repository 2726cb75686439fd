"""Notes about labels that a model can hardly learn: rare, unbalanced or conflicting ones.

label_notes(examples, task="classify")   # ["fewer than 2 examples: neutral (1)"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from bertcli.errors import counted, option
from bertcli.tasks.learning import Example

MIN_EXAMPLES = 2  # of a label
MAX_IMBALANCE = 20  # times as many examples as of the rarest label
MAX_LISTED = 5  # labels in a note


def label_notes(examples: Sequence[Example], task: str, *, weighted: bool = False) -> Iterator[str]:
    """Yield notes about the labels of examples to train on.

    If labels are ``weighted``, there is no note about unbalanced ones.
    """
    if task not in ("classify", "multilabel"):
        return
    counts = Counter(label for example in examples for label in example.target)
    rare = [label for label, count in counts.items() if count < MIN_EXAMPLES]
    if rare:
        listed = ", ".join(map(str, rare[:MAX_LISTED])) + (
            ", ..." if len(rare) > MAX_LISTED else ""
        )
        labels = counted(len(rare), "label has", "labels have")
        yield f"{labels} fewer than {MIN_EXAMPLES} examples to train on: {listed}"
    if counts and not rare and not weighted:
        by_count = counts.most_common()
        common, common_count = by_count[0]
        rarest, rarest_count = by_count[-1]
        if common_count >= MAX_IMBALANCE * rarest_count:
            yield (
                f"labels are unbalanced: {common_count:,} examples of {common}, "
                f"{rarest_count:,} of {rarest}; "
                f"{option('class_weights', 'balanced')} gives them equal weight"
            )
    yield from _conflicts(examples)


def _conflicts(examples: Sequence[Example]) -> Iterator[str]:
    """Yield a note if equal texts have different labels."""
    # text and pair -> labels -> the first example with them
    examples_of_texts: dict[str, dict[tuple[str, ...], Example]] = {}
    for example in examples:
        text = repr((example.record.text, example.record.pair))
        by_labels = examples_of_texts.setdefault(text, {})
        by_labels.setdefault(tuple(sorted(example.target)), example)
    conflicts = [by_labels for by_labels in examples_of_texts.values() if len(by_labels) > 1]
    if conflicts:
        (labels, example), (other_labels, other_example), *_ = conflicts[0].items()
        texts = counted(len(conflicts), "text has", "texts have")
        yield (
            f"{texts} conflicting labels, for example {', '.join(labels) or 'none'} in "
            f"{example.record.where} and {', '.join(other_labels) or 'none'} in "
            f"{other_example.record.where}"
        )
