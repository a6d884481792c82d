from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gaudi_validate.checks.layers import decoder_layers, layer_parity
from gaudi_validate.checks.logits import logits_parity
from gaudi_validate.checks.run import NAIVE
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.matrix import BY_ID

from . import planted

if TYPE_CHECKING:
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "hpu_sliced", "hpu_fused"])
def test_correct_ports_pass(precision_pool: ModelPool, tiny: ModelSpec, attention: str, dtype: torch.dtype) -> None:
    evidence = layer_parity(precision_pool, TransformersPort(attention), tiny, BY_ID["decode"], dtype)
    assert evidence.status is Status.PASS, evidence.reason
    assert evidence.measurements[-1].value == 4


def test_naive_is_exactly_one(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    evidence = layer_parity(precision_pool, NAIVE, tiny, BY_ID["decode"], torch.bfloat16)
    assert evidence.reason == "G 1, limit 1.25, worst of 4 layers"


@pytest.mark.parametrize(("dtype", "factor"), [(torch.bfloat16, 1.05), (torch.float16, 1.01), (torch.float32, 1.001)])
def test_a_wrong_scale_fails(precision_pool: ModelPool, tiny: ModelSpec, dtype: torch.dtype, factor: float) -> None:
    port = TransformersPort(planted.wrong_scale(factor))
    evidence = layer_parity(precision_pool, port, tiny, BY_ID["decode"], dtype)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert evidence.location.layer is not None


def test_errors_do_not_pile_up_and_the_layer_is_named(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.drops_a_key())
    evidence = layer_parity(precision_pool, port, tiny, BY_ID["single"], torch.float32)
    assert evidence.location is not None
    found = evidence.location
    assert (found.layer, found.phase, found.query_row) == (1, "prefill", 11)
    assert found.note == "the worst row of the worst layer; 1 of 4 layers are over the limit"


def test_nan_fails(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.nan_in_layer_2())
    evidence = layer_parity(precision_pool, port, tiny, BY_ID["left-mixed"], torch.bfloat16)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert (evidence.location.layer, evidence.location.batch_row, evidence.location.query_row) == (2, 1, 12)


def test_experts_chosen_otherwise_are_no_proof(precision_pool: ModelPool) -> None:
    """SDPA is correct, and yet one token of this scenario goes to another expert than in naive arithmetic."""
    spec, scenario = resolve("tiny-mixtral"), BY_ID["continuation"]
    for check in (layer_parity, logits_parity):
        evidence = check(precision_pool, TransformersPort("sdpa"), spec, scenario, torch.bfloat16)
        assert evidence.status in (Status.PASS, Status.INCONCLUSIVE)
        assert (evidence.status is Status.INCONCLUSIVE) == ("near ties between experts" in evidence.reason)
        evidence = check(
            precision_pool, TransformersPort(planted.nan_in_layer_2()), spec, BY_ID["left-mixed"], torch.bfloat16
        )
        assert evidence.status is Status.FAIL


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-gpt-neox", "tiny-gemma2", "tiny-mixtral"])
def test_decoder_layers_are_found(precision_pool: ModelPool, model: str) -> None:
    loaded = precision_pool.get(resolve(model), NAIVE, torch.float32, CPU)
    assert len(decoder_layers(loaded)) == loaded.config.num_hidden_layers
    assert all("Layer" in type(layer).__name__ for layer in decoder_layers(loaded))
