from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.checks import forward
from gaudi_validate.checks.capture import attention_calls
from gaudi_validate.checks.state import as_found
from gaudi_validate.core.messages import UserError
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.inputs import make
from gaudi_validate.scenarios.matrix import BY_ID

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from gaudi_validate.ports.pool import ModelPool

CPU = torch.device("cpu")
SDPA = TransformersPort("sdpa")


def model_of(pool: ModelPool, name: str) -> PreTrainedModel:
    return pool.get(resolve(name), SDPA, torch.float64, CPU)


@pytest.mark.parametrize("scenario", ["single", "decode", "static-tail", "packed", "second-call"])
def test_logits_cover_every_column(logic_pool: ModelPool, scenario: str) -> None:
    inputs = make(BY_ID[scenario], 260)
    logits = forward.run(model_of(logic_pool, "tiny-llama"), SDPA, inputs)
    assert tuple(logits.shape) == (*inputs.real.shape, 260)
    assert not logits.requires_grad


def test_chunks_with_a_cache_agree_with_one_pass(logic_pool: ModelPool) -> None:
    model, scenario = model_of(logic_pool, "tiny-llama"), BY_ID["chunked-prefill"]
    chunked = make(scenario, 260)
    whole = make(scenario, 260)
    ids = torch.cat([one.input_ids for one in chunked.calls[0]], dim=1)
    with torch.no_grad(), SDPA.active(model):
        expected = model(ids).logits
    assert float((forward.run(model, SDPA, whole) - expected).abs().max()) < 1e-4 * float(expected.std())


def test_a_static_cache_has_unused_slots(logic_pool: ModelPool) -> None:
    model = model_of(logic_pool, "tiny-llama")
    calls: list[Any] = []
    forward.run(model, SDPA, make(BY_ID["static-tail"], 260), watch=lambda: attention_calls("sdpa", model, into=calls))
    assert {call.key.shape[2] for call in calls} == {40}
    assert not calls[-1].key[:, :, 15:].any()
    assert calls[-1].key[:, :, 14].any()


def test_no_cache_is_no_cache(logic_pool: ModelPool) -> None:
    assert forward.make_cache(model_of(logic_pool, "tiny-llama"), BY_ID["single"]) is None


def test_dynamic_frequencies_do_not_outlive_a_run(logic_pool: ModelPool) -> None:
    model = model_of(logic_pool, "tiny-llama-dynamic")
    fresh = forward.run(model, SDPA, make(BY_ID["past-original-maximum"], 260))
    forward.run(model, SDPA, make(BY_ID["odd-long"], 260))
    assert torch.equal(forward.run(model, SDPA, make(BY_ID["past-original-maximum"], 260)), fresh)


def test_as_found_restores_buffers_and_attributes() -> None:
    class Rope(torch.nn.Module):
        inv_freq: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(2))
            self.longest = 5

    rope = Rope()
    buffer = rope.inv_freq
    with as_found(rope):
        rope.inv_freq.fill_(7)
        rope.register_buffer("inv_freq", torch.zeros(2))
        rope.longest = 9
        rope.added = 1  # type: ignore[assignment]
    assert rope.inv_freq is buffer
    assert rope.inv_freq.tolist() == [1, 1]
    assert rope.longest == 5
    assert not hasattr(rope, "added")


def test_a_model_without_a_cache_argument_is_a_user_error() -> None:
    class Bare(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return input_ids

    bare: Any = Bare()
    with pytest.raises(UserError) as error:
        forward.cache_argument(bare)
    assert str(error.value) == "forward takes no KV cache: Bare; accept past_key_values"


def test_trimmed_logits_are_a_user_error(logic_pool: ModelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(logic_pool, "tiny-llama")
    original = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **kwargs: original(*args, **{**kwargs, "logits_to_keep": 1}))
    with pytest.raises(UserError, match=r"^1 rows of logits for 12 columns: LlamaForCausalLM; turn the trimming"):
        forward.run(model, SDPA, make(BY_ID["single"], 260))
