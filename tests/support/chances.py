"""How unlikely a count is, exactly: the tails of the binomial distribution."""

from math import exp, lgamma, log

UNLIKELY = 1e-6  # of a test that fails by chance; the seeds are fixed, so it never comes and goes


def likely(count: int, trials: int, chance: float) -> bool:
    """Tell whether a count as far off as this one is to be expected once in a million times."""

    def probability(k: int) -> float:
        ways = lgamma(trials + 1) - lgamma(k + 1) - lgamma(trials - k + 1)
        return exp(ways + k * log(chance) + (trials - k) * log(1 - chance))

    below = sum(map(probability, range(count + 1)))
    return min(below, 1 - below + probability(count)) > UNLIKELY
