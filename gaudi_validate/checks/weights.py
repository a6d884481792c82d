"""The weight that each query row really gives to each key, and what it says of the mask.

Shapes: B batch rows, H query heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gaudi_validate.checks.difference import absolute_difference
from gaudi_validate.checks.tolerances import KEY_RANGE_SHARE

if TYPE_CHECKING:
    from gaudi_validate.checks.capture import AttentionFunction, Call


def probabilities(function: AttentionFunction, call: Call) -> torch.Tensor:
    """Return the weight [B, H, T, S] that each query row really gives to each key, from the function alone.

    Attention is linear in V: with V's columns one-hot on D keys at a time, D columns of the output are weights.
    """
    keys, width = call.value.shape[-2:]
    parts = []
    for start in range(0, keys, width):
        value = torch.zeros_like(call.value)
        count = min(width, keys - start)
        value[..., range(start, start + count), range(count)] = 1
        output_BTHD = call.run(function, value=value)[0]
        parts.append(output_BTHD[..., :count])
    return torch.cat(parts, dim=-1).transpose(1, 2)


def key_range(reference: torch.Tensor, port: torch.Tensor, offset: int) -> tuple[int, int]:
    """Return the half-open range of columns whose weights [S] are off by a good part of the worst error."""
    difference = absolute_difference(reference, port)
    worst = difference.max()
    return _range(difference > KEY_RANGE_SHARE * worst if worst.isfinite() else difference == worst, offset)


def _range(chosen: torch.Tensor, offset: int) -> tuple[int, int]:
    """Return the smallest half-open range of columns that holds every key that is ``chosen``."""
    keys = chosen.nonzero().flatten()
    return offset + int(keys[0]), offset + int(keys[-1]) + 1


def span(noun: str, first: int, last: int) -> str:
    """Return "key 3" or "keys 3 to 7"; both ends belong to it."""
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"


def remarks(reference: torch.Tensor, port: torch.Tensor, offset: int, divergence: float) -> list[str]:
    """Return what the weights [S] of one row say of the mask: keys wrongly seen or hidden, weight that is lost."""
    found = []
    if float(absolute_difference(reference, port).max()) <= divergence:
        found.append("every key weighs the same: the values differ")
    for what, hidden, seen in (("sees", reference, port), ("does not see", port, reference)):
        wrong = (hidden == 0) & (seen > divergence)
        if wrong.any():
            start, end = _range(wrong, offset)
            other = "the reference masks" if what == "sees" else "the reference sees"
            found.append(f"the row {what} {span('key', start, end - 1)}, which {other}")
    total = float(port.sum())
    if abs(total - float(reference.sum())) > divergence:
        found.append(f"the row's weights sum to {total:.3g}")
    return found
