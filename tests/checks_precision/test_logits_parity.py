from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.checks import budgets, teacher
from gaudi_validate.checks.logits import logits_parity, logprob_budget
from gaudi_validate.core.verdicts import Status
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.matrix import BY_ID

from . import planted

if TYPE_CHECKING:
    from gaudi_validate.core.evidence import Evidence, Measurement
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool


def measured(evidence: Evidence, name: str) -> Measurement:
    return next(one for one in evidence.measurements if one.name == name)


def texts(rows: int, tokens: int) -> teacher.Forced:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(60, (rows, tokens), generator=generator).tolist()
    return teacher.force([[1 + row, 2, 3][: 1 + row % 3] for row in range(rows)], ids, pad=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("attention", ["naive", "sdpa", "hpu_sliced", "hpu_fused"])
def test_correct_ports_pass_on_a_scenario(
    precision_pool: ModelPool, tiny: ModelSpec, attention: str, dtype: torch.dtype
) -> None:
    evidence = logits_parity(precision_pool, TransformersPort(attention), tiny, BY_ID["decode"], dtype)
    assert evidence.status is Status.PASS, evidence.reason
    assert measured(evidence, "G of logits").limit == 1.25
    assert len(evidence.measurements) == 3


@pytest.mark.parametrize("attention", ["sdpa", "hpu_fused"])
def test_correct_ports_pass_teacher_forced(precision_pool: ModelPool, tiny: ModelSpec, attention: str) -> None:
    evidence = logits_parity(precision_pool, TransformersPort(attention), tiny, texts(8, 64), torch.bfloat16)
    assert evidence.status is Status.PASS, evidence.reason
    assert measured(evidence, "rows judged").value == 512
    assert measured(evidence, "|Δlogprob| at 95%").limit is not None
    assert measured(evidence, "worst |Δlogprob|").limit is not None


def test_fewer_rows_than_the_rule_was_set_for_are_reported_only(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    evidence = logits_parity(precision_pool, TransformersPort("sdpa"), tiny, texts(8, 63), torch.bfloat16)
    assert measured(evidence, "|Δlogprob| at 95%").limit is None
    assert measured(evidence, "worst |Δlogprob|").limit is None


@pytest.mark.parametrize("what", ["scenario", "forced"])
def test_a_wrong_scale_fails(precision_pool: ModelPool, tiny: ModelSpec, what: str) -> None:
    port = TransformersPort(planted.wrong_scale(1.2))
    given: Any = BY_ID["decode"] if what == "scenario" else texts(8, 64)
    evidence = logits_parity(precision_pool, port, tiny, given, torch.bfloat16)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert evidence.location.batch_row is not None


def test_a_dropped_key_is_located(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.drops_a_key())
    evidence = logits_parity(precision_pool, port, tiny, BY_ID["single"], torch.float32)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert (evidence.location.batch_row, evidence.location.query_row) == (0, 11)
    assert evidence.details == ("reference: transformers' eager attention in float64 on the CPU",)


def test_nan_fails(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.nan_in_layer_2())
    evidence = logits_parity(precision_pool, port, tiny, BY_ID["left-mixed"], torch.bfloat16)
    assert evidence.status is Status.FAIL
    assert "NaN or infinite where naive is not" in evidence.reason


def test_logprob_budget_of_known_logits() -> None:
    reference = torch.tensor([[16.0, 15.0, 3.0], [17.0, 15.0, 3.0]])
    budget = logprob_budget(reference + torch.tensor([[0.0, 0.0, 1.0]]), reference, reference, bits=8)
    assert budget.quantile_naive == 0.0
    assert budget.quantile_limit == 0.0625  # one ulp of 15
    assert budget.worst_limit == 0.125  # one ulp of 17
    assert budget.worst == pytest.approx(1.0, abs=1e-4)
    shifted = logprob_budget(reference + 5.0, reference, reference, bits=8)
    assert shifted.worst == pytest.approx(0.0, abs=1e-5)  # probabilities do not see a shift of all logits


def test_logprob_budget_counts_nan_as_infinitely_far_off() -> None:
    reference = torch.randn(100, 50, generator=torch.Generator().manual_seed(0))
    port = reference.clone()
    port[7, 3] = math.nan
    budget = logprob_budget(port, reference, reference, bits=8)
    assert (budget.worst, budget.row) == (math.inf, 7)
    assert budget.quantile == 0.0


def test_only_the_reference_s_top_tokens_count() -> None:
    reference = torch.arange(100.0)[None, :].repeat(2, 1)
    port = reference.clone()
    port[0, : 100 - budgets.TOP_TOKENS] -= 30.0
    assert logprob_budget(port, reference, reference, bits=8).worst == pytest.approx(0.0, abs=1e-6)
