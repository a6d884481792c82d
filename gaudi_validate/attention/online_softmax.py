"""Attention over blocks of keys with a running softmax, and its backward pass with or without stored probabilities.

The arithmetic differs from the naive one on purpose: products, softmax and sums in float32 (float64 for float64
inputs), rescaled from one key block to the next, and one rounding at the end. Method: FlashAttention (Dao et al., 2022,
https://arxiv.org/abs/2205.14135).

Shapes: B batch rows, H query heads, K key/value heads, G = H / K, T query rows, S keys, D head_dim; t rows and s keys
of one block. [B, H, t, s] and [B, K, G * t, s] are views of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from gaudi_validate.attention.arguments import accumulation_dtype
from gaudi_validate.attention.kernels import blanked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gaudi_validate.attention.index_mask import Mask

_INF = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """How one call is cut up: ``fast`` has the exponentials in the inputs' dtype, sums still in the wide one."""

    mask: Mask
    scale: float
    fast: bool = False
    q_block_size: int = 1024
    k_block_size: int = 512


class _Tile(NamedTuple):
    rows: slice
    keys: slice
    q: torch.Tensor  # [B, K, G * t, D] in the wide dtype, unscaled
    k: torch.Tensor  # [B, K, s, D]
    v: torch.Tensor
    scores: torch.Tensor  # [B, H, t, s], masked


def attend_online(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan, *, recompute: bool
) -> torch.Tensor:
    """Return [B, H, T, D] of query [B, H, T, D], key and value [B, K, S, D]; rows that see nothing are 0.

    ``recompute``: the backward pass makes the probabilities anew, block by block, from one number a row; else autograd
    keeps those of every block.
    """
    if recompute and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        out: torch.Tensor = _Recompute.apply(query, key, value, plan)  # type: ignore[no-untyped-call]
        return out
    return _forward(query, key, value, plan)[0]


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output [B, H, T, D] and each row's log of the sum of exponentials [B, H, T, 1], -inf for none."""
    outs, logs = [], []
    for first in range(0, query.shape[2], plan.q_block_size):
        rows = slice(first, min(first + plan.q_block_size, query.shape[2]))
        out, log = _block_of_rows(query, key, value, plan, rows)
        outs.append(out.to(query.dtype))
        logs.append(log)
    return torch.cat(outs, dim=2), torch.cat(logs, dim=2)


def _block_of_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan, rows: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    b, h, _, _ = query.shape
    t, k = rows.stop - rows.start, key.shape[1]
    out = torch.zeros((b, h, t, value.shape[-1]), dtype=accumulation_dtype(query.dtype), device=query.device)
    total = out.new_zeros((b, h, t, 1))
    high = out.new_full((b, h, t, 1), -_INF)
    for tile in _tiles(query, key, value, plan, rows):
        higher = torch.maximum(high, tile.scores.detach().amax(dim=-1, keepdim=True))
        base = higher.masked_fill(higher == -_INF, 0)
        weights = _exp(tile.scores - base, query.dtype, plan)
        shrink = torch.exp(high - base)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        product = torch.matmul(weights.view(b, k, h // k * t, -1), tile.v)
        out = out * shrink + product.view(b, h, t, -1)
        high = higher
    seen = total > 0
    return torch.where(seen, out / torch.where(seen, total, 1), 0), high + torch.log(total)


def _tiles(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan, rows: slice) -> Iterator[_Tile]:
    """Yield the blocks of keys that ``rows`` may see, with their scores; keys that no row sees are blanked out."""
    dtype = accumulation_dtype(query.dtype)
    b, h, _, d = query.shape
    t, k = rows.stop - rows.start, key.shape[1]
    q_BKRD = query[:, :, rows].reshape(b, k, h // k * t, d).to(dtype)
    begin, end = plan.mask.key_range(rows.start, rows.stop)
    for first in range(begin, end, plan.k_block_size):
        keys = slice(first, min(first + plan.k_block_size, end))
        block = plan.mask.block(rows.start, rows.stop, keys.start, keys.stop)
        k_BKsD, v_BKsD = key[:, :, keys].to(dtype), value[:, :, keys].to(dtype)
        if block.allowed is not None and block.dead_columns:
            k_BKsD, v_BKsD = blanked(k_BKsD, block.allowed), blanked(v_BKsD, block.allowed)
        scores = torch.matmul(q_BKRD, k_BKsD.transpose(2, 3)).view(b, h, t, -1) * plan.scale
        if block.bias is not None:
            scores = scores + block.bias.to(dtype)
        if block.allowed is not None:
            scores = scores.masked_fill(~block.allowed, -_INF)
        yield _Tile(rows, keys, q_BKRD, k_BKsD, v_BKsD, scores)


def _exp(below: torch.Tensor, dtype: torch.dtype, plan: Plan) -> torch.Tensor:
    return torch.exp(below.to(dtype)).to(below.dtype) if plan.fast else torch.exp(below)


class _Recompute(torch.autograd.Function):
    """Keeps query, key, value, output and one number a row; a mask that is added gets no gradient."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: Plan) -> torch.Tensor:
        out, log = _forward(query, key, value, plan)
        ctx.save_for_backward(query, key, value, out, log)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        query, key, value, out, log = ctx.saved_tensors
        plan: Plan = ctx.plan
        dtype = log.dtype
        grads = [torch.zeros(x.shape, dtype=dtype, device=x.device) for x in (query, key, value)]
        delta = (grad_out.to(dtype) * out.to(dtype)).sum(dim=-1, keepdim=True)
        base = log.masked_fill(log == -_INF, 0)
        for first in range(0, query.shape[2], plan.q_block_size):
            rows = slice(first, min(first + plan.q_block_size, query.shape[2]))
            for tile in _tiles(query, key, value, plan, rows):
                _add_gradients(grads, tile, grad_out, base, delta, plan)
        return grads[0].to(query.dtype), grads[1].to(key.dtype), grads[2].to(value.dtype), None


def _add_gradients(  # noqa: PLR0917 - what the backward pass of one tile needs
    grads: list[torch.Tensor],
    tile: _Tile,
    grad_out: torch.Tensor,
    base: torch.Tensor,
    delta: torch.Tensor,
    plan: Plan,
) -> None:
    b, h, t, s = tile.scores.shape
    k = tile.k.shape[1]
    folded = (b, k, h // k * t, -1)
    grad_BKRD = grad_out[:, :, tile.rows].reshape(folded).to(base.dtype)
    weights = _exp(tile.scores - base[:, :, tile.rows], grad_out.dtype, plan)
    grad_weights = torch.matmul(grad_BKRD, tile.v.transpose(2, 3)).view(b, h, t, s)
    grad_scores = (weights * (grad_weights - delta[:, :, tile.rows]) * plan.scale).view(b, k, h // k * t, s)
    grads[0][:, :, tile.rows] += torch.matmul(grad_scores, tile.k).view(b, h, t, -1)
    grads[1][:, :, tile.keys] += torch.matmul(grad_scores.transpose(2, 3), tile.q)
    grads[2][:, :, tile.keys] += torch.matmul(weights.view(b, k, h // k * t, s).transpose(2, 3), grad_BKRD)
