"""Inside real transformers models: ours against stock eager, prefill, chunks, generation with both kinds of cache."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from gaudi_validate.attention.arguments import UnsupportedArgument
from gaudi_validate.attention.masks import BlockwiseMask
from gaudi_validate.attention.registry import ensure
from gaudi_validate.checks.capture import attention_calls
from gaudi_validate.checks.exact import exact_mode

from .dense import OLD

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "vocab_size": 61,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": 6}),
    "gemma2": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {"sliding_window": 6, "query_pre_attn_scalar": 5, "tie_word_embeddings": False},
    ),
}
OURS = (
    "naive",
    "hpu_sliced",
    "hpu_sliced[q_block_size=4]",
    "hpu_sliced[q_block_size=5,block_kernel=matmul]",
    "hpu_fused",
)
PAIRS = [(m, a) for m in MODELS for a in OURS if (m, a) != ("gemma2", "hpu_fused")]
LIMIT = 1e-12
# transformers 5 renames the argument.
CACHE = "past_key_values" if OLD else "cache"


@cache
def model(name: str) -> PreTrainedModel:
    torch.manual_seed(3)
    make, config, more = MODELS[name]
    made: PreTrainedModel = make(config(**COMMON, **more)).eval().double()
    return made


IDS = torch.randint(3, 61, (2, 13), generator=torch.Generator().manual_seed(5))
MASK = torch.ones_like(IDS)
MASK[0, :5] = 0
PACKED = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6]])


def logits(name: str) -> list[torch.Tensor]:
    """Return the logits of real tokens: with left padding, with right padding, packed, in chunks."""
    m = model(name)
    out = [m(IDS, attention_mask=mask).logits[mask.bool()] for mask in (MASK, MASK.flip(1))]
    out.append(m(IDS[:1], position_ids=PACKED, use_cache=False).logits)
    past = None
    for first, last in ((0, 7), (7, 10), (10, 11), (11, 13)):
        step = m(IDS[:, first:last], attention_mask=MASK[:, :last], use_cache=True, **{CACHE: past})
        past = step[CACHE]
        out.append(step.logits[MASK[:, first:last].bool()])
    return out


def texts(name: str) -> list[list[list[int]]]:
    """Return what is generated with a dynamic and with a static cache."""
    common = {"attention_mask": MASK, "max_new_tokens": 9, "do_sample": False, "eos_token_id": None}
    m: Any = model(name)
    dynamic = m.generate(IDS, **common)
    static = m.generate(IDS, **common, cache_implementation="static", disable_compile=True)
    return [dynamic.tolist(), static.tolist()]


@cache
def reference(name: str) -> tuple[list[torch.Tensor], list[list[list[int]]]]:
    model(name).set_attn_implementation("eager")
    with torch.no_grad(), exact_mode():
        return logits(name), texts(name)


@pytest.mark.parametrize(("name", "attention"), PAIRS)
def test_logits_and_text_are_those_of_stock_eager(name: str, attention: str) -> None:
    wanted, text = reference(name)
    model(name).set_attn_implementation(ensure(attention))
    assert model(name).config._attn_implementation == attention
    with torch.no_grad(), exact_mode():
        got = logits(name)
        assert texts(name) == text
    assert max(float((g - w).abs().max()) for g, w in zip(got, wanted, strict=True)) <= LIMIT


def test_generation_of_the_reference_is_of_several_tokens_and_both_caches_agree() -> None:
    for name in MODELS:
        dynamic, static = reference(name)[1]
        assert dynamic == static
        assert len({token for row in dynamic for token in row[13:]}) > 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_naive_is_bitwise_eager(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    llama: Any = LlamaForCausalLM(LlamaConfig(**COMMON))
    llama.eval()
    llama = llama.to(dtype)
    out = []
    for attention in ("eager", ensure("naive")):
        llama.set_attn_implementation(attention)
        with torch.no_grad():
            out.append(llama(IDS, attention_mask=MASK).logits)
    assert torch.equal(out[0], out[1])


@pytest.mark.parametrize("attention", ["naive", "hpu_sliced", "hpu_sliced[q_block_size=4]"])
def test_sinks_of_gpt_oss(attention: str) -> None:
    torch.manual_seed(6)
    config = GptOssConfig(
        **{k: v for k, v in COMMON.items() if k != "bos_token_id"},
        sliding_window=6,
        num_local_experts=2,
        num_experts_per_tok=1,
    )
    m: Any = GptOssForCausalLM(config)
    m.eval()
    m = m.double()
    if hasattr(m, "set_experts_implementation"):  # the grouped product has no fp64
        m.set_experts_implementation("eager")
    for layer in m.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    out = []
    for name in ("eager", ensure(attention)):
        m.set_attn_implementation(name)
        with torch.no_grad(), exact_mode():
            out.append(m(IDS, attention_mask=MASK).logits[MASK.bool()])
    assert float((out[0] - out[1]).abs().max()) <= LIMIT


def test_the_mask_that_a_model_passes_is_a_rule() -> None:
    model("mistral").set_attn_implementation(ensure("hpu_sliced"))
    with torch.no_grad(), attention_calls("hpu_sliced", model("mistral")) as calls:
        model("mistral")(IDS, attention_mask=MASK)
    assert len(calls) == 2
    assert all(isinstance(call.mask, BlockwiseMask) for call in calls)


def test_weights_are_refused_where_there_are_none() -> None:
    model("llama").set_attn_implementation(ensure("hpu_sliced"))
    with torch.no_grad(), pytest.raises(UnsupportedArgument) as error:
        model("llama").model.layers[0].self_attn(
            torch.zeros(1, 3, 32, dtype=torch.float64),
            position_embeddings=(torch.zeros(1, 3, 8), torch.zeros(1, 3, 8)),
            attention_mask=None,
            output_attentions=True,
        )
    assert str(error.value) == (
        "attention implementation 'hpu_sliced' does not support output_attentions: True; "
        "use attn_implementation='naive' or 'eager', which keep the weights"
    )


def test_training_gradients_are_those_of_eager() -> None:
    labels = IDS.masked_fill(MASK == 0, -100)
    labels[0, 5] = -100  # it would be predicted from a padded row, where anything finite may stand

    def gradients(attention: str) -> list[torch.Tensor]:
        m = model("mistral")
        m.set_attn_implementation(ensure(attention))
        with exact_mode():
            loss = m(IDS, attention_mask=MASK, labels=labels).loss
            return list(torch.autograd.grad(loss, [p for p in m.parameters() if p.requires_grad]))

    wanted = gradients("eager")
    for attention in OURS:
        got = gradients(attention)
        assert max(float((g - w).abs().max()) for g, w in zip(got, wanted, strict=True)) <= LIMIT
