from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from gaudi_validate.models import build, sharpen
from gaudi_validate.models.catalogue import EXTRA, TINY, resolve
from gaudi_validate.models.digest import sha256_of_tensors
from gaudi_validate.models.tiny import EOS, MODELS, ORIGINAL_MAXIMUM, PAD, VOCABULARY, WINDOW
from gaudi_validate.ports.transformers_port import TransformersPort

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

    from gaudi_validate.ports.pool import ModelPool

CPU = torch.device("cpu")
EAGER = TransformersPort("eager")
# The same under transformers 4.55 and 5.x, on every processor: golden text of tiny models rests on that.
WEIGHTS = {
    "tiny-llama": "0c7805e2084a2378048d864d85d9026248fb4be00dc8762844373586ff4fa32a",
    "tiny-gemma2": "ce2ba9eb83c27435be2ce251d9349ed81f76a67afdb5c7f2d061dd76e26a4f9e",
    "tiny-qwen3-moe": "299c03ae334e37ab1f18250ef2d89d5a77be0abb2f14686ed46739a1a0c0eeca",
    "tiny-gpt-neox": "2667634310decfc1f7191adc183fc895b98147264b8a677589932ac29e89e2c0",
}


def fp32(models_pool: ModelPool, name: str) -> PreTrainedModel:
    return models_pool.get(resolve(name), EAGER, torch.float32, CPU)


def ids_BT(columns: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, columns), generator=torch.Generator().manual_seed(1))


class Logits:
    """An attention implementation that records q k^T * scale of the pairs that the causal mask lets through."""

    def __init__(self) -> None:
        self.per_layer: list[torch.Tensor] = []

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        # transformers 4.55's GPT-2 passes no scaling and leaves the usual one to the function.
        scores = query @ key.mT * (kwargs.get("scaling") or query.shape[-1] ** -0.5)
        self.per_layer.append(scores[..., torch.ones(scores.shape[-2:], dtype=torch.bool).tril()])
        weights = torch.softmax(scores + (0 if mask is None else mask), dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights


@pytest.fixture
def logits() -> Iterator[Logits]:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    recorder = Logits()
    AttentionInterface.register("recorder", recorder)
    AttentionMaskInterface.register("recorder", eager_mask)
    yield recorder
    AttentionInterface._global_mapping.pop("recorder")
    AttentionMaskInterface._global_mapping.pop("recorder")


@pytest.mark.parametrize("name", [*TINY, *EXTRA])
def test_attention_is_sharp(name: str, models_pool: ModelPool, logits: Logits) -> None:
    model = fp32(models_pool, name)
    with torch.no_grad(), TransformersPort("recorder").active(model):
        model(ids_BT(48))
    assert len(logits.per_layer) == model.config.num_hidden_layers
    for layer in logits.per_layer:
        assert 2.0 <= float(layer.std()) <= 5.0


def test_the_sharpness_test_sees_a_default_initialisation(models_pool: ModelPool, logits: Logits) -> None:
    model = fp32(models_pool, "tiny-llama")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for name, value in model.named_parameters():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            value.data.normal_(0.0, 0.02, generator=generator)
    with torch.no_grad(), TransformersPort("recorder").active(model):
        model(ids_BT(48))
    model.load_state_dict(saved)
    assert max(float(layer.std()) for layer in logits.per_layer) < 0.5


@pytest.mark.parametrize("name", [*TINY, *EXTRA])
def test_no_parameter_is_trivial(name: str, models_pool: ModelPool) -> None:
    for parameter, value in fp32(models_pool, name).state_dict().items():
        assert float(value.std()) > 0.01, parameter
        assert bool((value != 0).any(dim=-1).all()), parameter


@pytest.mark.parametrize("name", [*TINY, *EXTRA])
def test_parameters_are_fp64_when_asked_and_hold_the_fp32_values(name: str, models_pool: ModelPool) -> None:
    double = models_pool.get(resolve(name), EAGER, torch.float64, CPU)
    single = dict(fp32(models_pool, name).named_parameters())
    for parameter, value in double.named_parameters():
        assert value.dtype == torch.float64, parameter
        assert torch.equal(value, single[parameter].double()), parameter
    with torch.no_grad():
        assert double(ids_BT(5)).logits.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-phi3", "tiny-gpt-neox"])
def test_rope_buffers_stay_the_same_fp32_values(name: str, dtype: torch.dtype, models_pool: ModelPool) -> None:
    expected = {key: value for key, value in fp32(models_pool, name).named_buffers() if "inv_freq" in key}
    found = {
        key: value
        for key, value in models_pool.get(resolve(name), EAGER, dtype, CPU).named_buffers()
        if "inv_freq" in key
    }
    assert expected
    assert set(found) == set(expected)
    for key, value in found.items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("name", [*TINY, *EXTRA])
def test_generation_is_greedy_silent_and_runs_its_length(name: str, models_pool: ModelPool) -> None:
    model, tokenizer = fp32(models_pool, name), models_pool.tokenizer(resolve(name))
    inputs = tokenizer(["He got all", "Hé"], return_tensors="pt", padding=True)
    assert inputs["input_ids"][1].tolist() == [PAD] * 7 + list("Hé".encode())
    tokens: Any = model.generate(**inputs, max_new_tokens=12)  # type: ignore[operator]
    again: Any = model.generate(**inputs, max_new_tokens=12)  # type: ignore[operator]
    assert tokens.shape == (2, 22)
    assert torch.equal(tokens, again)
    assert len(set(tokens[0, 10:].tolist())) >= 4
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id is None


def test_bytes_survive_the_tokenizer(models_pool: ModelPool) -> None:
    tokenizer = models_pool.tokenizer(resolve("tiny-llama"))
    text = "Ünïcode 你好 🙂\n\t<eos>"
    ids = tokenizer(text)["input_ids"]
    assert ids == [*"Ünïcode 你好 🙂\n\t".encode(), EOS]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_the_same_under_every_version(name: str, models_pool: ModelPool) -> None:
    folder = models_pool.checkpoint(resolve(name))
    assert sha256_of_tensors(load_file(folder / "model.safetensors")) == WEIGHTS[name]


def test_building_leaves_the_callers_random_numbers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build.build(MODELS["tiny-llama"], tmp_path)
    assert torch.equal(torch.rand(3), expected)


def test_the_cache_key_changes_with_config_and_seed() -> None:
    from dataclasses import replace

    model = MODELS["tiny-llama"]
    keys = {
        build.cache_key(model),
        build.cache_key(replace(model, seed=1)),
        build.cache_key(replace(model, config={**model.config, "rope_theta": 1e6})),
    }
    assert len(keys) == 3
    assert build.cache_key(replace(model, features=frozenset())) == build.cache_key(model)


def test_configured_features_reach_the_model(models_pool: ModelPool) -> None:
    config = {name: fp32(models_pool, name).config for name in TINY}
    assert config["tiny-mistral"].sliding_window == WINDOW
    assert config["tiny-gemma2"].layer_types == ["sliding_attention", "full_attention"] * 2
    assert config["tiny-gemma2"].attn_logit_softcapping == 5.0
    assert config["tiny-qwen3-moe"].norm_topk_prob is False
    assert config["tiny-qwen3-moe"].num_experts == 12
    assert config["tiny-llama"].num_attention_heads // config["tiny-llama"].num_key_value_heads == 4


def plain(dim: int, theta: float = 10000.0) -> torch.Tensor:
    return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def llama3(frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: factor 4, low 1, high 4, original 64, as its authors define it."""
    rotations = ORIGINAL_MAXIMUM * frequencies / (2 * math.pi)
    smooth = ((rotations - 1.0) / (4.0 - 1.0)).clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / 4.0 + smooth * frequencies


def yarn(frequencies: torch.Tensor) -> torch.Tensor:
    """YaRN's ramp between 32 and 1 rotations at the original maximum: of 8 pairs the corrected range is [0, 5]."""
    dim = 2 * len(frequencies)

    def pair(rotations: float) -> float:
        return dim * math.log(ORIGINAL_MAXIMUM / (rotations * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = max(math.floor(pair(32.0)), 0), min(math.ceil(pair(1.0)), dim - 1)
    ramp = ((torch.arange(len(frequencies)) - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies / 4.0 * ramp + frequencies * (1 - ramp)


@pytest.mark.parametrize(
    ("name", "expected", "magnitude"),
    [
        ("tiny-llama", plain(16), 1.0),
        ("tiny-gpt-neox", plain(4), 1.0),
        ("tiny-llama-linear", plain(16) / 4, 1.0),
        ("tiny-llama-llama3", llama3(plain(16)), 1.0),
        ("tiny-llama-yarn", yarn(plain(16)), 0.1 * math.log(4.0) + 1.0),
        (
            "tiny-phi3",
            plain(12) / torch.tensor([1.0, 1.05, 1.1, 1.2, 1.4, 1.6], dtype=torch.float64),
            math.sqrt(1 + math.log(4.0) / math.log(64.0)),
        ),
    ],
)
def test_rope_is_the_published_formula(
    name: str, expected: torch.Tensor, magnitude: float, models_pool: ModelPool
) -> None:
    rotary = next(m for key, m in fp32(models_pool, name).named_modules() if key.endswith("rotary_emb"))
    torch.testing.assert_close(rotary.inv_freq.double(), expected, rtol=1e-6, atol=0.0)
    assert rotary.attention_scaling == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("name", ["tiny-llama-dynamic", "tiny-phi3"])
def test_rope_changes_past_the_original_maximum_and_returns(name: str, models_pool: ModelPool) -> None:
    model = fp32(models_pool, name)
    rotary = next(m for key, m in model.named_modules() if key.endswith("rotary_emb"))
    short = rotary.inv_freq.clone()
    with torch.no_grad():
        model(ids_BT(ORIGINAL_MAXIMUM))
        assert torch.equal(rotary.inv_freq, short)
        model(ids_BT(ORIGINAL_MAXIMUM + 1))
        assert not torch.equal(rotary.inv_freq, short)
        model(ids_BT(9))
    assert torch.equal(rotary.inv_freq, short)


def test_bell_has_mean_0_and_variance_1() -> None:
    numbers = sharpen._bell((200_000,), torch.Generator().manual_seed(0))
    assert abs(float(numbers.mean())) < 0.01
    assert abs(float(numbers.std()) - 1.0) < 0.01
