from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from gaudi_validate.checks.capture import AttentionFunction, AttentionResult, Call, attention_calls, attention_function
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def llama(attention: str) -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    config._attn_implementation = attention
    torch.manual_seed(0)
    model: PreTrainedModel = LlamaForCausalLM(config).train(mode=False)
    return model


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    result: torch.Tensor = model(IDS).logits
    return result


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_records_every_call_and_changes_nothing(name: str) -> None:
    model = llama(name)
    before, function = logits(model), attention_function(name, model)
    with attention_calls(name, model) as calls:
        during = logits(model)
    assert torch.equal(before, during)
    assert [(call.index, call.layer) for call in calls] == [(0, 0), (1, 1)]
    assert [tuple(t.shape) for t in (calls[1].query, calls[1].key, calls[1].value)] == [
        (1, 4, 5, 8),
        (1, 2, 5, 8),
        (1, 2, 5, 8),
    ]
    assert calls[1].output is not None
    assert torch.equal(calls[1].run(function)[0], calls[1].output)
    assert attention_function(name, model) is function


def test_keep_false_counts_without_tensors() -> None:
    model = llama("sdpa")
    with attention_calls("sdpa", model, keep=False) as calls:
        logits(model)
    assert [(call.layer, call.query.numel(), call.output) for call in calls] == [(0, 0, None), (1, 0, None)]


@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_around_can_replace_inputs_of_one_call(name: str) -> None:
    def without_values(call: Call, original: AttentionFunction) -> AttentionResult:
        return call.run(original, value=torch.zeros_like(call.value)) if call.layer == 0 else call.run(original)

    model = llama(name)
    with attention_calls(name, model, around=without_values) as calls:
        logits(model)
    assert calls[0].output is not None
    assert calls[1].output is not None
    assert not calls[0].output.any()
    assert calls[1].output.any()
    assert calls[0].value.any(), "the record holds what the model passed"


def test_records_are_copies() -> None:
    def spoil(call: Call, original: AttentionFunction) -> AttentionResult:
        result = call.run(original)
        call.key.zero_()
        return result

    model = llama("sdpa")
    with attention_calls("sdpa", model, around=spoil) as calls:
        logits(model)
    assert calls[0].key.any()


def test_entry_comes_back_after_an_error() -> None:
    def fail(call: Call, original: AttentionFunction) -> AttentionResult:
        raise RuntimeError("planted")

    model = llama("sdpa")
    registry: dict[str, Any] = AttentionInterface._global_mapping
    before = dict(registry)
    with pytest.raises(RuntimeError, match="planted"), attention_calls("sdpa", model, around=fail):
        logits(model)
    assert registry == before


def test_unknown_name_is_a_user_error() -> None:
    with pytest.raises(UserError) as error, attention_calls("nosuch", llama("sdpa")):
        pass
    assert str(error.value) == "no such attention implementation: 'nosuch'; register it with transformers first"
