"""What the fixtures of :mod:`gaudi_validate.fixtures` hand to a test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gaudi_validate import options
from gaudi_validate.core.messages import UserError
from gaudi_validate.session import chosen_port, model_pool, model_spec, open_device, torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pytest
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gaudi_validate.checks.speed import GqaCase
    from gaudi_validate.checks.teacher import Forced
    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.core.hardware_table import Hardware
    from gaudi_validate.golden.extension import GoldenAssertion
    from gaudi_validate.golden.generated import Comparer, Generated, GeneratedText
    from gaudi_validate.golden.records import TextGolden
    from gaudi_validate.hardware.device import Device
    from gaudi_validate.judge import Judge
    from gaudi_validate.measure.attention_call import AttentionShape
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.scenarios.data import Scenario

    Case: TypeAlias = Scenario | Sequence[str] | Forced
    Written: TypeAlias = TextGolden | GeneratedText

Rule = Literal["logic", "precision", "logits"]


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


class AssertParity:
    """Runs a parity rule over scenarios and judges the evidence; see the fixture ``assert_parity``."""

    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._config, self._judge = config, judge

    def __call__(
        self,
        model: str | LoadedModel | None = None,
        scenarios: Scenario | str | Iterable[Scenario | str] | None = None,
        *,
        rule: Rule = "logic",
        dtype: str | torch.dtype | None = None,
        port: Port | str | None = None,
        prompts: Sequence[str] | None = None,
        texts: Sequence[Written] | None = None,
    ) -> list[Evidence]:
        """Hold a port to ``rule`` on ``model`` and return the evidence; fail the test if any of it fails.

        Args:
            model: a model's name, or one that ``load_model`` returned; default --model.
            scenarios: scenarios or their ids; default all of the matrix that say anything about the model.
            rule: "logic" (fp64), "precision" (call by call in ``dtype``) or "logits" (of the whole model in ``dtype``).
            dtype: the deployed dtype; default --dtype. The logic rule has its own.
            port: a port or an attention implementation; default the one under test.
            prompts: texts to run in the place of scenarios, all in one batch, for the rules in a deployed dtype.
            texts: goldens or generated texts in the place of scenarios, for the logits rule: the port is given their
                tokens one by one, whatever it would have written itself.
        """
        spec = model.spec if isinstance(model, LoadedModel) else model_spec(self._config, model)
        if port is None and isinstance(model, LoadedModel):
            port = model.port
        tested = chosen_port(self._config, port)
        cases: Sequence[Case]
        if texts is not None:
            cases = [self._forced(spec, rule, texts)]
        else:
            cases = _scenarios(spec, scenarios) if prompts is None else [prompts]
        evidence = [self._one(rule, tested, spec, case, dtype) for case in cases]
        self._judge(*evidence)
        return evidence

    def _forced(self, spec: ModelSpec, rule: Rule, texts: Sequence[Written]) -> Forced:
        from gaudi_validate.checks import prompts, teacher

        if rule != "logits":
            raise UserError(f"the {rule} rule takes no texts", do="use rule='logits'")
        pad = prompts.pad_token(model_pool(self._config), spec, [text.prompt for text in texts])
        return teacher.force([text.prompt_ids for text in texts], [text.ids for text in texts], pad=pad)

    def _one(self, rule: Rule, port: Port, spec: ModelSpec, case: Case, dtype: str | torch.dtype | None) -> Evidence:
        from gaudi_validate.scenarios.data import Scenario

        pool, hardware = model_pool(self._config), options.settings_of(self._config).hardware
        if rule == "logic":
            from gaudi_validate.checks.logic import logic_parity

            if not isinstance(case, Scenario):
                raise UserError("the logic rule runs scenarios, not prompts", do="use rule='precision' or 'logits'")
            return logic_parity(pool, port, spec, case, hardware=hardware)
        in_dtype = torch_dtype(self._config, dtype)
        if rule == "precision":
            from gaudi_validate.checks.precision import precision_parity
            from gaudi_validate.checks.teacher import Forced

            assert not isinstance(case, Forced)  # refused above
            return precision_parity(pool, port, spec, case, in_dtype, hardware=hardware)
        if rule == "logits":
            from gaudi_validate.checks.logits import logits_parity

            return logits_parity(pool, port, spec, case, in_dtype, hardware=hardware)
        raise UserError("unknown parity rule", where=repr(rule), do="use logic, precision or logits")


def _scenarios(spec: ModelSpec, wanted: Scenario | str | Iterable[Scenario | str] | None) -> list[Case]:
    """Return the scenarios that are meant; by default those that say anything about ``spec``."""
    from gaudi_validate.scenarios.data import Scenario
    from gaudi_validate.scenarios.matrix import BY_ID, applicable

    if wanted is None:
        return [*applicable(spec.features)]
    found: list[Case] = []
    for one in [wanted] if isinstance(wanted, (Scenario, str)) else wanted:
        if isinstance(one, str) and one not in BY_ID:
            raise UserError("unknown scenario", where=repr(one), do=f"use one of {', '.join(BY_ID)}")
        found.append(BY_ID[one] if isinstance(one, str) else one)
    return found


class Golden:
    """Goldens of the run's model and port; see the fixture ``golden``."""

    def __init__(self, request: pytest.FixtureRequest, judge: Judge) -> None:
        self._request, self._judge, self._config = request, judge, request.config
        # One assertion for each model, port and comparison: it counts the comparisons that have no name.
        self._made: dict[object, GoldenAssertion] = {}

    def __call__(
        self,
        *,
        name: str | None = None,
        model: str | None = None,
        port: Port | str | None = None,
        compare: Comparer | None = None,
    ) -> GoldenAssertion:
        """Return the golden of the case ``name`` (default: the test's), to be compared with ``==``.

        ``compare`` replaces the comparison that tells a tie from a defect.
        """
        key = (model, port, compare)
        if key not in self._made:
            self._made[key] = self._make(model, port, compare)
        return self._made[key](name=name)

    def _make(self, model: str | None, port: Port | str | None, compare: Comparer | None) -> GoldenAssertion:
        from gaudi_validate.golden.extension import GoldenContext, golden_assertion

        settings, spec = options.settings_of(self._config), model_spec(self._config, model)
        tested = chosen_port(self._config, port)
        context = GoldenContext(
            settings=settings,
            model=spec.name,
            port=tested.name,
            record=self._judge.record,
            propose=self._judge.propose,
            invocation=options.invocation(self._config.invocation_params.args),
            test=options.name_of(self._request.node),
            compare=compare or self._tie_aware(spec, tested),
        )
        return golden_assertion(self._request, context)

    def recorded(self, name: str, *, model: str | None = None) -> TextGolden | None:
        """Return the golden of the case ``name``, ``None`` if there is none."""
        from gaudi_validate.golden.store import GoldenStore

        settings = options.settings_of(self._config)
        return GoldenStore(settings.golden_dir).text(settings.hardware, model_spec(self._config, model).name, name)

    def __eq__(self, other: object) -> bool:
        """Compare with the golden that is named after the test."""
        __tracebackhide__ = True
        return self() == other

    __hash__ = None  # type: ignore[assignment] # as for every snapshot

    def _tie_aware(self, spec: ModelSpec, port: Port) -> Comparer:
        def compare(generated: Generated, golden: TextGolden) -> Evidence:
            from gaudi_validate.checks import text

            settings = options.settings_of(self._config)
            lists = {name: list(getattr(generated, name)) for name in ("ids", "prompt_ids", "margins")}
            wrote = text.GeneratedText(prompt=generated.prompt, text=generated.text, dtype=generated.dtype, **lists)
            return text.compare(
                model_pool(self._config),
                port,
                spec,
                [wrote],
                [golden.ids],
                dtype=torch_dtype(self._config, generated.dtype),
                strict=settings.strict_verdicts,
                hardware=settings.hardware,
            )

        return compare


class _Gate:
    def __init__(self, config: pytest.Config, judge: Judge) -> None:
        self._config, self._judge = config, judge

    def _judged(self, check: Callable[..., Evidence], port: Port | str | None, *case: Any, **options_: Any) -> Evidence:
        hardware = options.settings_of(self._config).hardware
        evidence = check(chosen_port(self._config, port), *case, hardware=hardware, **options_)
        self._judge(evidence)
        return evidence


class MemoryGate(_Gate):
    """Memory of a port, counted in live bytes: the same number on every machine.

    Each method takes the arguments of the check that it names, judges its evidence and returns it.
    """

    def scaling(self, *, port: Port | str | None = None, **case: Any) -> Evidence:
        """Peak of an attention call over naive's, and its growth with length: ``checks.memory.memory_scaling``."""
        from gaudi_validate.checks.memory import memory_scaling

        return self._judged(memory_scaling, port, **case)

    def mask(self, *, port: Port | str | None = None, **case: Any) -> Evidence:
        """Bytes of the mask that a prefill builds: ``checks.memory.mask_memory``."""
        from gaudi_validate.checks.memory import mask_memory

        return self._judged(mask_memory, port, **case)

    def decode(self, *, port: Port | str | None = None, **case: Any) -> Evidence:
        """Copies of the KV cache that a decoding step makes: ``checks.memory.decode_allocation``."""
        from gaudi_validate.checks.memory import decode_allocation

        return self._judged(decode_allocation, port, **case)

    def model_peak(self, model: str | None = None, *, port: Port | str | None = None, **case: Any) -> Evidence:
        """Peak of a whole model's prefill or decoding step over naive's: ``checks.model_memory.model_peak``."""
        from gaudi_validate.checks.model_memory import model_peak

        hardware = options.settings_of(self._config).hardware
        pool, tested = model_pool(self._config), chosen_port(self._config, port)
        evidence = model_peak(pool, tested, model_spec(self._config, model), hardware=hardware, **case)
        self._judge(evidence)
        return evidence


class PerfGate(_Gate):
    """Speed of a port as a paired ratio on the machine at hand.

    ``required``: how many times as fast the port must be; ``None``: it must not be slower.
    """

    def faster_than_naive(
        self, shape: AttentionShape, *, port: Port | str | None = None, required: float | None = None, **timing: Any
    ) -> Evidence:
        """Time an attention call against the naive path: ``checks.speed.paired_speed``."""
        return self.paired("naive", port, shape, required=required, **timing)

    def paired(
        self,
        before: Port | str,
        after: Port | str | None,
        shape: AttentionShape,
        *,
        required: float | None = None,
        **timing: Any,
    ) -> Evidence:
        """Time an attention call of ``after`` (``None``: the port under test) against ``before``."""
        from gaudi_validate.checks.speed import paired_speed

        against = chosen_port(self._config, before) if isinstance(before, str) else before
        return self._judged(
            paired_speed, after, shape, against=against, required=required, device=self._device(), **timing
        )

    def decode(self, case: GqaCase | str, *, port: Port | str | None = None, **timing: Any) -> Evidence:
        """Time a decoding step on grouped keys against repeated ones: ``checks.speed.decode_gqa_speed``."""
        from gaudi_validate.checks.speed import decode_gqa_speed

        return self._judged(decode_gqa_speed, port, case, device=self._device(), **timing)

    def _device(self) -> Device | None:
        """Return the device whose wall-clock is read; on a CPU processor time is taken instead."""
        on_cpu = options.settings_of(self._config).facts.device == "cpu"
        return None if on_cpu else open_device(self._config)
