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
from gaudi_validate.checks.run import CPU, NAIVE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gaudi_validate.checks.capture import AttentionFunction, AttentionResult, Call
    from gaudi_validate.checks.run import Run


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

    layers: tuple[int | None, ...]
    truth: tuple[torch.Tensor, ...]
    naive: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors kept."""
        return sum(t.numel() * t.element_size() for t in (*self.truth, *self.naive))


_CAPTURED: Kept[Captured] = Kept(512 * MIB, lambda captured: captured.nbytes)
_YARDSTICKS: Kept[Yardstick] = Kept(512 * MIB, lambda yardstick: yardstick.nbytes)


def captured(run: Run) -> Captured:
    """Return the attention calls of stock eager attention on the run's inputs, in fp32 on the CPU.

    fp32 is enough: the inputs only have to be those of the model, since the truth is fp64 attention on them.
    """

    def compute() -> Captured:
        model = run.pool.get(run.spec, NAIVE, torch.float32, CPU)
        calls: list[Call] = []
        forward.run(model, NAIVE, run.inputs, watch=lambda: attention_calls(NAIVE.attention, model, into=calls))
        return Captured(calls=tuple(calls), function=attention_function(NAIVE.attention, model))

    return _CAPTURED.get(run.pool, run.key(dtype=torch.float32, cpu=True), compute)


def yardstick(run: Run) -> Yardstick:
    """Return truth and naive output of every call in the run's dtype, naive on the device that the port runs on."""

    def compute() -> Yardstick:
        known = captured(run)
        truth = tuple(_truth(known, call, run.dtype) for call in known.calls)
        layers = tuple(call.layer for call in known.calls)
        return Yardstick(layers=layers, truth=truth, naive=tuple(outputs(run.naive())))

    return _YARDSTICKS.get(run.pool, run.key(), compute)


def outputs(run: Run) -> list[torch.Tensor]:
    """Return the output [B, T, H, D] of each attention call of the port, on the CPU; an empty list when none is seen.

    The model runs in the run's dtype with the port's own masks; each call's query, key and value are replaced by the
    reference's, rounded to that dtype. A port without the name of an attention function is looked at under the name
    that its model's config holds.

    Raises:
        CallMismatch: the calls do not correspond to the reference's.
    """
    known, model = captured(run).calls, run.model()
    found: list[torch.Tensor] = []

    def substitute(call: Call, original: AttentionFunction) -> AttentionResult:
        given = _matching(known, call)
        result = call.run(original, **{name: getattr(given, name).to(run.device, run.dtype) for name in _TENSORS})
        found.append(result[0].detach().cpu())
        return result

    def watch() -> AbstractContextManager[Any]:
        name = run.port.attention or getattr(model.config, "_attn_implementation", None) or NAIVE.attention
        return attention_calls(name, model, around=substitute, keep=False)

    forward.run(model, run.port, run.inputs.to(run.device), watch=watch)
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
