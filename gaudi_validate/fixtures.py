"""The fixtures: the public way to load models, check parity, hold text to goldens, and gate memory and speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate import options
from gaudi_validate.fixture_objects import AssertParity, Golden, LoadedModel, MemoryGate, PerfGate, RunHardware
from gaudi_validate.judge import Judge
from gaudi_validate.session import chosen_port, model_pool, model_spec, open_device, port_under_test, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from gaudi_validate.checks.text import GeneratedText
    from gaudi_validate.ports.base import Port

# Besides the fixtures: what a test's annotations name.
__all__ = ["AssertParity", "Golden", "Judge", "LoadedModel", "MemoryGate", "PerfGate", "RunHardware"]


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Record evidence and fail per verdict.

    Example:
        def test_own_rule(judge):
            judge(Evidence(check="own", status=Status.PASS, reason="3 of 3 agree"))
    """
    return Judge(request)


@pytest.fixture(scope="session")
def hardware(request: pytest.FixtureRequest) -> RunHardware:
    """The hardware of the run and its device.

    Example:
        def test_card(hardware):
            assert hardware.device.memory().in_use_bytes < hardware.facts.memory_bytes
    """
    return RunHardware(options.settings_of(request.config).facts, request.config)


@pytest.fixture(scope="session")
def load_model(request: pytest.FixtureRequest) -> Callable[..., LoadedModel]:
    """Load a model through the port under test, in ``dtype``, on the run's device; each once a session.

    Example:
        def test_forward(load_model):
            loaded = load_model("tiny-llama", dtype="float32")
            with loaded.port.active(loaded.model):
                loaded.model(torch.tensor([[1, 2, 3]]))
    """
    config = request.config

    def load(name: str | None = None, dtype: str | torch.dtype | None = None) -> LoadedModel:
        pool, port = model_pool(config), port_under_test(config)
        spec, in_dtype = model_spec(config, name), torch_dtype(config, dtype)
        model = pool.get(spec, port, in_dtype, open_device(config).torch_device())
        return LoadedModel(spec=spec, port=port, model=model, tokenizer=pool.tokenizer(spec), dtype=in_dtype)

    return load


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest, judge: Judge) -> AssertParity:
    """Hold the port under test to the reference.

    Example:
        def test_parity(assert_parity):
            assert_parity("tiny-llama", "decode")
            assert_parity("smollm2-135m", rule="precision", dtype="bfloat16")
    """
    return AssertParity(request.config, judge)


@pytest.fixture(scope="session")
def generate(request: pytest.FixtureRequest) -> Callable[..., list[GeneratedText]]:
    """Generate text with the port under test: greedy, all prompts in one left-padded batch.

    Takes the prompts, and ``model``, ``new_tokens``, ``dtype`` and ``port`` where they differ from the run's.

    Example:
        def test_text(generate, golden):
            (text,) = generate(["He has a"], new_tokens=20)
            assert text == golden(name="he-has-a")
    """
    config = request.config

    def run(
        prompts: Sequence[str],
        *,
        model: str | None = None,
        new_tokens: int = 100,
        dtype: str | torch.dtype | None = None,
        port: Port | str | None = None,
    ) -> list[GeneratedText]:
        from gaudi_validate.checks import text

        return text.generate(
            model_pool(config),
            chosen_port(config, port),
            model_spec(config, model),
            prompts,
            new_tokens=new_tokens,
            dtype=torch_dtype(config, dtype),
            hardware=options.settings_of(config).hardware,
        )

    return run


@pytest.fixture
def golden(request: pytest.FixtureRequest, judge: Judge) -> Golden:
    """Hold generated text to its golden; ``--update-golden`` creates and updates goldens.

    Example:
        def test_text(generate, golden):
            (text,) = generate(["He has a"])
            assert text == golden(name="he-has-a")
    """
    return Golden(request, judge)


@pytest.fixture
def memory_gate(request: pytest.FixtureRequest, judge: Judge) -> MemoryGate:
    """Gate the memory of the port under test.

    Example:
        def test_memory(memory_gate):
            memory_gate.scaling(lengths=(2048, 4096, 8192), heads=32, kv_heads=8)
            memory_gate.decode(length=2048)
    """
    return MemoryGate(request.config, judge)


@pytest.fixture
def perf_gate(request: pytest.FixtureRequest, judge: Judge) -> PerfGate:
    """Gate the speed of the port under test.

    Example:
        def test_speed(perf_gate):
            shape = AttentionShape(length=2048, heads=16, kv_heads=4, head_dim=128)
            perf_gate.faster_than_naive(shape, required=3)
    """
    return PerfGate(request.config, judge)
