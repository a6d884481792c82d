from __future__ import annotations

import math

import pytest
import torch

from gaudi_validate.checks import errors
from gaudi_validate.checks.budgets import FORMATS, format_of
from gaudi_validate.checks.errors import judge

BF16 = FORMATS["bfloat16"]
TRUTH = torch.full((4, 8), 2.0, dtype=torch.float64)
FLOOR = 2.0 * 2.0**-8


def off(*errors: float) -> torch.Tensor:
    return TRUTH + torch.tensor(errors, dtype=torch.float64)[:, None]


def test_g_and_w_of_known_errors() -> None:
    judged = judge(off(0.1, 0.1, 0.1, 0.3), off(0.1, 0.2, 0.1, 0.1), TRUTH, BF16)
    assert judged.g == pytest.approx(math.sqrt(0.12 / 0.07))
    assert judged.w == pytest.approx(3.0)
    assert (judged.row, judged.pattern) == (3, 0)


def test_a_naive_row_that_is_exact_by_luck_is_held_to_the_floor() -> None:
    judged = judge(off(0, 0, 2 * FLOOR, 0), off(0, 0, 0, 0), TRUTH, BF16)
    assert judged.w == pytest.approx(2.0)
    assert judged.row == 2
    assert judged.g == pytest.approx(1.0)


def test_no_error_at_all() -> None:
    judged = judge(TRUTH, TRUTH, TRUTH, BF16)
    assert (judged.g, judged.w, judged.pattern) == (0.0, 0.0, 0)
    zero = torch.zeros(3, 4)
    assert judge(zero, zero, zero, BF16).w == 0.0


def test_floor_does_not_vanish_among_subnormals() -> None:
    fp16 = FORMATS["float16"]
    truth = torch.full((1, 4), 1e-7, dtype=torch.float64)
    assert judge(truth.half(), truth, truth, fp16).w <= 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_or_infinity_where_naive_has_none(value: float) -> None:
    port = TRUTH.clone()
    port[2, 3:5] = value
    judged = judge(port, TRUTH, TRUTH, BF16)
    assert (judged.g, judged.w, judged.row, judged.pattern) == (math.inf, math.inf, 2, 2)


def test_a_port_may_share_naive_s_pattern_or_be_better() -> None:
    bad = TRUTH.clone()
    bad[1] = math.inf
    for port in (bad, TRUTH):
        judged = judge(port, bad, TRUTH, BF16)
        assert (judged.g, judged.w, judged.pattern) == (0.0, 0.0, 0)


def test_the_other_infinity_and_nan_for_infinity_are_wrong() -> None:
    naive = TRUTH.clone()
    naive[0, 0] = math.inf
    for value in (-math.inf, math.nan):
        port = naive.clone()
        port[0, 0] = value
        assert judge(port, naive, TRUTH, BF16).pattern == 1


def test_rows_are_counted_over_all_leading_dimensions() -> None:
    truth = torch.ones(2, 3, 4, 8)
    port = truth.clone()
    port[1, 2, 3] += 1.0
    assert judge(port, truth, truth, BF16).row == 23


def test_no_rows() -> None:
    empty = torch.empty(0, 8)
    judged = judge(empty, empty, empty, BF16)
    assert (judged.g, judged.w, judged.pattern) == (0.0, 0.0, 0)


def test_formats_are_those_of_torch() -> None:
    for name, fmt in FORMATS.items():
        info = torch.finfo(getattr(torch, name))
        assert info.eps == 2.0 ** (1 - fmt.bits)
        assert info.smallest_normal * info.eps == fmt.quantum


def test_unknown_dtype_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="no error budget for float8_e4m3fn; there is one for bfloat16, float16, float32"
    ):
        format_of("float8_e4m3fn")


def test_slicing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    port, naive, truth = (torch.randn(7, 16, generator=generator) for _ in range(3))
    whole = judge(port, naive, truth, BF16)
    monkeypatch.setattr(errors, "_SLICE_VALUES", 40)
    assert judge(port, naive, truth, BF16) == whole
