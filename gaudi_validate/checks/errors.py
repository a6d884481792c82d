"""Row errors and the two figures made of them, G and W.

Shapes: N rows, each already reduced over its last dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gaudi_validate.checks.budgets import Format


_SLICE_VALUES = 1 << 22


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
    port, naive, truth = (one.detach().flatten(end_dim=-2) for one in (port, naive, truth))
    parts = [_errors(*part) for part in zip(*(_slices(one) for one in (port, naive, truth)), strict=True)]
    if not parts:
        return Judged(g=0.0, w=0.0, row=0, pattern=0)
    e_port, e_naive, rms, wrong = (torch.cat(column) for column in zip(*parts, strict=True))
    if bool(wrong.any()):
        return Judged(g=torch.inf, w=torch.inf, row=int((wrong > 0).to(torch.uint8).argmax()), pattern=int(wrong.sum()))
    usable = (e_port + e_naive + rms).isfinite()
    if not bool(usable.any()):
        return Judged(g=0.0, w=0.0, row=0, pattern=0)
    e_port, e_naive = e_port[usable], e_naive[usable]
    floor = (rms[usable] * 2.0**-fmt.bits).clamp(min=fmt.quantum / 2)
    g = _ratio(_rms(e_port), torch.maximum(_rms(e_naive), _rms(floor)))
    per_row = _ratio(e_port, torch.maximum(e_naive, floor))
    worst = int(per_row.argmax())
    return Judged(g=float(g), w=float(per_row[worst]), row=int(usable.nonzero()[worst]), pattern=0)


def _slices(rows: torch.Tensor) -> list[torch.Tensor]:
    """Cut [N, D] into slices of rows that are small in fp64: logits have a large D."""
    count = max(1, _SLICE_VALUES // max(1, rows.shape[-1]))
    return list(torch.split(rows, count)) if rows.shape[0] else []


def _errors(port: torch.Tensor, naive: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return e of port and of naive, RMS of the truth, and the number of wrong NaN or infinities, each [N]."""
    port, naive, truth = (one.to(device="cpu", dtype=torch.float64) for one in (port, naive, truth))
    wrong = (_differs(port, naive) & _differs(port, truth)).sum(-1)
    return _rms(port - truth), _rms(naive - truth), _rms(truth), wrong


def _rms(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.square().mean(-1).sqrt()


def _ratio(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """0 / 0 is no error."""
    return torch.where(error == 0, 0.0, error / allowed)


def _differs(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where exactly one of the two is finite, or both are not and in different ways."""
    both_finite = one.isfinite() & other.isfinite()
    same = (one == other) | (one.isnan() & other.isnan())
    return ~(both_finite | same)
