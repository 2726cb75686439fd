"""How the learning rate rises and falls. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """A linear warm-up to `peak`, then a polynomial decay to zero at `steps`; power 1 is linear.

    Source: BERT, appendix A.2; the values are those of transformers'
    get_polynomial_decay_schedule_with_warmup with lr_end 0.
    """

    peak: float
    warmup_steps: int
    steps: int
    power: float = 1.0

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0: the first of a warm-up is 0."""
        if step < self.warmup_steps:
            return self.peak * step / self.warmup_steps
        if step >= self.steps:
            return 0.0
        left = 1 - (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return float(self.peak * left**self.power)
