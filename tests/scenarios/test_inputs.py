from __future__ import annotations

import pytest
import torch

from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.inputs import make, real_tokens
from gaudi_validate.scenarios.matrix import BY_ID, MATRIX

VOCABULARY = 260


def test_left_padding_mask_and_positions_as_in_generation() -> None:
    scenario = Scenario(id="x", lengths=(2, 4), padding="left", chunks=(3, 1), cache="dynamic")
    first, second = make(scenario, VOCABULARY).calls[0]
    assert first.attention_mask is not None
    assert second.attention_mask is not None
    assert first.position_ids is not None
    assert second.position_ids is not None
    assert first.attention_mask.tolist() == [[0, 0, 1], [1, 1, 1]]
    assert second.attention_mask.tolist() == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert first.position_ids.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert second.position_ids.tolist() == [[1], [3]]
    assert (first.start, first.columns, second.start, second.columns) == (0, 3, 3, 1)


def test_right_padding() -> None:
    scenario = Scenario(id="x", lengths=(1, 3), padding="right")
    assert real_tokens(scenario).tolist() == [[True, False, False], [True, True, True]]


def test_no_mask_gives_neither_mask_nor_positions() -> None:
    (one,) = make(BY_ID["no-mask"], VOCABULARY).calls[0]
    assert one.attention_mask is None
    assert one.position_ids is None


def test_packed_positions_restart() -> None:
    scenario = Scenario(id="x", lengths=(5,), packed_lengths=(2, 3), mask_given=False)
    (one,) = make(scenario, VOCABULARY).calls[0]
    assert one.position_ids is not None
    assert one.position_ids.tolist() == [[0, 1, 0, 1, 2]]


def test_calls_have_other_tokens_and_earlier_lengths() -> None:
    first, last = make(BY_ID["second-call"], VOCABULARY).calls
    assert [first[0].columns, last[0].columns] == [71, 14]
    again = Scenario(id="x", lengths=(6,), calls=2)
    left, right = make(again, VOCABULARY).calls
    assert not torch.equal(left[0].input_ids, right[0].input_ids)


@pytest.mark.parametrize("scenario", MATRIX, ids=lambda scenario: scenario.id)
def test_inputs_are_seeded_and_in_the_vocabulary(scenario: Scenario) -> None:
    left, right = make(scenario, VOCABULARY), make(scenario, VOCABULARY)
    for a, b in zip(left.calls[-1], right.calls[-1], strict=True):
        assert torch.equal(a.input_ids, b.input_ids)
        assert int(a.input_ids.max()) < VOCABULARY
    assert sum(one.columns for one in left.calls[-1]) == scenario.width == left.real.shape[1]
    assert left.real.sum(dim=1).tolist() == list(scenario.lengths)


def test_scenarios_differ_in_tokens() -> None:
    drawn = [make(scenario, VOCABULARY).calls[-1][0].input_ids[0, :4].tolist() for scenario in MATRIX]
    assert len({tuple(row) for row in drawn}) == len(MATRIX)
