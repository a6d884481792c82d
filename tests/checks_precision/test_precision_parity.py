from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.checks.precision import precision_parity
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.models.loading import load
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.matrix import BY_ID

from . import planted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from transformers import PreTrainedModel

    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
DECODE = BY_ID["decode"]


def value(evidence: Evidence, name: str) -> Any:
    return next(one.value for one in evidence.measurements if one.name == name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("attention", ["naive", "sdpa", "hpu_sliced[q_block_size=4]", "hpu_fused", "key-blocked"])
@pytest.mark.parametrize("scenario", ["decode", "left-shortest-last", "static-tail"])
def test_correct_ports_pass(
    precision_pool: ModelPool, tiny: ModelSpec, attention: str, dtype: torch.dtype, scenario: str
) -> None:
    name = planted.key_blocked() if attention == "key-blocked" else ensure(attention)
    evidence = precision_parity(precision_pool, TransformersPort(name), tiny, BY_ID[scenario], dtype)
    assert evidence.status is Status.PASS, evidence.reason
    assert evidence.location is None


@pytest.mark.parametrize("model", ["tiny-mistral", "tiny-mixtral", "tiny-gemma2", "tiny-qwen3", "tiny-gpt-neox"])
@pytest.mark.parametrize("attention", ["naive", "hpu_sliced"])
def test_every_architecture_passes(precision_pool: ModelPool, model: str, attention: str) -> None:
    scenario = BY_ID["decode-over-window"]
    evidence = precision_parity(precision_pool, TransformersPort(attention), resolve(model), scenario, torch.bfloat16)
    assert evidence.status is Status.PASS, evidence.reason


def ensure(attention: str) -> str:
    from gaudi_validate.attention.registry import ensure as ensure_registered

    return ensure_registered(attention)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_naive_against_itself_is_exactly_one(precision_pool: ModelPool, tiny: ModelSpec, dtype: torch.dtype) -> None:
    evidence = precision_parity(precision_pool, TransformersPort("eager"), tiny, DECODE, dtype)
    assert value(evidence, "worst G of a call") == pytest.approx(1.0)
    assert value(evidence, "attention calls judged") == 4 * 6
    assert evidence.scenario == "decode"


@pytest.mark.parametrize(("dtype", "factor"), [(torch.bfloat16, 1.01), (torch.float16, 1.003), (torch.float32, 1.0001)])
def test_a_slightly_wrong_scale_is_caught(
    precision_pool: ModelPool, tiny: ModelSpec, dtype: torch.dtype, factor: float
) -> None:
    port = TransformersPort(planted.wrong_scale(factor))
    evidence = precision_parity(precision_pool, port, tiny, DECODE, dtype)
    assert evidence.status is Status.FAIL
    assert value(evidence, "attention calls over a limit") > 0
    assert evidence.location is not None
    assert evidence.location.phase is not None
    assert None not in (evidence.location.layer, evidence.location.head, evidence.location.query_row)


def test_nan_is_named_before_any_figure(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.nan_in_layer_2())
    evidence = precision_parity(precision_pool, port, tiny, BY_ID["left-shortest-last"], torch.bfloat16)
    assert evidence.status is Status.FAIL
    assert evidence.reason == "1 values of real rows are NaN or infinite where the naive path's are not"
    assert evidence.location is not None
    found = evidence.location
    assert (found.layer, found.phase, found.batch_row, found.head, found.query_row) == (2, "prefill", 1, 3, 12)


def test_a_dropped_key_is_located(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    port = TransformersPort(planted.drops_a_key())
    evidence = precision_parity(precision_pool, port, tiny, BY_ID["left-mixed"], torch.float16)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert (evidence.location.layer, evidence.location.query_row) == (1, 12)
    assert evidence.location.note == "the worst of 1 of 4 attention calls over a limit"


def test_what_happens_on_padding_is_left_out(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    def spoils_padding(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        output, weights = planted.SDPA(module, query, key, value, mask, **kwargs)
        output = output.clone()
        output[0, :8] = torch.nan  # row 0 of lengths (5, 13, 9), left-padded
        return output, weights

    port = TransformersPort(planted.register("planted-on-padding", spoils_padding))
    evidence = precision_parity(precision_pool, port, tiny, BY_ID["left-mixed"], torch.bfloat16)
    assert evidence.status is Status.PASS, evidence.reason


def test_errors_do_not_pile_up(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    """A fault in layer 1 alone leaves the calls of layers 2 and 3 untouched: their inputs are the reference's."""
    port = TransformersPort(planted.drops_a_key())
    evidence = precision_parity(precision_pool, port, tiny, BY_ID["single"], torch.float32)
    assert value(evidence, "attention calls over a limit") == 1


def test_second_call_is_judged_alone(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    evidence = precision_parity(precision_pool, TransformersPort("sdpa"), tiny, BY_ID["second-call"], torch.bfloat16)
    assert value(evidence, "attention calls judged") == 4


def test_prompts_may_be_ids(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6]]
    evidence = precision_parity(precision_pool, TransformersPort("hpu_fused"), tiny, prompts, torch.bfloat16)
    assert evidence.status is Status.PASS
    assert value(evidence, "attention calls judged") == 4 * 5
    assert evidence.scenario.startswith("prompts-2x11-")


def test_unknown_dtype_and_unknown_name(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    with pytest.raises(ValueError, match="no error budget for float64"):
        precision_parity(precision_pool, TransformersPort("sdpa"), tiny, DECODE, torch.float64)
    with pytest.raises(UserError, match="no such attention implementation: 'nosuch'"):
        precision_parity(precision_pool, TransformersPort("nosuch"), tiny, DECODE, torch.bfloat16)


def test_a_port_that_raises_fails_with_the_place(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise RuntimeError("kernel not built")

    port = TransformersPort(planted.register("planted-raises", breaks))
    evidence = precision_parity(precision_pool, port, tiny, DECODE, torch.bfloat16)
    assert evidence.status is Status.FAIL
    assert evidence.reason == "the port raised RuntimeError: kernel not built"
    assert "in breaks" in evidence.details[0]


@dataclass(frozen=True)
class UnnamedPort:
    """A port without the name of an attention function; ``attention_set`` is what its model was loaded with."""

    loaded_with: str
    attention: str | None = None
    own_forward: bool = False

    @property
    def name(self) -> str:
        return f"unnamed-{self.loaded_with}-{self.own_forward}"

    @property
    def load_key(self) -> str:
        return self.name

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        model = load(checkpoint, dtype=dtype, device=device, attention=self.loaded_with)
        if self.own_forward:
            for layer in model.model.layers:
                layer.self_attn.forward = _own_forward(layer.self_attn)
        return model

    def active(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        return nullcontext()


def _own_forward(module: Any) -> Any:
    """Attention that never asks the interface: it has looked the function up once."""
    from transformers import AttentionInterface

    original, function = type(module).forward, AttentionInterface._global_mapping["sdpa"]

    def forward(*args: Any, **kwargs: Any) -> Any:
        before = AttentionInterface._global_mapping["sdpa"]
        AttentionInterface._global_mapping["sdpa"] = function
        try:
            return original(module, *args, **kwargs)
        finally:
            AttentionInterface._global_mapping["sdpa"] = before

    return forward


def test_a_port_without_a_name_is_seen_through_its_config(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    evidence = precision_parity(precision_pool, UnnamedPort("sdpa"), tiny, DECODE, torch.bfloat16)
    assert evidence.status is Status.PASS
    assert value(evidence, "attention calls judged") == 24


def test_attention_outside_the_interface_is_not_measured_and_the_logits_stand_beside(
    precision_pool: ModelPool, tiny: ModelSpec
) -> None:
    evidence = precision_parity(precision_pool, UnnamedPort("sdpa", own_forward=True), tiny, DECODE, torch.bfloat16)
    assert evidence.status is Status.NOT_MEASURED
    why = "attention calls not measured: the port's attention does not go through transformers' interface; "
    assert evidence.reason.startswith(f"{why}whole-model logits: G 0.")
    assert value(evidence, "G of whole-model logits") <= 1.25
