"""The fixtures: the public way to load models, check parity, hold text to goldens, and gate memory and speed."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from gaudi_validate import options
from gaudi_validate.core import travel
from gaudi_validate.core.evidence import Evidence, to_json
from gaudi_validate.core.explain import explain, headline
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import fails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gaudi_validate.core.hardware_table import Hardware
    from gaudi_validate.golden.extension import GoldenAssertion
    from gaudi_validate.hardware.device import Device
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool
    from gaudi_validate.scenarios.data import Scenario

PORT: pytest.StashKey[Port] = pytest.StashKey()
POOL: pytest.StashKey[ModelPool] = pytest.StashKey()
DEVICE: pytest.StashKey[Device] = pytest.StashKey()


@dataclass(frozen=True, slots=True)
class RunHardware:
    """The hardware of the run: its table entry, and the device, opened when it is first asked for."""

    facts: Hardware
    config: pytest.Config

    @property
    def key(self) -> str:
        """The key of goldens and baselines, such as "cpu" or "gaudi2"."""
        return self.facts.key

    @property
    def device(self) -> Device:
        """The device of this process: identify, synchronise, memory."""
        return open_device(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that the port under test has loaded. ``port.active(model)`` is the context that runs it."""

    spec: ModelSpec
    port: Port
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    dtype: torch.dtype


def open_device(config: pytest.Config) -> Device:
    """Return the device of this process, opened once."""
    if DEVICE not in config.stash:
        from gaudi_validate.hardware.device import open_device as opened

        config.stash[DEVICE] = opened(options.settings_of(config).facts, os.environ)
    return config.stash[DEVICE]


def model_pool(config: pytest.Config) -> ModelPool:
    """Return the session's pool: weights load once."""
    if POOL not in config.stash:
        from gaudi_validate.ports.pool import ModelPool

        config.stash[POOL] = ModelPool(options.settings_of(config).cache_dir)
    return config.stash[POOL]


def port_under_test(config: pytest.Config) -> Port:
    """Return the port that --port, --attention and --plant-fault choose. Raises UserError for unknown ones."""
    if PORT not in config.stash:
        from gaudi_validate.ports.resolve_port import resolve_port

        settings = options.settings_of(config)
        added: list[Mapping[str, str]] = config.hook.pytest_gaudi_validate_ports(config=config)
        named = {name: loader for ports in added for name, loader in ports.items()}
        port = resolve_port(named.get(settings.port or "", settings.port), settings.attention)
        config.stash[PORT] = planted(port, settings.plant_fault) if settings.plant_fault else port
    return config.stash[PORT]


def planted(port: Port, fault_id: str) -> Port:
    """Return ``port`` with the fault of the catalogue in it."""
    from gaudi_validate.faults.catalogue import FAULTS
    from gaudi_validate.faults.fault import FaultyPort

    if fault_id not in FAULTS:
        raise UserError("unknown fault", where=f"--plant-fault {fault_id!r}", do=f"use one of {', '.join(FAULTS)}")
    return FaultyPort(port, FAULTS[fault_id])


def model_spec(config: pytest.Config, name: str) -> ModelSpec:
    """Return the model of that name: one that a hook adds, else one of the catalogue."""
    from gaudi_validate.models.catalogue import resolve

    added: list[Iterable[ModelSpec]] = config.hook.pytest_gaudi_validate_models(config=config)
    return next((spec for specs in added for spec in specs if spec.name == name), None) or resolve(name)


def check_choices(config: pytest.Config) -> None:
    """Turn an unknown port, attention, fault or model of the command line into a usage error, before anything runs."""
    if options.is_worker(config) or config.option.collectonly:
        return
    try:
        if any(options.is_given(config, name) for name in ("port", "attention", "plant_fault")):
            port_under_test(config)
        if options.is_given(config, "model"):
            model_spec(config, options.settings_of(config).model)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


class Judge:
    """Records evidence on the test, and fails the test when the verdict does."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node, self._config = request.node, request.config
        self._settings = options.settings_of(request.config)

    def record(self, evidence: Evidence) -> Evidence:
        """Put the evidence on the test's report, with the test's name and the command that reproduces it."""
        node = self._node
        known = replace(
            evidence,
            test=node.nodeid,
            reproduce=evidence.reproduce or options.reproduce_command(node),
            hardware=evidence.hardware or self._settings.hardware,
        )
        self._send(travel.EVIDENCE_KEY, to_json(known))
        if (device := self._config.stash.get(DEVICE, None)) is not None:
            self._send(travel.DEVICE_KEY, asdict(device.identify()))
        return known

    def propose(self, proposal: Mapping[str, Any]) -> None:
        """Put a golden's or a baseline's proposal on the test's report; the controller decides and writes."""
        self._send(travel.PROPOSAL_KEY, proposal)

    def _send(self, key: str, record: Mapping[str, Any]) -> None:
        self._node.user_properties.append((key, travel.primitives(record)))

    def __call__(self, *evidence: Evidence) -> None:
        """Record all of it, then fail once if any of it fails."""
        known = [self.record(one) for one in evidence]
        failed = [one for one in known if fails(one.status, strict=self._settings.strict_verdicts)]
        if failed:
            pytest.fail(failure_text(failed), pytrace=False)


def failure_text(failed: Sequence[Evidence]) -> str:
    """Return the message of a failed test: the first failure explained, of the others the number and one reason."""
    first, others = failed[0], failed[1:]
    if others:
        verdicts = "1 more verdict of this test fails" if len(others) == 1 else f"{len(others)} more verdicts fail"
        first = replace(first, details=(f"{verdicts}: {headline(others[0])}", *first.details))
    return explain(first)


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
    """Load a model through the port under test; each (model, dtype) once a session."""
    return lambda name=None, dtype=None: load(request.config, name, dtype)


def load(config: pytest.Config, name: str | None, dtype: str | torch.dtype | None) -> LoadedModel:
    """Load ``name`` (default: --model) in ``dtype`` (default: --dtype) on the run's device."""
    settings, pool, port = options.settings_of(config), model_pool(config), port_under_test(config)
    spec, in_dtype = model_spec(config, name or settings.model), torch_dtype(dtype or settings.dtype)
    model = pool.get(spec, port, in_dtype, open_device(config).torch_device())
    return LoadedModel(spec=spec, port=port, model=model, tokenizer=pool.tokenizer(spec), dtype=in_dtype)


def torch_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return torch's dtype of that name."""
    import torch

    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise UserError("unknown dtype", where=repr(dtype), do="use float64, float32, bfloat16 or float16")
    return found


Rule = Literal["logic", "precision", "logits"]


class AssertParity:
    """Runs a parity rule over scenarios and judges the evidence; see the fixture :func:`assert_parity`."""

    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._config, self._judge = config, judge

    def __call__(
        self,
        model: str | LoadedModel | None = None,
        scenarios: Scenario | str | Iterable[Scenario | str] | None = None,
        *,
        rule: Rule = "logic",
        dtype: str | None = None,
    ) -> list[Evidence]:
        """Hold the port under test to ``rule`` on ``model`` and return the evidence; fail the test if it fails.

        Args:
            model: a model's name, or one that ``load_model`` returned; default --model.
            scenarios: scenarios or their ids; default all of the matrix that say anything about the model.
            rule: "logic" (fp64), "precision" (call by call in ``dtype``) or "logits" (of the whole model in ``dtype``).
            dtype: the deployed dtype; default --dtype. The logic rule has its own.
        """
        spec = model.spec if isinstance(model, LoadedModel) else self._spec(model)
        port = model.port if isinstance(model, LoadedModel) else port_under_test(self._config)
        wanted = _scenarios(spec, scenarios)
        evidence = [self._one(rule, port, spec, scenario, dtype) for scenario in wanted]
        self._judge(*evidence)
        return evidence

    def _spec(self, name: str | None) -> ModelSpec:
        return model_spec(self._config, name or options.settings_of(self._config).model)

    def _one(self, rule: Rule, port: Port, spec: ModelSpec, scenario: Scenario, dtype: str | None) -> Evidence:
        pool, settings = model_pool(self._config), options.settings_of(self._config)
        if rule == "logic":
            from gaudi_validate.checks.logic import logic_parity

            return logic_parity(pool, port, spec, scenario, hardware=settings.hardware)
        in_dtype = torch_dtype(dtype or settings.dtype)
        if rule == "precision":
            from gaudi_validate.checks.precision import precision_parity

            return precision_parity(pool, port, spec, scenario, in_dtype, hardware=settings.hardware)
        if rule == "logits":
            from gaudi_validate.checks.logits import logits_parity

            return logits_parity(pool, port, spec, scenario, in_dtype, hardware=settings.hardware)
        raise UserError("unknown parity rule", where=repr(rule), do="use logic, precision or logits")


def _scenarios(spec: ModelSpec, wanted: Scenario | str | Iterable[Scenario | str] | None) -> list[Scenario]:
    """Return the scenarios that are meant; by default those that say anything about ``spec``."""
    from gaudi_validate.scenarios.data import Scenario
    from gaudi_validate.scenarios.matrix import BY_ID, MATRIX

    if wanted is None:
        return [scenario for scenario in MATRIX if scenario.needs <= spec.features]
    found = []
    for one in [wanted] if isinstance(wanted, (Scenario, str)) else wanted:
        if isinstance(one, str) and one not in BY_ID:
            raise UserError("unknown scenario", where=repr(one), do=f"use one of {', '.join(BY_ID)}")
        found.append(BY_ID[one] if isinstance(one, str) else one)
    return found


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest, judge: Judge) -> AssertParity:
    """Hold the port under test to the reference.

    Example:
        def test_parity(assert_parity):
            assert_parity("tiny-llama", "decode")
            assert_parity("smollm2-135m", rule="precision", dtype="bfloat16")
    """
    return AssertParity(request.config, judge)


@pytest.fixture
def golden(request: pytest.FixtureRequest, judge: Judge) -> GoldenAssertion:
    """Hold generated text to its golden; ``--update-golden`` creates and updates goldens.

    Example:
        def test_text(golden, generated):
            assert generated == golden(name="he-has-a")
    """
    from gaudi_validate.golden.extension import GoldenContext, golden_assertion

    config, settings = request.config, options.settings_of(request.config)
    context = GoldenContext(
        settings=settings,
        model=settings.model,
        port=port_under_test(config).name,
        record=judge.record,
        propose=judge.propose,
        invocation=options.invocation(config.invocation_params.args),
        test=request.node.nodeid,
    )
    return golden_assertion(request, context)


class MemoryGate:
    """Memory of the port under test, counted in live bytes: the same number on every machine.

    Each method takes the arguments of the check that it names, runs it and judges the evidence.
    """

    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._config, self._judge = config, judge

    def _judged(self, check: Callable[..., Evidence], arguments: dict[str, Any]) -> Evidence:
        evidence = check(port_under_test(self._config), **arguments)
        self._judge(evidence)
        return evidence

    def scaling(self, **arguments: Any) -> Evidence:
        """Peak of an attention call over naive's, and its growth with length: ``checks.memory.memory_scaling``."""
        from gaudi_validate.checks.memory import memory_scaling

        return self._judged(memory_scaling, arguments)

    def mask(self, **arguments: Any) -> Evidence:
        """Bytes of the mask that a prefill builds: ``checks.memory.mask_memory``."""
        from gaudi_validate.checks.memory import mask_memory

        return self._judged(mask_memory, arguments)

    def decode(self, **arguments: Any) -> Evidence:
        """Copies of the KV cache that a decoding step makes: ``checks.memory.decode_allocation``."""
        from gaudi_validate.checks.memory import decode_allocation

        return self._judged(decode_allocation, arguments)


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
def perf_gate() -> None:
    """Placeholder."""
