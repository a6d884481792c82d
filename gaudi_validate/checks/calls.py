"""Attention calls on the reference's inputs: captured once, then given to any port, so that errors do not pile up.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.checks import forward
from gaudi_validate.checks.capture import attention_calls, attention_function
from gaudi_validate.checks.exact import exact_mode
from gaudi_validate.checks.kept import MIB, Kept
from gaudi_validate.checks.reference import reference_key
from gaudi_validate.checks.teacher import NAIVE
from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.models.checkpoints import fingerprint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gaudi_validate.checks.capture import AttentionFunction, AttentionResult, Call
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool
    from gaudi_validate.scenarios.inputs import ScenarioInputs

_CPU = torch.device("cpu")


class CallMismatch(Exception):
    """A port calls attention on other shapes, or another number of times, than the reference does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Captured:
    """The calls that stock eager attention gets in fp32, and the eager function itself."""

    calls: tuple[Call, ...]
    function: AttentionFunction

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors kept."""
        kept = (t for call in self.calls for t in (call.query, call.key, call.value, call.mask, call.output))
        return sum(t.numel() * t.element_size() for t in kept if t is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Yardstick:
    """What each call is judged by in one dtype: the truth in fp64 and naive's output, both [B, T, H, D]."""

    truth: tuple[torch.Tensor, ...]
    naive: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors kept."""
        return sum(t.numel() * t.element_size() for t in (*self.truth, *self.naive))


_CAPTURED: Kept[Captured] = Kept(512 * MIB, lambda captured: captured.nbytes)
_YARDSTICKS: Kept[Yardstick] = Kept(512 * MIB, lambda yardstick: yardstick.nbytes)


def captured(pool: ModelPool, spec: ModelSpec, inputs: ScenarioInputs) -> Captured:
    """Return the attention calls of stock eager attention on ``inputs``, in fp32 on the CPU.

    fp32 is enough: the inputs only have to be those of the model, since the truth is fp64 attention on them.
    """

    def compute() -> Captured:
        model = pool.get(spec, NAIVE, torch.float32, _CPU)
        calls: list[Call] = []
        forward.run(model, NAIVE, inputs, watch=lambda: attention_calls(NAIVE.attention, model, into=calls))
        return Captured(calls=tuple(calls), function=attention_function(NAIVE.attention, model))

    return _CAPTURED.get(pool, _key(pool, spec, inputs, torch.float32, _CPU), compute)


def yardstick(
    pool: ModelPool, spec: ModelSpec, inputs: ScenarioInputs, dtype: torch.dtype, hardware: str
) -> Yardstick:
    """Return truth and naive output of every call in ``dtype``, naive on the device that the port runs on."""

    def compute() -> Yardstick:
        known = captured(pool, spec, inputs)
        naive = outputs(pool, NAIVE, spec, inputs, dtype, hardware)
        return Yardstick(truth=tuple(_truth(known, call, dtype) for call in known.calls), naive=tuple(naive))

    key = _key(pool, spec, inputs, dtype, torch.device(lookup(hardware).device))
    return _YARDSTICKS.get(pool, key, compute)


def outputs(
    pool: ModelPool, port: Port, spec: ModelSpec, inputs: ScenarioInputs, dtype: torch.dtype, hardware: str
) -> list[torch.Tensor]:
    """Return the output [B, T, H, D] of each attention call of ``port``, on the CPU; an empty list when none is seen.

    The model runs in ``dtype`` with the port's own masks; each call's query, key and value are replaced by the
    reference's, rounded to ``dtype``. A port without the name of an attention function is looked at under the name that
    its model's config holds.

    Raises:
        CallMismatch: the calls do not correspond to the reference's.
    """
    known = captured(pool, spec, inputs).calls
    device = torch.device(lookup(hardware).device)
    model = pool.get(spec, port, dtype, device)
    found: list[torch.Tensor] = []

    def substitute(call: Call, original: AttentionFunction) -> AttentionResult:
        given = _matching(known, call)
        result = call.run(original, **{name: getattr(given, name).to(device, dtype) for name in _TENSORS})
        found.append(result[0].detach().cpu())
        return result

    def watch() -> AbstractContextManager[Any]:
        name = port.attention or getattr(model.config, "_attn_implementation", None) or NAIVE.attention
        return attention_calls(name, model, around=substitute, keep=False)

    forward.run(model, port, inputs.to(device), watch=watch)
    if found and len(found) != len(known):
        raise CallMismatch(f"{len(found)} attention calls, the reference makes {len(known)}")
    return found


_TENSORS = ("query", "key", "value")


def _matching(known: tuple[Call, ...], call: Call) -> Call:
    if call.index >= len(known):
        raise CallMismatch(f"more attention calls than the reference's {len(known)}")
    given = known[call.index]
    for name in _TENSORS:
        expected, obtained = tuple(getattr(given, name).shape), tuple(getattr(call, name).shape)
        if expected != obtained:
            raise CallMismatch(f"call {call.index} gets a {name} of shape {obtained}, the reference's is {expected}")
    return given


def _truth(known: Captured, call: Call, dtype: torch.dtype) -> torch.Tensor:
    """Return eager attention in fp64 on the inputs rounded to ``dtype``, with the reference's own mask."""
    rounded = {name: getattr(call, name).to(dtype).double() for name in _TENSORS}
    mask = call.mask.double() if call.mask is not None and call.mask.is_floating_point() else call.mask
    with torch.no_grad(), exact_mode():
        return call.run(known.function, **rounded, mask=mask)[0]


def _key(pool: ModelPool, spec: ModelSpec, inputs: ScenarioInputs, dtype: torch.dtype, device: torch.device) -> str:
    return reference_key(fingerprint(pool.checkpoint(spec)), inputs, dtype=dtype, device=device)
