"""The statistics on samples with known answers, and their error rates counted over simulated runs with fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from gaudi_validate.core import gates
from gaudi_validate.core.verdicts import Status
from gaudi_validate.measure import statistics

RUNS = 300


def _timings(rng: np.random.Generator, *, slowdown: float = 1.0, noise: float = 0.02, n: int = 7) -> list[int]:
    """Return n timings in ns around 10 ms, log-normal with sd ``noise``."""
    return [round(t) for t in 1e7 * slowdown * np.exp(rng.normal(0, noise, n))]


def _judged(rng: np.random.Generator, slowdown: float, noise: float) -> Status:
    """Return the verdict of a run as the check makes it: a loss is measured a second time."""
    rounds = [statistics.compare(_timings(rng, noise=noise), _timings(rng, slowdown=slowdown, noise=noise))]
    if gates.regressed(rounds[0]):
        rounds.append(statistics.compare(_timings(rng, noise=noise), _timings(rng, slowdown=slowdown, noise=noise)))
    return gates.paired_speed(rounds).status


def _share(status: Status, *, slowdown: float, noise: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    return sum(_judged(rng, slowdown, noise) is status for _ in range(RUNS)) / RUNS


def test_p_is_exact() -> None:
    # All of seven above all of seven is one ordering of 14 over 7; five over five, the fewest allowed, one of 252.
    assert statistics.p_greater(range(7, 14), range(7)) == pytest.approx(1 / math.comb(14, 7), rel=1e-12)
    assert statistics.p_greater(range(5, 10), range(5)) == pytest.approx(1 / 252, rel=1e-12)
    assert statistics.p_greater(range(4, 8), range(4)) == pytest.approx(1 / 70, rel=1e-12)
    assert statistics.p_greater(range(7), range(7, 14)) == 1.0


def test_equal_timings_say_nothing() -> None:
    same = statistics.compare([100] * 7, [100] * 7)
    assert (same.ratio, same.low, same.high, same.cv) == (1.0, 1.0, 1.0, 0.0)
    assert same.p_slower >= 0.5


@pytest.mark.parametrize(("n", "m"), [(5, 5), (7, 7), (5, 8), (3, 2)])
def test_the_intervals_ends_agree_with_the_test(n: int, m: int) -> None:
    # The largest U that the test rejects at 5 %, against scipy's own exact distribution.
    cut = statistics._cut(n, m, 0.05)
    for u in range(n * m + 1):
        sample, other = _with_u(n, m, u)
        rejects = mannwhitneyu(sample, other, alternative="less", method="exact").pvalue <= 0.05
        assert rejects == (u <= cut)


def _with_u(n: int, m: int, u: int) -> tuple[list[float], list[float]]:
    """Return samples with Mann-Whitney's U of the first over the second equal to ``u``."""
    full, rest = divmod(u, m)
    values = [m + 1.0 + i for i in range(full)]
    if len(values) < n:
        values.append(rest + 0.5)
    values += [-1.0 - i for i in range(n - len(values))]
    return values, [float(j + 1) for j in range(m)]


def test_median_ratio_by_hand() -> None:
    low, ratio, high = statistics.median_ratio([10, 20, 40], [10, 10, 10])
    assert (low, ratio, high) == (1.0, 2.0, 4.0)  # 3 a side: one ordering of 20 is 5 %, so only the ends bound it
    low, ratio, high = statistics.median_ratio([10, 20], [10, 10])
    assert (low, ratio, high) == (0.0, 1.5, math.inf)


def test_robust_sd_ignores_a_stall() -> None:
    rng = np.random.default_rng(0)
    sample = list(rng.normal(100, 2, 1001))
    assert statistics.robust_sd(sample) == pytest.approx(2, rel=0.1)
    assert statistics.coefficient_of_variation([100, 101, 99, 100, 102, 98, 3000]) == pytest.approx(0.0148, abs=1e-4)
    assert statistics.coefficient_of_variation([0, 0, 0]) == math.inf


def test_no_samples_compare_to_nothing() -> None:
    nothing = statistics.compare([], [1, 2, 3])
    assert (nothing.before_samples, nothing.after_samples) == (0, 3)
    assert math.isnan(nothing.ratio)


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.08])
def test_false_alarms_on_equal_code(noise: float) -> None:
    # Two rounds at p <= 0.01 each: one in ten thousand, so none in 300 is expected whatever the noise.
    assert _share(Status.FAIL, slowdown=1.0, noise=noise, seed=1) == 0


def test_equal_code_on_a_quiet_machine_passes() -> None:
    assert _share(Status.PASS, slowdown=1.0, noise=0.01, seed=2) >= 0.99


def test_ten_percent_slower_is_found() -> None:
    assert _share(Status.FAIL, slowdown=1.10, noise=0.02, seed=3) >= 0.99


def test_ten_percent_slower_never_passes_even_under_noise() -> None:
    # Non-inferiority is a one-sided 5 % test at 0.95: at 0.909 and noise 4 % far fewer than 5 % slip through.
    assert _share(Status.PASS, slowdown=1.10, noise=0.04, seed=4) <= 0.02


def test_one_percent_slower_is_no_regression() -> None:
    assert _share(Status.FAIL, slowdown=1.01, noise=0.01, seed=5) <= 0.01


def test_a_stall_changes_no_verdict() -> None:
    rng = np.random.default_rng(6)
    statuses = []
    for _ in range(RUNS):
        before, after = _timings(rng, noise=0.01), _timings(rng, noise=0.01)
        after[int(rng.integers(7))] *= 30
        statuses.append(gates.paired_speed([statistics.compare(before, after)]).status)
    assert statuses.count(Status.PASS) / RUNS >= 0.98


def test_the_detectable_slowdown_is_detected_four_times_in_five() -> None:
    rng = np.random.default_rng(7)
    # At the true noise: the sample's own robust sd scatters with seven samples.
    wide = np.exp(rng.normal(0, 0.02, 4001)).tolist()
    factor = statistics.detectable_slowdown(wide, wide) - 1
    factor = (1 + factor) ** math.sqrt(4001 / 7)
    found = sum(statistics.p_greater(_timings(rng, slowdown=factor), _timings(rng)) <= 0.01 for _ in range(RUNS))
    assert 0.65 <= found / RUNS <= 0.9


def test_the_interval_covers_and_is_narrower_than_a_bootstraps() -> None:
    rng = np.random.default_rng(8)
    exact, bootstrap = [], []
    for _ in range(RUNS):
        before, after = _timings(rng, noise=0.03), _timings(rng, noise=0.03)
        exact.append(statistics.median_ratio(before, after)[0])
        draws = np.median(rng.choice(before, (400, 7)), axis=1) / np.median(rng.choice(after, (400, 7)), axis=1)
        bootstrap.append(float(np.quantile(draws, 0.05)))
    assert 0.93 <= np.mean(np.array(exact) <= 1) <= 0.98
    assert 0.93 <= np.mean(np.array(bootstrap) <= 1) <= 0.98
    assert np.mean(exact) > np.mean(bootstrap) + 0.002
