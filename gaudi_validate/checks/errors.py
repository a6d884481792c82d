"""Row errors and the two figures made of them, G and W.

Shapes: N rows, each already reduced over its last dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gaudi_validate.checks.budgets import Format


@dataclass(frozen=True, slots=True)
class Judged:
    """G and W of one result, the flat index of the row with the worst W, and values NaN or infinite where they may not.

    With any of the latter, G and W are infinite and the row is the first that has one.
    """

    g: float
    w: float
    row: int
    pattern: int


def judge(port: torch.Tensor, naive: torch.Tensor, truth: torch.Tensor, fmt: Format) -> Judged:
    """Judge ``port`` by the error that ``naive`` makes on the same inputs, in the same format.

    All are [..., D]: a row is what lies along the last dimension. Row error e = RMS(x - truth), floor
    u = 2^-bits RMS(truth), and never under half the gap between subnormals. G = RMS(e_port) / max(RMS(e_naive),
    RMS(u)), W = the worst row's e_port / max(e_naive, u). Where ``port`` is NaN or infinite, naive or the truth must be
    so in the same way; where only naive is, the port is the better one. Rows with any such value take no part in G
    and W.
    """
    port, naive, truth = _rows(port), _rows(naive), _rows(truth)
    wrong = _differs(port, naive) & _differs(port, truth)
    if bool(wrong.any()):
        row = int(wrong.any(-1).to(torch.uint8).argmax())
        return Judged(g=torch.inf, w=torch.inf, row=row, pattern=int(wrong.sum()))
    usable = (port + naive + truth).isfinite().all(-1)
    if not bool(usable.any()):
        return Judged(g=0.0, w=0.0, row=0, pattern=0)
    e_port, e_naive = _error(port, truth)[usable], _error(naive, truth)[usable]
    floor = (_rms(truth) * 2.0**-fmt.bits).clamp(min=fmt.quantum / 2)[usable]
    g = _ratio(_rms(e_port), torch.maximum(_rms(e_naive), _rms(floor)))
    per_row = _ratio(e_port, torch.maximum(e_naive, floor))
    worst = int(per_row.argmax())
    return Judged(g=float(g), w=float(per_row[worst]), row=int(usable.nonzero()[worst]), pattern=0)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(device="cpu", dtype=torch.float64).flatten(end_dim=-2)


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().mean(-1).sqrt()


def _error(tensor: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    return _rms(tensor - truth)


def _ratio(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """0 / 0 is no error."""
    return torch.where(error == 0, 0.0, error / allowed)


def _differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where exactly one of the two is finite, or both are not and in different ways."""
    both_finite = one.isfinite() & other.isfinite()
    same = (one == other) | (one.isnan() & other.isnan())
    return ~(both_finite | same)
