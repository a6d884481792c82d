"""Faults and correct variants that are planted into torch's SDPA under a name of their own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

if TYPE_CHECKING:
    from collections.abc import Callable

SDPA: Any = AttentionInterface._global_mapping["sdpa"]
_BOOL_MASK: Any = AttentionMaskInterface._global_mapping["sdpa"]


def register(name: str, function: Callable[..., Any]) -> str:
    """Register ``function`` under ``name`` with a bool mask that is always there."""

    def mask(*args: Any, **kwargs: Any) -> Any:
        return _BOOL_MASK(*args, **{**kwargs, "allow_is_causal_skip": False})

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask)
    return name


def wrong_scale(factor: float) -> str:
    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **kwargs: Any) -> Any:
        return SDPA(module, query, key, value, mask, scaling=scaling * factor, **kwargs)

    return register(f"planted-scale-{factor}", attention)


def nan_in_layer_2() -> str:
    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        output, weights = SDPA(module, query, key, value, mask, **kwargs)
        if module.layer_idx == 2:
            output = output.clone()
            output[1, -1, 3, 5] = torch.nan
        return output, weights

    return register("planted-nan", attention)


def drops_a_key() -> str:
    """Each query but the first ones loses the key before the last, in layer 1 alone."""

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        if module.layer_idx == 1 and key.shape[2] > 2:
            mask = mask.clone()
            mask[..., -1, -2] = False
        return SDPA(module, query, key, value, mask, **kwargs)

    return register("planted-dropped-key", attention)


def key_blocked(block: int = 4) -> str:
    """An online softmax over blocks of keys in fp32, probabilities rounded to the inputs' dtype: correct."""

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **kwargs: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        best = torch.full((*query.shape[:-1], 1), -1e30)
        total, output = torch.zeros_like(best), torch.zeros(query.shape)
        for start in range(0, key.shape[2], block):
            part = slice(start, start + block)
            scores = (query @ key[:, :, part].transpose(-1, -2)).float() * scaling
            scores = scores.masked_fill(~mask[..., part], -math.inf)
            new = torch.maximum(best, scores.amax(-1, keepdim=True))
            weight = (scores - new).exp()
            fade = (best - new).exp()
            total = total * fade + weight.sum(-1, keepdim=True)
            output = output * fade + (weight.to(value.dtype) @ value[:, :, part]).float()
            best = new
        return (output / total.clamp(min=1e-30)).to(query.dtype).transpose(1, 2).contiguous(), None

    return register("correct-key-blocked", attention)
