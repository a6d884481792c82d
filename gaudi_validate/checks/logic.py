"""Logic parity: a port against transformers' own eager path, in fp64, on one scenario.

Logic faults stand out by ten orders of magnitude there, and rounding plays no part.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from gaudi_validate.attention.arguments import UnsupportedArgument
from gaudi_validate.checks import diagnosis, forward, tolerances
from gaudi_validate.checks.capture import attention_calls
from gaudi_validate.checks.difference import absolute_difference
from gaudi_validate.checks.reference import Reference, ReferenceStore, reference_key
from gaudi_validate.checks.run import innermost_frames
from gaudi_validate.checks.trace import Side
from gaudi_validate.core.evidence import Evidence, Location, Measurement
from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.checkpoints import fingerprint
from gaudi_validate.models.loading import first_line
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.inputs import make

if TYPE_CHECKING:
    from gaudi_validate.checks.capture import Call
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool
    from gaudi_validate.scenarios.data import Scenario
    from gaudi_validate.scenarios.inputs import ScenarioInputs

CHECK = "logic parity"
_STORES: WeakKeyDictionary[ModelPool, ReferenceStore] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows of real tokens compared: the worst |Δlogit| in sd, the row that holds it, the share of argmax flips.

    ``pattern`` counts logits that are NaN or infinite on one side only, or differently; with any of these, ``worst``
    is infinite.
    """

    worst: float
    row: int
    flips: float
    sd: float
    pattern: int


@dataclass(frozen=True, slots=True)
class _Results:
    """The reference, eager's own error in sd, and of the port its logits [N, V] and its attention function's calls."""

    reference: Reference
    noise: float
    logits: torch.Tensor
    calls: int | None


def logic_parity(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    scenario: Scenario,
    *,
    hardware: str = "cpu",
    references: ReferenceStore | None = None,
) -> Evidence:
    """Return whether ``port`` computes what stock eager attention computes on the same weights.

    Both run in fp64 and exact mode; on hardware without fp64 the port runs in fp32 and the reference in fp64 on the
    CPU, where eager is run in fp32 too: its own error widens the limit. Judged are the rows of real tokens. That the
    port's attention function was really called, as often as eager's, is judged first: a port that falls back silently
    would compare eager with itself. INCONCLUSIVE is a model that the port rejects by name
    (:class:`~gaudi_validate.attention.arguments.UnsupportedArgument`).

    Args:
        pool: loads models, once a session.
        port: the port under test.
        spec: the model.
        scenario: one input of the trigger matrix; see ``scenarios.matrix.applicable`` for those that suit a model.
        hardware: the key of the hardware that the port runs on.
        references: reference results; by default one store for each pool, under the pool's cache folder.
    """
    started = time.perf_counter()
    known = lookup(hardware)
    device = torch.device(known.device)
    tested = _side(pool, spec, port, device, exact=known.fp64)
    stock = _side(pool, spec, TransformersPort("eager"), device if known.fp64 else torch.device("cpu"), exact=True)
    inputs = make(scenario, tested.model().config.get_text_config().vocab_size)
    store = references or _store(pool)
    reference, source = _reference(store, pool, spec, stock, inputs)
    noise = 0.0 if known.fp64 else _noise(store, pool, spec, inputs, reference)
    evidence = Evidence(
        check=CHECK,
        status=Status.PASS,
        reason="",
        model=spec.name,
        scenario=scenario.id,
        port=port.name,
        hardware=hardware,
        dtype="float64" if known.fp64 else "float32",
        details=(f"reference: transformers' eager attention in float64, exact mode, {source}",),
    )
    try:
        logits, calls = _run(tested, inputs)
    except UnsupportedArgument as error:  # said by name and not done wrong: no failure, but nothing to judge either
        evidence = replace(evidence, status=Status.INCONCLUSIVE, reason=f"rejected by name: {error}")
    except Exception as error:  # whatever else a port raises is its failure, not the session's
        evidence = replace(evidence, status=Status.FAIL, reason=_raised(error), details=innermost_frames(error))
    else:
        evidence = _judge(evidence, tested, stock, inputs, _Results(reference, noise, logits, calls))
    return replace(evidence, duration_s=time.perf_counter() - started)


def compare(reference: torch.Tensor, port: torch.Tensor) -> Comparison:
    """Compare logits [N, V] of real tokens; ``port`` may be of another dtype or device."""
    port = port.to(device=reference.device, dtype=reference.dtype)
    difference = absolute_difference(reference, port)
    sd = float(reference[reference.isfinite()].std())
    pattern = int((difference == torch.inf).sum())
    per_row = difference.amax(dim=-1)
    flips = (reference.nan_to_num().argmax(-1) != port.nan_to_num().argmax(-1)).double().mean()
    return Comparison(
        worst=float(per_row.max()) / sd, row=int(per_row.argmax()), flips=float(flips), sd=sd, pattern=pattern
    )


def _judge(evidence: Evidence, tested: Side, stock: Side, inputs: ScenarioInputs, results: _Results) -> Evidence:
    """Return ``evidence`` with measurements and verdict: calls first, then NaN and infinity, then the tolerance."""
    tolerance = tolerances.logic(evidence.dtype)
    limit = tolerance.allowed(results.noise)
    compared = compare(results.reference.logits, results.logits)
    evidence = replace(evidence, measurements=_measurements(compared, limit, results))
    expected = results.reference.attention_calls
    if results.calls is not None and results.calls != expected:
        reason = (
            f"the attention function {tested.port.attention!r} was called {results.calls} times where eager's was "
            f"called {expected} times: the port takes another path without a word"
        )
        return replace(evidence, status=Status.FAIL, reason=reason)
    reason = f"worst |Δlogit| {compared.worst:.2g} sd, limit {limit:.3g} sd"
    if compared.worst <= limit:
        return replace(evidence, reason=reason)
    if compared.pattern:
        reason = f"{compared.pattern} logits of real tokens are NaN or infinite on one side only"
    try:
        location = diagnosis.locate(stock, tested, inputs, tolerance.divergence)
    except Exception as error:  # the verdict stands without a place
        location = Location(note=f"not located: the second run raised {first_line(error)}")
    return replace(evidence, status=Status.FAIL, reason=reason, location=_fallback(location, inputs, compared.row))


def _run(side: Side, inputs: ScenarioInputs) -> tuple[torch.Tensor, int | None]:
    """Return the logits [N, V] of real tokens, and how often the attention function was called, where that is known."""
    calls: list[Call] = []
    name, model = side.port.attention, side.model()

    def watch() -> AbstractContextManager[Any]:
        return nullcontext() if name is None else attention_calls(name, model, keep=False, into=calls)

    with side.mode():
        logits = forward.run(model, side.port, inputs.to(side.device), watch=watch)
    return logits[inputs.real.to(logits.device)], None if name is None else len(calls)


def _reference(
    store: ReferenceStore, pool: ModelPool, spec: ModelSpec, side: Side, inputs: ScenarioInputs
) -> tuple[Reference, str]:
    """Return what ``side`` computes, from ``store`` where it is known, and where it came from."""

    def compute() -> Reference:
        logits, calls = _run(side, inputs)
        return Reference(logits=logits.cpu(), attention_calls=calls or 0)

    dtype = torch.float64 if side.exact else torch.float32
    key = reference_key(fingerprint(pool.checkpoint(spec)), inputs, dtype=dtype, device=side.device)
    return store.get(key, compute)


def _noise(
    store: ReferenceStore, pool: ModelPool, spec: ModelSpec, inputs: ScenarioInputs, reference: Reference
) -> float:
    """Return the worst |Δlogit| of eager in fp32 on the CPU, in sd: what rounding alone does to this model."""
    plain = _side(pool, spec, TransformersPort("eager"), torch.device("cpu"), exact=False)
    return compare(reference.logits, _reference(store, pool, spec, plain, inputs)[0].logits).worst


def _measurements(compared: Comparison, limit: float, results: _Results) -> tuple[Measurement, ...]:
    found: tuple[Measurement, ...] = (
        Measurement(name="worst |Δlogit|", value=compared.worst, unit="sd", limit=limit),
        Measurement(name="argmax flips", value=compared.flips, unit="share of rows"),
        Measurement(name="NaN or infinite on one side", value=compared.pattern, unit="logits", limit=0),
        Measurement(name="sd of the reference's logits", value=compared.sd, unit="logits"),
    )
    if results.noise:
        found = (*found, Measurement(name="eager's own worst |Δlogit|", value=results.noise, unit="sd"))
    if results.calls is None:
        return found
    calls = Measurement(name="attention calls", value=results.calls, unit="calls")
    return (*found, replace(calls, limit=results.reference.attention_calls, better="higher"))


def _fallback(location: Location, inputs: ScenarioInputs, row: int) -> Location:
    """Fill in the batch row and column of the worst logit where the diagnosis found no place."""
    if location.batch_row is not None:
        return location
    batch_row, column = inputs.real.nonzero()[row].tolist()
    return replace(location, batch_row=batch_row, query_row=column)


def _side(pool: ModelPool, spec: ModelSpec, port: Port, device: torch.device, *, exact: bool) -> Side:
    dtype = torch.float64 if exact else torch.float32
    return Side(model=lambda: pool.get(spec, port, dtype, device), port=port, exact=exact, device=device)


def _raised(error: Exception) -> str:
    return f"the port raised {first_line(error)}"


def _store(pool: ModelPool) -> ReferenceStore:
    if pool not in _STORES:
        _STORES[pool] = ReferenceStore(pool.cache_dir / "references")
    return _STORES[pool]
