"""Where a port first departs from the reference: forward pass, layer, head, query row, key range. Only on failure.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gaudi_validate.checks import trace as tracing
from gaudi_validate.checks.capture import attention_function
from gaudi_validate.checks.difference import absolute_difference, off, rms
from gaudi_validate.checks.trace import ATTENTION, Place, Side, Trace
from gaudi_validate.checks.weights import key_range, probabilities, remarks, span
from gaudi_validate.core.evidence import Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.checks.capture import Call
    from gaudi_validate.scenarios.inputs import Pass, ScenarioInputs

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What every step needs: both sides, the inputs, and how far off counts as diverged (in units of the RMS)."""

    stock: Side
    tested: Side
    inputs: ScenarioInputs
    divergence: float

    def passes(self) -> tuple[Pass, ...]:
        return self.inputs.calls[-1]

    def real(self, index: int) -> torch.Tensor:
        """Return bool [B, T]: the real tokens of one forward pass."""
        one = self.passes()[index]
        return self.inputs.real[:, one.start : one.start + one.columns]


def locate(stock: Side, tested: Side, inputs: ScenarioInputs, divergence: float) -> Location:
    """Run both sides again with captures and return where the port first departs from the reference.

    Attention outputs and layer outputs are compared in the order in which the port makes them, on rows of real tokens.
    What cannot be found is left ``None``, and the note says why. Rows and keys are columns of the padded input.
    """
    case = _Case(stock=stock, tested=tested, inputs=inputs, divergence=divergence)
    expected, _ = tracing.record(stock, inputs, _is_layer)
    obtained, _ = tracing.record(tested, inputs, _is_layer)
    found = _first_divergence(case, expected, obtained)
    if found is None:
        return _outside_layers(case)
    kind, place = found
    if kind == ATTENTION:
        return _in_attention(case, place, expected.calls[place], obtained.calls[place])
    return _in_layer(case, place, expected, obtained)


def phase(passes: Sequence[Pass], index: int) -> str:
    """Return the name of forward pass ``index``: prefill, a further chunk of it, or a decode step, counted from 1."""
    if index == 0:
        return "prefill"
    if passes[index].columns > 1:
        return f"chunk {index + 1}"
    return f"decode step {sum(one.columns == 1 for one in passes[1 : index + 1])}"


def _first_divergence(case: _Case, expected: Trace, obtained: Trace) -> tuple[str, Place] | None:
    for kind, place in obtained.order:
        if kind == ATTENTION and place in expected.calls:
            pair = expected.calls[place].output, obtained.calls[place].output
        elif place in expected.outputs:
            pair = expected.outputs[place], obtained.outputs[place]
        else:
            continue
        if _diverged(case, place[0], *pair):
            return kind, place
    return None


def _diverged(case: _Case, index: int, expected: torch.Tensor | None, obtained: torch.Tensor | None) -> bool:
    """Return whether results [B, T, ...] or [B*T, ...] of one pass differ in rows of real tokens."""
    if expected is None or obtained is None:
        return False
    obtained = obtained.to(device=expected.device, dtype=expected.dtype)
    real = case.real(index).to(expected.device)
    if expected.shape[:2] not in (real.shape, (1, real.shape[1])) and expected.shape[0] != real.numel():
        return False  # tokens gathered for one expert: which of them are real is not known
    if expected.shape != obtained.shape:
        return True
    if expected.shape[:2] == real.shape:
        expected, obtained = expected[real], obtained[real]
    elif expected.shape[0] == real.numel():
        expected, obtained = expected[real.flatten()], obtained[real.flatten()]
    return off(expected, obtained, case.divergence)


def _in_attention(case: _Case, place: Place, expected: Call, obtained: Call) -> Location:
    if expected.output is None or obtained.output is None:
        raise ValueError("the calls were recorded without their outputs")
    index, path = place
    one, real = case.passes()[index], case.real(index)
    row, column, head = _worst(expected.output, obtained.output, real)
    location = Location(
        layer=expected.layer,
        module=path,
        phase=phase(case.passes(), index),
        batch_row=row,
        head=head,
        query_row=one.start + column,
        note="the attention's inputs are equal: the fault lies in the attention function or its mask",
    )
    differing = _differing_inputs(case, one, expected, obtained)
    if differing:
        module = _first_module(case, place)
        location = replace(location, module=module or path, note=_before(differing, path, module))
    elif spoilt := _spoilt_padding(case, one, obtained):
        location = replace(location, note=spoilt)
    return _with_keys(case, location, one, (expected, obtained))


def _before(differing: list[str], path: str, module: str | None) -> str:
    what = f"the attention's {' and '.join(differing)} already differ"
    if module is None or module == path:
        return f"{what}: the fault lies before the attention function, in {path} (RoPE, norm or cache)"
    return f"{what}: the fault lies before the attention function, first in {module}"


def _worst(expected_BTHD: torch.Tensor, obtained_BTHD: torch.Tensor, real: torch.Tensor) -> tuple[int, int, int]:
    """Return (batch row, query row, head) of the worst error in rows of real tokens."""
    obtained_BTHD = obtained_BTHD.to(device=expected_BTHD.device, dtype=expected_BTHD.dtype)
    worst_BTH = absolute_difference(expected_BTHD, obtained_BTHD).amax(dim=-1)
    worst_BTH = worst_BTH.masked_fill(~real.to(worst_BTH.device)[..., None], -1)
    row, column, head = (int(i) for i in torch.unravel_index(worst_BTH.argmax(), worst_BTH.shape))
    return row, column, head


def _differing_inputs(case: _Case, one: Pass, expected: Call, obtained: Call) -> list[str]:
    """Return which of queries, keys and values differ, and at which columns, among real tokens that the pass sees."""
    real = case.inputs.real[:, one.start : one.start + one.columns]
    offset = _key_offset(one, expected.key.shape[-2])
    keys = _real_keys(case, one, expected.key.shape[-2])
    pairs = (
        ("queries", expected.query, obtained.query, real, one.start),
        ("keys", expected.key, obtained.key, keys, offset),
        ("values", expected.value, obtained.value, keys, offset),
    )
    found = []
    for name, left, right, rows, first in pairs:
        if left.shape != right.shape:
            found.append(f"{name} (of shape {tuple(right.shape)}, not {tuple(left.shape)})")
            continue
        scale = rms(left.transpose(1, 2)[rows.to(left.device)])
        worst_BS = absolute_difference(left, right.to(left)).amax(dim=(1, 3)).cpu().masked_fill(~rows, 0)
        columns = (worst_BS.amax(dim=0) > case.divergence * scale).nonzero().flatten()
        if len(columns):
            found.append(f"{name} ({span('column', first + int(columns[0]), first + int(columns[-1]))})")
    return found


def _spoilt_padding(case: _Case, one: Pass, call: Call) -> str | None:
    """Return which padded columns hold values that are not finite: weight 0 does not stop these."""
    keys = call.value.shape[-2]
    spoilt_BS = ~call.value.isfinite().all(dim=3).all(dim=1).cpu() & ~_real_keys(case, one, keys)
    columns = spoilt_BS.any(dim=0).nonzero().flatten()
    if not len(columns):
        return None
    offset = _key_offset(one, keys)
    where = span("column", offset + int(columns[0]), offset + int(columns[-1]))
    return f"padding holds NaN or infinite values ({where}): an earlier layer made them in rows that see no key"


def _real_keys(case: _Case, one: Pass, keys: int) -> torch.Tensor:
    """Return bool [B, S]: which of the ``keys`` slots hold real tokens."""
    seen = one.start + one.columns
    offset = _key_offset(one, keys)
    real = torch.zeros(case.inputs.real.shape[0], keys, dtype=torch.bool)
    real[:, : seen - offset] = case.inputs.real[:, offset:seen]
    return real


def _key_offset(one: Pass, keys: int) -> int:
    """Return the padded column of the first key: sliding caches have dropped what came before."""
    return max(0, one.start + one.columns - keys)


def _with_keys(case: _Case, location: Location, one: Pass, calls: tuple[Call, Call]) -> Location:
    """Add the key range: the keys whose weights in the location's row differ."""
    expected, obtained = calls
    row, head, column = location.batch_row, location.head, (location.query_row or 0) - one.start
    if expected.key.shape != obtained.key.shape:
        shapes = f"{tuple(expected.key.shape)} and {tuple(obtained.key.shape)}"
        return replace(location, note=f"{location.note}; no key range: the keys have shapes {shapes}")
    try:
        reference = _weights(case.stock, expected)[row, head, column]
        port = _weights(case.tested, obtained)[row, head, column].to(reference)
    except Exception as error:  # a kernel may reject one-hot values: the rest of the location still holds
        return replace(location, note=f"{location.note}; no key range: {type(error).__name__}: {error}")
    offset = _key_offset(one, reference.numel())
    location = replace(
        location, note="; ".join([location.note or "", *remarks(reference, port, offset, case.divergence)])
    )
    if float(absolute_difference(reference, port).max()) <= case.divergence:
        return location
    start, end = key_range(reference, port, offset)
    return replace(location, key_start=start, key_end=end)


def _weights(side: Side, call: Call) -> torch.Tensor:
    name, model = side.port.attention, side.model()
    if name is None:
        raise ValueError("the port's attention function is not known by name")
    with torch.no_grad(), side.mode(), side.port.active(model):
        return probabilities(attention_function(name, model), call)


def _in_layer(case: _Case, place: Place, expected: Trace, obtained: Trace) -> Location:
    index, path = place
    module = _first_module(case, place) or path
    return _at_rows(
        case,
        Location(
            layer=_layer_number(path), module=module, phase=phase(case.passes(), index), note=_layer_note(case, module)
        ),
        index,
        expected.outputs[place],
        obtained.outputs[place],
    )


def _layer_note(case: _Case, module: str) -> str:
    if case.tested.port.attention is None:
        return "head and keys are unknown: the port's attention does not go through transformers' AttentionInterface"
    return f"the attention's output is equal: the fault lies after it, first in {module}"


def _outside_layers(case: _Case) -> Location:
    """Every layer agrees: look at what is in no layer, the final norm and the output matrix among them."""
    expected, expected_logits = tracing.record(case.stock, case.inputs, _is_outside)
    obtained, obtained_logits = tracing.record(case.tested, case.inputs, _is_outside)
    found = _first_divergence(case, replace(expected, calls={}), obtained)
    passes = case.passes()
    location = Location(note="every layer agrees: the fault lies after the last one")
    if found is not None:
        location = replace(location, module=found[1][1])
    difference = absolute_difference(expected_logits.cpu(), obtained_logits.to(expected_logits).cpu()).amax(-1)
    difference = difference.masked_fill(~case.inputs.real, -1)
    row, column = (int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    index = max(i for i, one in enumerate(passes) if one.start <= column)
    return replace(location, phase=phase(passes, index), batch_row=row, query_row=column)


def _at_rows(case: _Case, location: Location, index: int, expected: torch.Tensor, obtained: torch.Tensor) -> Location:
    real = case.real(index).to(expected.device)
    if expected.shape[:2] != real.shape or expected.shape != obtained.shape:
        return location
    difference = absolute_difference(expected, obtained.to(expected)).flatten(2).amax(-1).masked_fill(~real, -1)
    row, column = (int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return replace(location, batch_row=row, query_row=case.passes()[index].start + column)


def _first_module(case: _Case, place: Place) -> str | None:
    """Return the innermost module, in ``place``'s layer or in none, whose output is the first to differ in that pass.

    Where ``place`` is an attention call, only modules that were done before it count: those after it inherit the error.
    """
    index, path = place
    layer = _LAYER.search(path)
    prefix = path[: layer.end()] if layer else path

    def watched(candidate: str) -> bool:
        return candidate == prefix or candidate.startswith(f"{prefix}.") or _is_outside(candidate)

    expected, _ = tracing.record(case.stock, case.inputs, watched)
    obtained, _ = tracing.record(case.tested, case.inputs, watched)
    for kind, (number, module) in obtained.order:
        if kind == ATTENTION and (number, module) == place:
            return None
        if kind == ATTENTION or number != index or (number, module) not in expected.outputs:
            continue
        if _diverged(case, index, expected.outputs[number, module], obtained.outputs[number, module]):
            return module
    return None


def _is_layer(path: str) -> bool:
    match = _LAYER.search(path)
    return match is not None and match.end() == len(path)


def _is_outside(path: str) -> bool:
    return _LAYER.search(path) is None


def _layer_number(path: str) -> int | None:
    match = _LAYER.search(path)
    return int(match[1]) if match else None
