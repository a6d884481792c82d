from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.checks import forward
from gaudi_validate.checks.capture import attention_calls, attention_function
from gaudi_validate.checks.diagnosis import phase
from gaudi_validate.checks.difference import absolute_difference
from gaudi_validate.checks.exact import exact_mode
from gaudi_validate.checks.weights import probabilities
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.inputs import make
from gaudi_validate.scenarios.matrix import BY_ID

if TYPE_CHECKING:
    from gaudi_validate.ports.pool import ModelPool


@pytest.mark.parametrize(
    ("scenario", "names"),
    [
        ("single", ["prefill"]),
        ("decode", ["prefill", *(f"decode step {n}" for n in range(1, 6))]),
        ("continuation", ["prefill", "chunk 2", "chunk 3"]),
        ("chunked-prefill", ["prefill", "chunk 2", "chunk 3", "decode step 1"]),
        ("static-tail", ["prefill", "decode step 1", "decode step 2", "chunk 4"]),
    ],
)
def test_phases(scenario: str, names: list[str]) -> None:
    passes = make(BY_ID[scenario], 260).calls[-1]
    assert [phase(passes, index) for index in range(len(passes))] == names


def test_absolute_difference_of_what_is_not_finite() -> None:
    inf, nan = torch.inf, torch.nan
    left = torch.tensor([1.0, nan, nan, inf, inf, -inf, 2.0])
    right = torch.tensor([3.0, nan, 1.0, inf, -inf, 1.0, 2.0])
    assert absolute_difference(left, right).tolist() == [2, 0, inf, 0, inf, inf, 0]


@pytest.mark.parametrize("scenario", ["left-mixed", "decode", "odd-long"])
def test_probabilities_are_those_that_eager_returns(logic_pool: ModelPool, scenario: str) -> None:
    eager = TransformersPort("eager")
    model = logic_pool.get(resolve("tiny-llama"), eager, torch.float64, torch.device("cpu"))
    weights: list[torch.Tensor] = []

    def keep_weights(call: Any, original: Any) -> Any:
        result = call.run(original)
        weights.append(result[1])
        return result

    calls: list[Any] = []

    def watch() -> Any:
        return attention_calls("eager", model, around=keep_weights, into=calls)

    with exact_mode(), torch.no_grad():
        forward.run(model, eager, make(BY_ID[scenario], 260), watch=watch)
        found = probabilities(attention_function("eager", model), calls[-1])
    torch.testing.assert_close(found, weights[-1], rtol=0, atol=1e-12)
