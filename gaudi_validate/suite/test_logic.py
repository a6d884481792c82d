"""Is the port's logic the reference's? In fp64, where a fault stands out and rounding plays no part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate.models.catalogue import TINY, resolve
from gaudi_validate.scenarios.matrix import PAST_8192, applicable

if TYPE_CHECKING:
    from gaudi_validate.fixture_objects import AssertParity

CASES = [(model, scenario.id) for model in TINY for scenario in applicable(resolve(model).features)]
# The real model adds depth and real weights; the matrix on the tiny models has the breadth.
REAL_MODEL = ("left-mixed", "decode", "continuation", "static-tail")

pytestmark = pytest.mark.parity


@pytest.mark.parametrize(("model", "scenario"), CASES)
def test_logic_parity(assert_parity: AssertParity, model: str, scenario: str, attention: str | None) -> None:
    """Each tiny model, each scenario that says something about it."""
    assert_parity(model, scenario, port=attention)


@pytest.mark.slow
def test_logic_parity_past_8192_tokens(assert_parity: AssertParity, saving_attention: str | None) -> None:
    """The length from which optimum-habana slices queries, with the implementation's own block size, on one layer."""
    assert_parity("tiny-llama-one-layer", PAST_8192, port=saving_attention)


@pytest.mark.slow
def test_logic_parity_of_the_real_model(assert_parity: AssertParity, default_attention: str | None) -> None:
    """The model of --model, with padding, decoding, continuation and a static cache."""
    assert_parity(None, REAL_MODEL, port=default_attention)
