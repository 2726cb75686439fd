"""Exact probabilities of counts: the tails of the binomial distribution."""

from math import exp, lgamma, log

UNLIKELY = 1e-6  # probability of a count that fails a test; seeds are fixed, so none is flaky


def likely(count: int, trials: int, chance: float) -> bool:
    """Return True if a deviation at least this large has a probability above ``UNLIKELY``."""

    def probability(k: int) -> float:
        ways = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
        return exp(ways + k * log(chance) + (trials - k) * log(1 - chance))

    below = sum(map(probability, range(count + 1)))
    return min(below, 1 - below + probability(count)) > UNLIKELY
