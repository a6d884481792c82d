"""Statistics of timings: exact, deterministic, and fit for seven samples a side. scipy is imported when needed.

The ratio of two sets of timings is the Hodges-Lehmann estimate on logarithms: the median of all pairwise ratios, with
the interval that inverts the exact Mann-Whitney test. It was taken over a bootstrap of the two medians because nothing
in it is random (the same timings always give the same verdict), because it agrees with the test that stands beside it,
and because at seven samples it is the narrower one at the same coverage (counted in tests/measure).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from gaudi_validate.core.gates import Comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

# A normal sample's sd over its median absolute deviation: 1 / Phi^-1(3/4).
_MAD_TO_SD = 1.4826022185056018
# Asymptotic efficiency of the Mann-Whitney test against the t test on normal data: 3 / pi.
_EFFICIENCY = 3 / math.pi


def compare(before_ns: Sequence[int], after_ns: Sequence[int], *, confidence: float = 0.95) -> Comparison:
    """Compare two sets of timings in ns. The ratio is before over after: above 1, after is the faster one.

    ``confidence`` is that of each side of the interval alone, as a one-sided gate needs it.
    """
    counts = len(before_ns), len(after_ns)
    if min(counts) == 0:
        return Comparison(before_samples=counts[0], after_samples=counts[1])
    low, ratio, high = median_ratio(before_ns, after_ns, confidence=confidence)
    return Comparison(
        before_samples=counts[0],
        after_samples=counts[1],
        ratio=ratio,
        low=low,
        high=high,
        p_slower=p_greater(after_ns, before_ns),
        detectable_ratio=1 / detectable_slowdown(before_ns, after_ns),
        cv=max(coefficient_of_variation(before_ns), coefficient_of_variation(after_ns)),
    )


def p_greater(sample: Sequence[float], other: Sequence[float]) -> float:
    """Return the exact one-sided Mann-Whitney p for "``sample`` tends to be greater than ``other``".

    Ties get midranks, for which the exact distribution is conservative here: timings in ns hardly ever tie.
    """
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(sample, other, alternative="greater", method="exact").pvalue)


def robust_sd(sample: Sequence[float]) -> float:
    """Return the sd of a normal sample with the same median absolute deviation: half of the sample may be off."""
    middle = median(sample)
    return _MAD_TO_SD * median(abs(value - middle) for value in sample)


def coefficient_of_variation(sample: Sequence[float]) -> float:
    """Return the robust sd over the median; infinite when the median is not above 0.

    Robust, because one stall of the machine (seen: 25 to 50 times as long on shared cores) says nothing of the code,
    and neither the median ratio nor the rank test heeds it.
    """
    middle = median(sample)
    return robust_sd(sample) / middle if middle > 0 else math.inf


def median_ratio(
    before: Sequence[float], after: Sequence[float], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Return (low, estimate, high) of the median of all before_i / after_j.

    Each end holds with at least ``confidence`` on its own, exactly, whatever the distribution (equal but for a
    factor). With too few samples for that, the end is 0 or infinite.
    """
    ratios = sorted(b / a for b in before for a in after)
    cut = _cut(len(before), len(after), 1 - confidence)
    low, high = (0.0, math.inf) if cut < 0 else (ratios[cut], ratios[-1 - cut])
    return low, median(ratios), high


def detectable_slowdown(
    before: Sequence[float], after: Sequence[float], *, alpha: float = 0.01, power: float = 0.8
) -> float:
    """Return the factor (1.08: 8 % slower) that a test of this size and noise sees with probability ``power``.

    The normal approximation with the Mann-Whitney efficiency; its power is checked by simulation in tests/measure.
    """
    from scipy.stats import norm

    spread = math.sqrt(sum(robust_sd([math.log(v) for v in sample]) ** 2 / len(sample) for sample in (before, after)))
    return math.exp(float(norm.isf(alpha) + norm.ppf(power)) * spread / math.sqrt(_EFFICIENCY))


@lru_cache(maxsize=64)
def _cut(n: int, m: int, alpha: float) -> int:
    """Return the largest k with P(U <= k) <= alpha under no difference, -1 when there is none."""
    counts, total, below = _rank_sums(n, m), math.comb(n + m, n), 0
    for k, count in enumerate(counts):
        below += count
        if below > alpha * total:
            return k - 1
    return n * m


def _rank_sums(n: int, m: int) -> list[int]:
    """Return how many of the orderings of n and m samples have each value of Mann-Whitney's U, 0 to n m."""
    # Gaussian binomial coefficients: multiply by (1 - q^(m+i)) and divide by (1 - q^i), for i = 1 to n.
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts
