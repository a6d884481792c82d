"""The real model: correct ports within the budgets on every call, planted faults beyond them; the prompts' text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gaudi_validate.checks import text
from gaudi_validate.checks.layers import layer_parity
from gaudi_validate.checks.logits import logits_parity
from gaudi_validate.checks.precision import precision_parity
from gaudi_validate.checks.prompts import PROMPTS
from gaudi_validate.checks.run import NAIVE
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort

from . import planted

if TYPE_CHECKING:
    from gaudi_validate.ports.pool import ModelPool

pytestmark = pytest.mark.slow
SMOLLM2 = resolve("smollm2-135m")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.mark.parametrize("attention", ["naive", "hpu_sliced", "hpu_fused", "key-blocked"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_call_of_a_correct_port(smollm2_pool: ModelPool, attention: str, dtype: torch.dtype) -> None:
    port = TransformersPort(planted.key_blocked() if attention == "key-blocked" else attention)
    evidence = precision_parity(smollm2_pool, port, SMOLLM2, PROMPTS, dtype)
    assert evidence.status is Status.PASS, evidence.reason
    assert evidence.measurements[3].value == 30 * 5


@pytest.mark.parametrize(
    ("dtype", "factor", "at_least"),
    [(torch.bfloat16, 1.01, 120), (torch.float16, 1.003, 150), (torch.float32, 1.0001, 150)],
)
def test_a_wrong_scale_is_caught(smollm2_pool: ModelPool, dtype: torch.dtype, factor: float, at_least: int) -> None:
    port = TransformersPort(planted.wrong_scale(factor))
    evidence = precision_parity(smollm2_pool, port, SMOLLM2, PROMPTS, dtype)
    assert evidence.status is Status.FAIL
    over = evidence.measurements[4].value
    assert over is not None
    assert over >= at_least


@pytest.mark.parametrize("attention", ["hpu_sliced", "hpu_fused"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_layers_and_logits_of_a_correct_port(smollm2_pool: ModelPool, attention: str, dtype: torch.dtype) -> None:
    for check in (layer_parity, logits_parity):
        evidence = check(smollm2_pool, TransformersPort(attention), SMOLLM2, PROMPTS, dtype)
        assert evidence.status is Status.PASS, evidence.reason


def test_text_is_the_naive_path_s_in_fp32_and_a_fault_s_is_not(smollm2_pool: ModelPool) -> None:
    def write(port: TransformersPort) -> list[text.GeneratedText]:
        return text.generate(smollm2_pool, port, SMOLLM2, PROMPTS, new_tokens=24, dtype=torch.float32)

    goldens = [one.ids for one in write(NAIVE)]
    for attention, status in (("hpu_sliced", Status.PASS), (planted.drops_a_key(), Status.FAIL)):
        port = TransformersPort(attention)
        evidence = text.compare(smollm2_pool, port, SMOLLM2, write(port), goldens, dtype=torch.float32)
        assert evidence.status is status, evidence.reason
    assert evidence.reason.startswith("DIVERGED: prompt 0 'DeepSpeed is a machine learning framework', token ")
