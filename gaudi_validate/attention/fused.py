"""Fused attention: Gaudi's FusedSDPA where there is one, elsewhere the same interface over a running softmax.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from gaudi_validate.attention.arguments import Arguments, UnsupportedArgument, resolve
from gaudi_validate.attention.habana import fused_kernel
from gaudi_validate.attention.index_mask import IndexMask
from gaudi_validate.attention.masks import BlockwiseMask, mask_of
from gaudi_validate.attention.online_softmax import Plan, attend_online
from gaudi_validate.core.messages import UserError

SOFTMAX_MODES = ("None", "fast", "fp32")


def fused_attention(  # noqa: PLR0917 - transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    recompute: bool = True,
    softmax_mode: str = "None",
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return (output [B, T, H, D], None) of query [B, H, T, D], key and value [B, K, S, D].

    ``attention_mask`` as for ``hpu_sliced``. A mask that is the plain causal triangle becomes the kernel's causal flag,
    one that hides nothing no mask at all; on a real HPU any other becomes a whole tensor, since its kernel takes no
    rule. ``recompute`` and ``softmax_mode``: see :func:`fused_sdpa`. The kernel has no softcap and no sinks.
    """
    arguments = resolve("hpu_fused", module, query, kwargs, scaling=scaling, dropout=dropout)
    for name, given in (("softcap", arguments.softcap), ("s_aux", arguments.sinks_H)):
        if given is not None:
            what = f"attention implementation 'hpu_fused' does not support {name}"
            raise UnsupportedArgument(what, do="use attn_implementation='hpu_sliced'")
    kernel = fused_kernel() if query.device.type == "hpu" else None
    mask, causal = _mask_and_flag(attention_mask, arguments, query, key)
    if kernel is not None and isinstance(mask, BlockwiseMask):
        mask = mask.index_mask.dense()
    # Positional, as public ports call it: the real kernel is an autograd function, which takes no keywords.
    out_BHTD = (kernel or fused_sdpa)(
        query, key, value, mask, 0.0, causal, arguments.scale, softmax_mode, recompute, None, "left"
    )
    return out_BHTD.transpose(1, 2).contiguous(), None


def _mask_and_flag(
    attention_mask: torch.Tensor | None, arguments: Arguments, query: torch.Tensor, key: torch.Tensor
) -> tuple[torch.Tensor | None, bool]:
    if attention_mask is not None and not isinstance(attention_mask, BlockwiseMask):
        mask_of(attention_mask, arguments, query, key)  # for its errors
        return attention_mask[:, :, :, : key.shape[2]], False
    mask = mask_of(attention_mask, arguments, query, key)
    assert isinstance(mask, IndexMask)
    if mask.hides_nothing():
        return None, False
    return (None, True) if mask.is_triangle() else (BlockwiseMask(mask), False)


def fused_sdpa(  # noqa: PLR0917 - the kernel's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    softmax_mode: str = "None",
    recompute: bool | None = None,
    valid_seq_len: torch.Tensor | None = None,
    padding_side: str = "left",
) -> torch.Tensor:
    """Return [B, H, T, D] as FusedSDPA does, by blocks of keys: query [B, H, T, D], key and value [B, K, S, D].

    Args:
        query: of H heads.
        key: of K heads, where K divides H; they are not repeated.
        value: as ``key``.
        attn_mask: bool (true: seen) or additive, [B or 1, H or 1, T, S], or a ``BlockwiseMask``; not with
            ``is_causal``.
        dropout_p: 0 only.
        is_causal: query i sees keys up to i, as torch's SDPA has it: top-left.
        scale: of the scores; by default 1 / sqrt(D).
        softmax_mode: "None" and "fp32" keep exponentials in float32. "fast" rounds them, and what they are taken of, to
            the inputs' dtype, as a port's softmax in bf16 does; sums stay in float32. The same for wider inputs.
        recompute: the backward pass makes the probabilities anew instead of keeping them.
        valid_seq_len: [B], how many keys are real; the others are at the ``padding_side``.
        padding_side: "left" or "right".

    Raises:
        UserError: an argument outside of this.
    """
    _check(dropout_p, softmax_mode, padding_side, exclusive=attn_mask is not None and is_causal)
    arguments = Arguments(scale=1.0 / math.sqrt(query.shape[-1]) if scale is None else scale, causal=is_causal)
    mask = mask_of(attn_mask, arguments, query, key)
    if attn_mask is None:
        assert isinstance(mask, IndexMask)
        mask = replace(mask, start=0, padding=_valid(valid_seq_len, key.shape[2], padding_side))
    elif valid_seq_len is not None:
        raise UserError("FusedSDPA takes attn_mask or valid_seq_len", where="both were given", do="leave out one")
    fast = softmax_mode == "fast" and query.element_size() < 4
    return attend_online(
        query, key, value, Plan(mask=mask, scale=arguments.scale, fast=fast), recompute=bool(recompute)
    )


def _valid(lengths_B: torch.Tensor | None, columns: int, padding_side: str) -> torch.Tensor | None:
    if lengths_B is None:
        return None
    column_1S = torch.arange(columns, device=lengths_B.device)[None, :]
    length_B1 = lengths_B[:, None]
    return column_1S >= columns - length_B1 if padding_side == "left" else column_1S < length_B1


def _check(dropout_p: float, softmax_mode: str, padding_side: str, *, exclusive: bool) -> None:
    if dropout_p:
        raise UnsupportedArgument(
            "FusedSDPA outside of an HPU does not support dropout_p", where=repr(dropout_p), do="pass 0.0"
        )
    if softmax_mode not in SOFTMAX_MODES:
        known = ", ".join(map(repr, SOFTMAX_MODES))
        raise UserError("unknown softmax_mode of FusedSDPA", where=repr(softmax_mode), do=f"use one of {known}")
    if padding_side not in {"left", "right"}:
        raise UserError("unknown padding_side of FusedSDPA", where=repr(padding_side), do="use 'left' or 'right'")
    if exclusive:
        raise UserError(
            "FusedSDPA takes attn_mask or is_causal", where="both were given", do="put the triangle in the mask"
        )
