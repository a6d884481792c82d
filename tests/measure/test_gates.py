"""Each gate at, under and over its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gaudi_validate.core import gates
from gaudi_validate.core.gates import Comparison
from gaudi_validate.core.verdicts import Status

MIB = 1024**2

SAME = Comparison(
    before_samples=7,
    after_samples=7,
    ratio=1.0,
    low=0.99,
    high=1.01,
    p_slower=0.5,
    detectable_ratio=0.98,
    cv=0.01,
)
SLOWER = replace(SAME, ratio=0.9, low=0.88, high=0.92, p_slower=0.0003)


@pytest.mark.parametrize(
    ("ratio", "p_slower", "lost"),
    [
        (0.9699, 0.01, True),
        (0.97, 0.01, False),
        (0.9699, 0.0101, False),
        (0.5, 0.5, False),
        (1.2, 0.0001, False),
        (math.nan, 0.001, False),
        (0.9, math.nan, False),
    ],
)
def test_a_loss_needs_both_its_size_and_its_certainty(ratio: float, p_slower: float, lost: bool) -> None:
    assert gates.regressed(replace(SAME, ratio=ratio, p_slower=p_slower)) is lost


def test_a_regression_is_seen_twice() -> None:
    assert gates.paired_speed([SLOWER, SLOWER]).status is Status.FAIL
    assert gates.paired_speed([SLOWER]).status is Status.INCONCLUSIVE
    assert gates.paired_speed([SLOWER, SAME]).status is Status.INCONCLUSIVE
    assert gates.paired_speed([SAME, SLOWER]).status is Status.INCONCLUSIVE


def test_a_certain_small_loss_is_neither_a_regression_nor_hidden() -> None:
    # 4 % slower for certain is a regression though 5 % are ruled out: the loss wins.
    small = replace(SAME, ratio=0.96, low=0.955, high=0.965, p_slower=0.0003)
    assert gates.paired_speed([small, small]).status is Status.FAIL


@pytest.mark.parametrize(
    ("low", "status"), [(0.9501, Status.PASS), (0.95, Status.INCONCLUSIVE), (0.9, Status.INCONCLUSIVE)]
)
def test_equivalent_is_non_inferior_at_five_percent(low: float, status: Status) -> None:
    assert gates.paired_speed([replace(SAME, low=low)]).status is status


@pytest.mark.parametrize("side", ["before_samples", "after_samples"])
def test_four_repetitions_are_not_measured(side: str) -> None:
    assert gates.paired_speed([replace(SAME, **{side: 5})]).status is Status.PASS
    few = gates.paired_speed([replace(SAME, **{side: 4})])
    assert (few.status, few.reason) == (Status.NOT_MEASURED, "4 valid repetitions a side, 5 needed")
    assert gates.faster_than(replace(SAME, **{side: 4}), 0.5).status is Status.NOT_MEASURED


@pytest.mark.parametrize(
    ("cv", "status"), [(0.1, Status.PASS), (0.1001, Status.NOT_MEASURED), (math.nan, Status.NOT_MEASURED)]
)
def test_noisy_timings_are_not_measured(cv: float, status: Status) -> None:
    assert gates.paired_speed([replace(SAME, cv=cv)]).status is status


def test_a_bad_first_round_is_not_forgotten() -> None:
    assert gates.paired_speed([replace(SLOWER, cv=0.2), SLOWER]).status is Status.NOT_MEASURED


def test_no_round_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        gates.paired_speed([])


def test_nothing_measured_is_said_and_is_json() -> None:
    verdict = gates.paired_speed([Comparison(before_samples=0, after_samples=7)])
    assert verdict.status is Status.NOT_MEASURED
    assert [m.value for m in verdict.measurements] == [None, None, None, None, None, None, 0]


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (3.0, 3.5, Status.PASS),
        (2.999, 3.5, Status.INCONCLUSIVE),
        (2.5, 3.0, Status.INCONCLUSIVE),
        (2.5, 2.999, Status.FAIL),
        (0.0, math.inf, Status.INCONCLUSIVE),
    ],
)
def test_a_required_speed_is_judged_with_its_interval(low: float, high: float, status: Status) -> None:
    assert gates.faster_than(replace(SAME, ratio=3.0, low=low, high=high), 3).status is status


def test_reasons_are_whole_lines() -> None:
    assert gates.paired_speed([SLOWER, SLOWER]).reason == (
        "slower in 2 rounds: ratio 0.900 (95 % bounds 0.880 to 0.920), p 0.0003"
    )
    assert gates.paired_speed([SLOWER]).reason == (
        "slower in 1 of 1 rounds, two are needed: last ratio 0.900 (95 % bounds 0.880 to 0.920), p 0.0003"
    )
    assert gates.paired_speed([replace(SAME, low=0.94)]).reason == (
        "a loss of 5 % is not ruled out: ratio 1.000 (95 % bounds 0.940 to 1.010), p 0.5; "
        "ratios above 0.980 could be missed"
    )
    assert gates.faster_than(replace(SAME, ratio=2.5, low=2.4, high=2.6), 3).reason == (
        "2.50x (95 % bounds 2.40 to 2.60), below the 3x required"
    )
    assert gates.memory_ratio(2 * MIB, 6 * MIB, 0.25).reason == (
        "peak 2.00 MiB is 0.3333 of naive's 6.00 MiB, 0.25 allowed"
    )
    assert gates.exact_count("graphs", 337, 369, "graphs").reason == "graphs rose from 337 to 369 graphs (+32)"


@pytest.mark.parametrize(("saving", "status"), [(100, Status.PASS), (101, Status.FAIL), (0, Status.PASS)])
def test_memory_ratio_at_its_limit(saving: int, status: Status) -> None:
    assert gates.memory_ratio(saving, 600, 1 / 6).status is status


def test_a_naive_peak_of_nothing_passes_nobody() -> None:
    assert gates.memory_ratio(0, 0, 0.5).status is Status.FAIL


@pytest.mark.parametrize(
    ("growth", "status"), [(1.0, Status.PASS), (1.199, Status.PASS), (1.201, Status.FAIL), (2.0, Status.FAIL)]
)
def test_memory_slope_at_its_limit(growth: float, status: Status) -> None:
    lengths = (1024, 2048, 4096)
    verdict = gates.memory_slope(lengths, [round(1e9 * (n / 1024) ** growth) for n in lengths])
    assert verdict.status is status
    assert verdict.measurements[0].value == pytest.approx(growth, abs=1e-6)


def test_a_fallback_above_some_length_is_not_averaged_away() -> None:
    # Half constant, half quadratic: a fit through the three gives 1.0.
    assert gates.memory_slope((1, 2, 4), (100, 100, 400)).status is Status.FAIL


@pytest.mark.parametrize(("peaks", "slope"), [((0, 0, 0), 0.0), ((0, 1, 2), math.inf)])
def test_slope_from_nothing(peaks: tuple[int, ...], slope: float) -> None:
    assert gates.steepest_slope((1, 2, 4), peaks) == slope


@pytest.mark.parametrize("lengths", [(1, 2), (1, 1, 2), (4, 2, 1)])
def test_a_slope_needs_three_rising_lengths(lengths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="three or more rising lengths"):
        gates.steepest_slope(lengths, [1] * len(lengths))


def test_memory_against_a_baseline_on_a_device_has_an_allowance() -> None:
    base = 1000 * MIB
    assert gates.memory_head(base, 1036 * MIB, counted=False).status is Status.PASS
    assert gates.memory_head(base, 1036 * MIB + 1, counted=False).status is Status.FAIL


@pytest.mark.parametrize(("head", "status"), [(99, Status.IMPROVED), (100, Status.PASS), (101, Status.FAIL)])
def test_a_count_has_no_allowance(head: int, status: Status) -> None:
    assert gates.memory_head(100, head, counted=True).status is status
    assert gates.exact_count("graphs", 100, head, "graphs").status is status


def test_every_constant_says_what_set_it() -> None:
    assert all(limit.source for limit in gates.LIMITS.values())


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (12 * 1024**3, "12.00 GiB")]
)
def test_bytes_for_a_reader(count: int, text: str) -> None:
    assert gates.mib(count) == text
