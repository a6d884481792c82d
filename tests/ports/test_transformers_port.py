from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.base import Port
from gaudi_validate.ports.pool import ModelPool
from gaudi_validate.ports.transformers_port import TransformersPort, attention_set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from transformers import PreTrainedModel

CPU = torch.device("cpu")
COUNTING = "pkg/slash:counting[block=8]"
"""As odd as a user's name can be; transformers would take one with a slash for a kernel on the hub."""


@pytest.fixture
def model(ports_pool: ModelPool) -> PreTrainedModel:
    return ports_pool.get(resolve("tiny-llama"), TransformersPort("eager"), torch.float64, CPU)


@pytest.fixture
def calls() -> Iterator[list[int]]:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    layers: list[int] = []

    def counting(module: Any, *args: Any, **kwargs: Any) -> Any:
        layers.append(module.layer_idx)
        return sdpa_attention_forward(module, *args, **kwargs)

    AttentionInterface.register(COUNTING, counting)
    AttentionMaskInterface.register(COUNTING, sdpa_mask)
    yield layers
    AttentionInterface._global_mapping.pop(COUNTING)
    AttentionMaskInterface._global_mapping.pop(COUNTING)


def forward(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[5, 6, 7, 8]])).logits
    return logits


def test_it_is_a_port() -> None:
    port = TransformersPort("sdpa")
    assert isinstance(port, Port)
    assert (port.name, port.attention, port.load_key) == ("sdpa", "sdpa", "transformers")


def test_the_registered_function_runs_in_every_layer_and_only_inside(model: PreTrainedModel, calls: list[int]) -> None:
    eager = forward(model)
    with TransformersPort(COUNTING).active(model):
        counted = forward(model)
    assert calls == [0, 1, 2, 3]
    assert torch.equal(forward(model), eager)
    assert calls == [0, 1, 2, 3]
    assert float((counted - eager).abs().max() / eager.std()) < 1e-4


def test_an_error_inside_restores_too(model: PreTrainedModel) -> None:
    def fail() -> None:
        with TransformersPort("sdpa").active(model):
            assert model.config._attn_implementation == "sdpa"
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        fail()
    assert model.config._attn_implementation == "eager"


def test_contexts_nest(model: PreTrainedModel) -> None:
    seen = []
    with TransformersPort("sdpa").active(model):
        with TransformersPort("eager").active(model):
            seen.append(model.config._attn_implementation)
        seen.append(model.config._attn_implementation)
    seen.append(model.config._attn_implementation)
    assert seen == ["eager", "sdpa", "eager"]


def test_every_sub_config_is_set_and_gets_its_own_back() -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = {"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
    text |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16, "image_size": 8}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4, "projection_dim": 16}
    config: Any = AutoConfig.for_model("llava", text_config=text, vision_config=vision)
    auto: Any = AutoModelForImageTextToText
    model = auto.from_config(config, attn_implementation={"text_config": "eager", "vision_config": "sdpa"})
    configs = (model.config.text_config, model.config.vision_config)
    outer = model.config._attn_implementation
    with attention_set(model, "naive-by-name"):
        assert model.config._attn_implementation == "naive-by-name"
        assert [inner._attn_implementation for inner in configs] == ["naive-by-name"] * 2
    assert model.config._attn_implementation == outer
    assert [inner._attn_implementation for inner in configs] == ["eager", "sdpa"]


class TestPool:
    def test_ports_with_one_key_share_one_object_per_dtype(self, ports_pool: ModelPool) -> None:
        spec = resolve("tiny-llama")
        first = ports_pool.get(spec, TransformersPort("eager"), torch.float64, CPU)
        assert ports_pool.get(spec, TransformersPort("sdpa"), torch.float64, CPU) is first
        other = ports_pool.get(spec, TransformersPort("eager"), torch.bfloat16, CPU)
        assert other is not first
        assert {value.dtype for value in other.parameters()} == {torch.bfloat16}

    def test_another_load_key_loads_again(self, ports_pool: ModelPool) -> None:
        class Other(TransformersPort):
            @property
            def load_key(self) -> str:
                return "other"

        spec = resolve("tiny-llama")
        first = ports_pool.get(spec, TransformersPort("eager"), torch.float64, CPU)
        assert ports_pool.get(spec, Other("eager"), torch.float64, CPU) is not first

    def test_another_pool_finds_the_built_folder(self, ports_pool: ModelPool) -> None:
        spec = resolve("tiny-llama")
        folder = ports_pool.checkpoint(spec)
        before = (folder / "model.safetensors").stat().st_mtime_ns
        again = ModelPool(ports_pool.cache_dir).checkpoint(spec)
        assert again == folder
        assert (again / "model.safetensors").stat().st_mtime_ns == before

    def test_one_tokenizer_a_checkpoint(self, ports_pool: ModelPool) -> None:
        spec = resolve("tiny-llama")
        assert ports_pool.tokenizer(spec) is ports_pool.tokenizer(spec)

    def test_clear_drops_the_models(self, tmp_path: Path) -> None:
        pool, spec = ModelPool(tmp_path), resolve("tiny-llama-one-layer")
        first = pool.get(spec, TransformersPort("eager"), torch.float32, CPU)
        pool.clear()
        assert pool.get(spec, TransformersPort("eager"), torch.float32, CPU) is not first
