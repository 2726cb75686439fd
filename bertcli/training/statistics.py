"""Statistics of training instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertcli.errors import counted
from bertcli.tokenizing.statistics import quantile
from bertcli.training.instances import Instance

MOSTLY = 0.75  # share of random pairs above which a warning is shown; half is intended


@dataclass
class Statistics:
    """Counts over instances; ``summary`` is the result."""

    mask_id: int
    max_length: int
    lengths: Counter[int] = field(default_factory=Counter)
    random_next: int = 0
    predictions: int = 0
    masked: int = 0  # predictions replaced by [MASK]
    kept: int = 0  # predictions left unchanged

    def add(self, found: Sequence[Instance]) -> None:
        """Count instances."""
        for (ids, positions, labels), _, is_random, _ in found:
            self.lengths[len(ids)] += 1
            self.random_next += is_random
            self.predictions += len(positions)
            for at, label in zip(positions, labels, strict=True):
                stands = ids[at]
                if stands == self.mask_id:
                    self.masked += 1
                elif stands == label:
                    self.kept += 1

    @property
    def instances(self) -> int:
        """The number of instances."""
        return self.lengths.total()

    def summary(self) -> dict[str, Any]:
        """Return it as JSON values; lengths and tokens include special tokens, but no padding."""
        tokens = sum(length * count for length, count in self.lengths.items())
        replaced = self.predictions - self.masked - self.kept
        return {
            "instances": self.instances,
            "tokens": tokens,
            "random_next_share": _share(self.random_next, self.instances),
            "predictions": self.predictions,
            "predicted_share": _share(self.predictions, tokens),
            "mask_share": _share(self.masked, self.predictions),
            "random_token_share": _share(replaced, self.predictions),
            "kept_share": _share(self.kept, self.predictions),
            "length": {
                "min": min(self.lengths, default=0),
                **{f"p{share}": quantile(self.lengths, share / 100) for share in (1, 10, 50, 90)},
                "max": max(self.lengths, default=0),
            },
            "padding_share": _share(
                self.instances * self.max_length - tokens, self.instances * self.max_length
            ),
        }

    def lines(self) -> Iterator[str]:
        """Yield the summary as messages."""
        found = self.summary()
        yield (
            f"{counted(found['instances'], 'instance')}, {found['tokens']:,} tokens; "
            f"second sentence random in {found['random_next_share']:.1%} of the pairs"
        )
        yield (
            f"{found['predicted_share']:.1%} of the tokens masked: "
            f"{found['mask_share']:.1%} [MASK], {found['random_token_share']:.1%} random token, "
            f"{found['kept_share']:.1%} unchanged"
        )
        lengths = ", ".join(f"{name} {length}" for name, length in found["length"].items())
        yield f"lengths: {lengths}; {found['padding_share']:.1%} padding"

    def warnings(self) -> Iterator[str]:
        """Yield warnings about a corpus that is probably not as intended."""
        share = self.random_next / self.instances if self.instances else 0
        if share > MOSTLY:
            yield (
                f"second sentence random in {share:.0%} of the pairs, as many sentences fill "
                "a sequence alone; give one sentence per line"
            )


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
