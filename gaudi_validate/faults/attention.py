"""Plants in the attention function: whatever function the port registered, wrapped.

Shapes: B batch, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.checks.capture import Call
from gaudi_validate.checks.weights import probabilities
from gaudi_validate.faults.soil import attribute

if TYPE_CHECKING:
    from gaudi_validate.checks.capture import AttentionFunction, AttentionResult

BLOCK = 8


def tiled_heads(original: AttentionFunction) -> AttentionFunction:
    """G43: query head h reads KV head h % K, as tiled KV heads do, where it should read h // (H / K)."""

    def attention(
        module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, *rest: Any, **kwargs: Any
    ) -> AttentionResult:
        order = torch.arange(query.shape[1], device=query.device)
        order = order[torch.argsort(order % key.shape[1], stable=True)]
        output_BTHD, weights = original(module, query[:, order], key, *rest, **kwargs)
        return output_BTHD[:, :, torch.argsort(order)], weights

    return attention


def scaled_twice(original: AttentionFunction) -> AttentionFunction:
    """H47: the query comes scaled and is scaled again."""

    def attention(module: torch.nn.Module, query: torch.Tensor, *rest: Any, **kwargs: Any) -> AttentionResult:
        usual: float = query.shape[-1] ** -0.5
        return original(module, query * (kwargs.get("scaling") or usual), *rest, **kwargs)

    return attention


def scaled_by_head_dim(original: AttentionFunction) -> AttentionFunction:
    """H47: head_dim^-0.5, where the config names a scale of its own."""

    def attention(module: torch.nn.Module, query: torch.Tensor, *rest: Any, **kwargs: Any) -> AttentionResult:
        return original(module, query, *rest, **{**kwargs, "scaling": query.shape[-1] ** -0.5})

    return attention


def bf16_softmax(original: AttentionFunction) -> AttentionFunction:
    """I48: the weights go through bf16, as where exp and sum are computed in it."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> AttentionResult:
        call = Call(
            index=0, layer=None, module=module, query=query, key=key, value=value, mask=attention_mask, kwargs=kwargs
        )
        weights_BHTS = probabilities(original, call).to(torch.bfloat16).to(query.dtype)
        value_BHSD = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
        return (weights_BHTS @ value_BHSD).transpose(1, 2), None

    return attention


def without(argument: str) -> Any:
    """I51, C17: the attention function is not told ``argument`` (softcap, sliding_window)."""

    def make(original: AttentionFunction) -> AttentionFunction:
        def attention(*args: Any, **kwargs: Any) -> AttentionResult:
            return original(*args, **{**kwargs, argument: None} if argument in kwargs else kwargs)

        return attention

    return make


def tail_left_zero(original: AttentionFunction) -> AttentionFunction:
    """K56: query rows are taken in blocks, and the last, partial block is never written."""

    def attention(module: torch.nn.Module, query: torch.Tensor, *rest: Any, **kwargs: Any) -> AttentionResult:
        output_BTHD, weights = original(module, query, *rest, **kwargs)
        rows = query.shape[2]
        if rows > BLOCK and rows % BLOCK:
            output_BTHD = output_BTHD.clone()
            output_BTHD[:, rows - rows % BLOCK :] = 0
        return output_BTHD, weights

    return attention


def empty_rows_are_nan(original: AttentionFunction) -> AttentionFunction:
    """A7: rows that see no key are filled with -inf and normalised without a guard.

    A plain product of weights and values then carries their NaN on, through keys of weight 0.
    """

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> AttentionResult:
        output_BTHD, weights = original(module, query, key, value, attention_mask, **kwargs)
        nothing_BKD = (value * 0).sum(dim=2)
        output_BTHD = output_BTHD + nothing_BKD.repeat_interleave(query.shape[1] // key.shape[1], dim=1)[:, None]
        if attention_mask is None:
            return output_BTHD, weights
        additive = attention_mask.is_floating_point()
        seen_BHTS = attention_mask > torch.finfo(attention_mask.dtype).min / 2 if additive else attention_mask
        empty_BTH1 = (~seen_BHTS.any(dim=-1, keepdim=True)).transpose(1, 2)
        return output_BTHD.masked_fill(empty_BTH1, torch.nan), weights

    return attention


def strides_ignored(original: AttentionFunction) -> AttentionFunction:
    """K58: values are read as if their memory were contiguous."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **kwargs: Any,
    ) -> AttentionResult:
        contiguous = torch.empty(value.shape, device="meta").stride()
        return original(module, query, key, value.as_strided(value.shape, contiguous), *rest, **kwargs)

    return attention


def padded_keys(original: AttentionFunction) -> AttentionFunction:
    """K57: keys and values get zeros up to the next block; the mask function's plant leaves these unmasked."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **kwargs: Any,
    ) -> AttentionResult:
        more = (0, 0, 0, -key.shape[2] % BLOCK)
        padded = (torch.nn.functional.pad(tensor, more) for tensor in (key, value))
        return original(module, query, *padded, *rest, **kwargs)

    return attention


def repeated_kv(original: AttentionFunction) -> AttentionFunction:
    """P69: keys and values are repeated for every query head and written out; no number changes."""

    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **kwargs: Any,
    ) -> AttentionResult:
        groups = query.shape[1] // key.shape[1]
        repeated = [tensor.repeat_interleave(groups, dim=1) for tensor in (key, value)]
        if not hasattr(module, "num_key_value_groups"):
            return original(module, query, *repeated, *rest, **kwargs)
        with attribute(module, "num_key_value_groups", 1):
            return original(module, query, *repeated, *rest, **kwargs)

    return attention
