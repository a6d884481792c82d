from __future__ import annotations

from typing import Any

import pytest

from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.matrix import BY_ID, MATRIX, PAST_8192, applicable


def test_ids_are_unique() -> None:
    assert len(BY_ID) == len(MATRIX) + 1
    assert PAST_8192 not in MATRIX


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lengths": (3, 4)}, "rows of different lengths need a padding side"),
        ({"lengths": (4,), "chunks": (1, 2), "cache": "dynamic"}, "chunks (1, 2) do not add up to 4 columns"),
        ({"lengths": (4,), "chunks": (2, 2)}, "several chunks need a cache"),
        ({"lengths": (4,), "cache": "static"}, "a static cache, and only that, has a cache_length"),
        ({"lengths": (4,), "packed_lengths": (1, 2)}, "packed_lengths do not add up to 4 columns"),
        ({"lengths": (4,), "earlier_lengths": (9,)}, "earlier_lengths need a second call and one length a row"),
    ],
)
def test_scenarios_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="scenario x") as error:
        Scenario(id="x", **wrong)
    assert str(error.value) == f"scenario x: {message}"


def test_applicable_leaves_out_what_the_model_cannot_show() -> None:
    needy = Scenario(id="x", lengths=(1,), needs=frozenset({"window"}))
    assert needy.needs <= frozenset({"window", "gqa"})
    assert applicable(frozenset()) == tuple(s for s in MATRIX if not s.needs)
