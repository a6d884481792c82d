from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaudi_validate.core.text_verdict import (
    Difference,
    TextVerdict,
    decide,
    first_difference,
    tie_allowance,
    ulp,
    worst_verdict,
)

IDENTICAL, TIE, DIVERGED = TextVerdict


def difference(
    step: int = 0, margin: float = 0.1, allowed: float = 0.25, golden: int | None = 7, port: int | None = 8
) -> Difference:
    return Difference(step=step, golden=golden, port=port, margin=margin, allowed=allowed)


@pytest.mark.parametrize(
    ("one", "tie"),
    [
        (difference(margin=0.25), True),
        (difference(margin=math.nextafter(0.25, 1)), False),
        (difference(margin=-9.0), True),  # the reference sides with the port
        (difference(margin=0.0, allowed=0.0), True),
        (difference(margin=math.nan), False),
        (difference(allowed=math.nan), False),
        (difference(margin=0.0, port=None), False),
        (difference(margin=0.0, golden=None), False),
    ],
)
def test_tie_up_to_the_allowed_margin(one: Difference, tie: bool) -> None:
    assert one.tie is tie


@pytest.mark.parametrize(
    ("tokens", "most"), [(1, 1), (19, 1), (20, 1), (39, 1), (40, 2), (99, 4), (100, 5), (119, 5), (120, 6)]
)
def test_number_of_ties_that_a_text_may_have(tokens: int, most: int) -> None:
    enough = [difference(step) for step in range(most)]
    assert decide(tokens, enough, share=0.05).verdict is TIE
    too_many = decide(tokens, [*enough, difference(most)], share=0.05)
    assert (too_many.verdict, too_many.most) == (DIVERGED, most)
    assert too_many.culprit == difference(most)


def test_no_difference_is_identical() -> None:
    decision = decide(100, [], share=0.05)
    assert (decision.verdict, decision.culprit, decision.differences) == (IDENTICAL, None, ())


def test_culprit_is_the_first_that_is_no_tie_whatever_the_order() -> None:
    bad, worse = difference(5, margin=0.3), difference(9, margin=4.0)
    decision = decide(100, [worse, difference(2), bad], share=0.05)
    assert decision.verdict is DIVERGED
    assert decision.culprit is bad
    assert [one.step for one in decision.differences] == [2, 5, 9]


def test_one_defect_outweighs_any_number_of_ties() -> None:
    many = [difference(step) for step in range(8)]
    assert decide(100, [*many, difference(50, margin=1.0)], share=0.05).culprit == difference(50, margin=1.0)


def test_worst_verdict() -> None:
    assert worst_verdict([]) is IDENTICAL
    assert worst_verdict([TIE, IDENTICAL]) is TIE
    assert worst_verdict([TIE, DIVERGED, IDENTICAL]) is DIVERGED


@pytest.mark.parametrize(
    ("golden", "port", "step"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([1], [1, 2], 1), ([1], [], 0)],
)
def test_first_difference(golden: list[int], port: list[int], step: int | None) -> None:
    assert first_difference(golden, port) == step


@pytest.mark.parametrize(
    ("value", "bits", "gap"),
    [
        (16.0, 8, 0.125),
        (-16.0, 8, 0.125),
        (math.nextafter(16.0, 0), 8, 0.0625),
        (31.9, 8, 0.125),
        (1.0, 11, 2.0**-10),
        (0.75, 24, 2.0**-24),
        (0.0, 8, 0.0),
    ],
)
def test_ulp(value: float, bits: int, gap: float) -> None:
    assert ulp(value, bits) == gap


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_ulp_of_a_double_is_the_standard_library_s(value: float) -> None:
    assert ulp(value, 53) == math.ulp(value)


def test_ulp_of_nan_and_infinity_is_nan_so_that_nothing_is_a_tie() -> None:
    assert math.isnan(ulp(math.inf, 8))
    assert math.isnan(ulp(math.nan, 8))


def test_allowance_is_twice_the_larger_of_ulp_and_naive_error() -> None:
    assert tie_allowance([17.0, 16.5], [0.01, -0.02], bits=8, factor=2.0) == 0.25
    assert tie_allowance([17.0, 16.5], [0.01, -0.2], bits=8, factor=2.0) == 0.4
    assert tie_allowance([15.9, 16.5], [0.0, 0.0], bits=8, factor=2.0) == 0.25
