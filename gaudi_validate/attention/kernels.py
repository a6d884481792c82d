"""What is computed within one block of query rows: torch's SDPA, or matmul, softmax, matmul.

Shapes: B batch rows, H query heads, K key/value heads, G = H / K, t query rows and s keys of one block, D head_dim.
Head h reads key/value head h // G, so [B, H, t, s] and [B, K, G * t, s] are views of each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from gaudi_validate.attention.arguments import Arguments, accumulation_dtype
from gaudi_validate.attention.index_mask import Block

# The one SDPA that hands out each row's log of the sum of exponentials. Private, so its users ask `splits` first.
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_TRIED = (2, 13)
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Block, Arguments], torch.Tensor]
_INF = float("inf")


def attend(  # noqa: PLR0917 - a block is query, key, value and mask, in every kernel
    kernel: Kernel,
    q_BHtD: torch.Tensor,
    k_BKsD: torch.Tensor,
    v_BKsD: torch.Tensor,
    block: Block,
    arguments: Arguments,
) -> torch.Tensor:
    """Return [B, H, t, D] of one block: rows that see nothing are 0, and keys that no row sees leave no trace.

    An unused cache slot may hold NaN, and 0 * NaN is NaN. Such keys are blanked out, which copies keys and values. With
    gradients that is always done, since a NaN key may show in the backward pass alone; without, only once a result is
    not finite, where the host may look at it.
    """
    allowed = block.allowed
    if allowed is None:
        return kernel(q_BHtD, k_BKsD, v_BKsD, block, arguments)
    rows = allowed.any(dim=-1, keepdim=True) if block.empty_rows else None
    if rows is not None:
        block = block._replace(allowed=allowed | ~rows)
    looks = _host_looks(q_BHtD) and not torch.is_grad_enabled()
    if block.dead_columns and not looks:
        k_BKsD, v_BKsD = blanked(k_BKsD, allowed), blanked(v_BKsD, allowed)
    out = kernel(q_BHtD, k_BKsD, v_BKsD, block, arguments)
    if block.dead_columns and looks and not bool(torch.isfinite(out).all()):
        out = kernel(q_BHtD, blanked(k_BKsD, allowed), blanked(v_BKsD, allowed), block, arguments)
    return out if rows is None else out.masked_fill(~rows, 0)


def blanked(x_BKsD: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return x with 0 at the keys that no row of ``allowed`` [B or 1, H or 1, t, s] sees."""
    seen_BHs = allowed.any(dim=2)
    if seen_BHs.shape[1] != 1:
        b, h, s = seen_BHs.shape
        seen_BHs = seen_BHs.reshape(b, x_BKsD.shape[1], h // x_BKsD.shape[1], s).any(dim=2)
    return torch.where(seen_BHs[..., None], x_BKsD, 0)


def _host_looks(tensor: torch.Tensor) -> bool:
    return tensor.device.type in {"cpu", "cuda"} and not isinstance(tensor, FakeTensor)


def matmul_kernel(
    q_BHtD: torch.Tensor, k_BKsD: torch.Tensor, v_BKsD: torch.Tensor, block: Block, arguments: Arguments
) -> torch.Tensor:
    """Return [B, H, t, D]: scores in the inputs' dtype as matmul gives them, softmax in float32 (float64 for those)."""
    b, h, t, d = q_BHtD.shape
    k, s = k_BKsD.shape[1:3]
    dtype = accumulation_dtype(q_BHtD.dtype)
    scores = torch.matmul(q_BHtD.reshape(b, k, h // k * t, d), k_BKsD.transpose(2, 3)).view(b, h, t, s)
    scores = scores.mul_(arguments.scale)
    if arguments.softcap is not None:
        scores = torch.tanh(scores.to(dtype) / arguments.softcap) * arguments.softcap
    if block.bias is not None:
        scores = scores + block.bias
    if block.allowed is not None:
        scores = scores.masked_fill_(~block.allowed, -_INF)
    # The name is given anew, so that the narrow scores are gone before softmax allocates.
    scores = scores.to(dtype)
    gate = _sink_gate(scores, arguments.sinks_H)
    weights = functional.softmax(scores, dim=-1)
    del scores
    out = torch.matmul(weights.to(v_BKsD.dtype).view(b, k, h // k * t, s), v_BKsD).view(b, h, t, -1)
    return out if gate is None else (out * gate).to(v_BKsD.dtype)


def _sink_gate(scores_BHts: torch.Tensor, sinks_H: torch.Tensor | None) -> torch.Tensor | None:
    """Return [B, H, t, 1], the share of the softmax that the keys keep beside the head's sink."""
    if sinks_H is None:
        return None
    sinks_1H11 = sinks_H.reshape(1, -1, 1, 1).to(scores_BHts.dtype)
    return torch.sigmoid(torch.logsumexp(scores_BHts, dim=-1, keepdim=True) - sinks_1H11)


def sdpa_kernel(
    q_BHtD: torch.Tensor, k_BKsD: torch.Tensor, v_BKsD: torch.Tensor, block: Block, arguments: Arguments
) -> torch.Tensor:
    """Return [B, H, t, D] by torch's SDPA. It has no softcap and no sinks."""
    mask = None if block.causal else block.allowed
    if block.bias is not None:
        mask = torch.where(mask, block.bias, -_INF) if mask is not None else block.bias
        mask = mask.to(q_BHtD.dtype)
    b, h, t, d = q_BHtD.shape
    k = k_BKsD.shape[1]
    if t > 1 or h == k:
        return functional.scaled_dot_product_attention(
            q_BHtD, k_BKsD, v_BKsD, mask, is_causal=block.causal, scale=arguments.scale, enable_gqa=h != k
        )
    # One row a head: the heads of a group become rows of one head, which all see the same keys.
    if mask is not None and mask.shape[1] != 1:
        mask = mask.reshape(mask.shape[0], k, h // k, mask.shape[-1])
    folded = functional.scaled_dot_product_attention(
        q_BHtD.reshape(b, k, h // k, d), k_BKsD, v_BKsD, mask, scale=arguments.scale
    )
    return folded.reshape(b, h, t, -1)


def splits(q_BHTD: torch.Tensor, k_BKSD: torch.Tensor, v_BKSD: torch.Tensor) -> bool:
    """Return whether :func:`split_causal` can be used on these: on a CPU, without gradients, rows contiguous.

    The kernel's sum of exponentials carries no gradient, and torch before 2.13 was not tried with GQA.
    """
    given = (q_BHTD, k_BKSD, v_BKSD)
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        return False
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    plain = all(x.device.type == "cpu" and x.stride(-1) == 1 for x in given)
    return plain and version >= _TRIED and q_BHTD.shape[-1] == v_BKSD.shape[-1] and q_BHTD.shape[2] > 1


def split_causal(
    q_BHtD: torch.Tensor, k_BKsD: torch.Tensor, v_BKsD: torch.Tensor, scale: float, out_BHtD: torch.Tensor
) -> None:
    """Write [B, H, t, D] of a block whose last row sits on the last key.

    The keys that all rows see and the square on the diagonal are two calls without a mask, joined by their shares of
    the softmax. Under a mask SDPA also computes what the mask hides: see benchmarks/README.md.
    """
    full = k_BKsD.shape[2] - q_BHtD.shape[2]
    square, square_log = _FLASH(q_BHtD, k_BKsD[:, :, full:], v_BKsD[:, :, full:], 0.0, True, scale=scale)
    if full == 0:
        out_BHtD.copy_(square)
        return
    before, before_log = _FLASH(q_BHtD, k_BKsD[:, :, :full], v_BKsD[:, :, :full], 0.0, False, scale=scale)
    # In the wide dtype: where the parts nearly cancel, a share rounded to bf16 costs 7 times naive's error in that row.
    share_BHt1 = torch.sigmoid(before_log - square_log)[..., None]
    out_BHtD.copy_(torch.lerp(square.to(share_BHt1.dtype), before.to(share_BHt1.dtype), share_BHt1))
