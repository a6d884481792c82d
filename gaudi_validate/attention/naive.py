"""Naive attention: the whole score matrix, keys repeated for every query head, a mask that is added.

The baseline for numbers and memory. In float32, bfloat16 and float16 it is bitwise what ``eager_attention_forward`` of
transformers' Llama computes; in float64 it keeps the softmax in float64, where eager goes down to float32.

Shapes: B batch rows, H query heads, K key/value heads, G = H / K, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from gaudi_validate.attention.arguments import Arguments, accumulation_dtype, resolve

_ALLOWS = frozenset({"dropout", "output_attentions"})


def naive_attention(  # noqa: PLR0917 - transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (output [B, T, H, D], weights [B, H, T, S]) of query [B, H, T, D], key and value [B, K, S, D].

    ``attention_mask``: additive or bool [B or 1, H or 1, T, S or more]; ``None`` means causal, aligned bottom-right,
    unless ``is_causal`` (argument, else the module's) is false.
    """
    arguments = resolve("naive", module, query, kwargs, scaling=scaling, dropout=dropout, allows=_ALLOWS)
    key_BHSD = repeat_kv(key, query.shape[1] // key.shape[1])
    value_BHSD = repeat_kv(value, query.shape[1] // value.shape[1])
    scores_BHTS = torch.matmul(query, key_BHSD.transpose(2, 3)) * arguments.scale
    if arguments.softcap is not None:
        scores_BHTS = torch.tanh(scores_BHTS / arguments.softcap) * arguments.softcap
    mask = additive_mask(attention_mask, arguments, scores_BHTS)
    if mask is not None:
        scores_BHTS = scores_BHTS + mask
    weights_BHTS = _softmax(scores_BHTS, arguments.sinks_H).to(query.dtype)
    weights_BHTS = functional.dropout(weights_BHTS, p=dropout, training=module.training)
    out_BHTD = torch.matmul(weights_BHTS, value_BHSD)
    return out_BHTD.transpose(1, 2).contiguous(), weights_BHTS


def repeat_kv(x_BKSD: torch.Tensor, groups: int) -> torch.Tensor:
    """Return x with each head ``groups`` times in a row: [B, K * groups, S, D], a copy unless groups is 1."""
    if groups == 1:
        return x_BKSD
    b, k, s, d = x_BKSD.shape
    return x_BKSD[:, :, None].expand(b, k, groups, s, d).reshape(b, k * groups, s, d)


def additive_mask(
    attention_mask: torch.Tensor | None, arguments: Arguments, scores_BHTS: torch.Tensor
) -> torch.Tensor | None:
    """Return the mask to add to the scores, in their dtype: 0 where a key is seen, the dtype's minimum elsewhere."""
    t, s = scores_BHTS.shape[-2:]
    if attention_mask is None:
        if not arguments.causal and arguments.window is None:
            return None
        attention_mask = index_mask(t, s, arguments, scores_BHTS.device)[None, None]
    mask = attention_mask[:, :, :, :s]
    if mask.dtype != torch.bool:
        return mask
    zero = torch.zeros((), device=mask.device, dtype=scores_BHTS.dtype)
    return torch.where(mask, zero, torch.finfo(scores_BHTS.dtype).min)


def index_mask(t: int, s: int, arguments: Arguments, device: torch.device) -> torch.Tensor:
    """Return bool [T, S], true where a query row sees a key; the last row sits on the last key."""
    q_T1 = torch.arange(s - t, s, device=device)[:, None]
    k_1S = torch.arange(s, device=device)[None, :]
    seen_TS = k_1S <= q_T1 if arguments.causal else (k_1S >= 0).expand(t, s)
    return seen_TS if arguments.window is None else seen_TS & (k_1S > q_T1 - arguments.window)


def _softmax(scores_BHTS: torch.Tensor, sinks_H: torch.Tensor | None) -> torch.Tensor:
    dtype = accumulation_dtype(scores_BHTS.dtype)
    if sinks_H is None:
        return functional.softmax(scores_BHTS, dim=-1, dtype=dtype)
    b, h, t, _ = scores_BHTS.shape
    sinks_BHT1 = sinks_H.reshape(1, -1, 1, 1).expand(b, h, t, 1).to(scores_BHTS.dtype)
    logits = torch.cat([scores_BHTS, sinks_BHT1], dim=-1)
    return functional.softmax(logits, dim=-1, dtype=dtype)[..., :-1]
