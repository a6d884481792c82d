"""What transformers hands to an attention function, sorted: used, harmless, or rejected by name.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from gaudi_validate.core.messages import UserError


class UnsupportedArgument(UserError, ValueError):
    """An argument that would change the numbers and that the implementation does not support."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arguments:
    """What changes the numbers of one call besides query, key, value and mask.

    ``causal`` and ``window`` describe the call only where no mask is given: a mask already contains them. A query
    sees itself and the ``window - 1`` keys before it. Rows are aligned bottom-right: the last query sits on the last
    key. ``sinks_H``: one more logit a head that takes part in the softmax and carries no value.
    """

    scale: float
    causal: bool
    window: int | None = None
    softcap: float | None = None
    sinks_H: torch.Tensor | None = None


# Passed along by transformers' modules; they change nothing that is not in the mask, the query or the key already.
HARMLESS = frozenset(
    {
        "cache_position",
        "deterministic",
        "encoder_hidden_states",
        "input_ids",
        "inputs_embeds",
        "labels",
        "logits_to_keep",
        "mm_token_type_ids",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "padding_mask",
        "past_key_value",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "shift_labels",
        "token_type_ids",
        "use_cache",
    }
)
_USED = frozenset({"is_causal", "sliding_window", "softcap", "s_aux"})
_EAGER = "use attn_implementation='eager'"
_POSITIONS = "pass position_ids that restart at each packed sequence, without a cache and without an attention_mask"
# Each changes the numbers of an implementation that knows it. The alternative is the end of the message.
REJECTED = {
    "block_indices": _EAGER,
    "block_table": "use transformers' own paged attention",
    "cu_seq_lens_k": _POSITIONS,
    "cu_seq_lens_q": _POSITIONS,
    "head_mask": _EAGER,
    "indices": _EAGER,
    "max_length_k": _POSITIONS,
    "max_length_q": _POSITIONS,
    "output_attentions": "use attn_implementation='naive' or 'eager', which keep the weights",
    "position_bias": "use attn_implementation='eager', or add it to a 4-D additive attention_mask",
    "sinks": "pass one sink a head as s_aux",
}


def resolve(
    name: str,
    module: torch.nn.Module,
    query_BHTD: torch.Tensor,
    kwargs: dict[str, Any],
    *,
    scaling: float | None,
    dropout: float,
    allows: frozenset[str] = frozenset(),
) -> Arguments:
    """Return what changes the numbers of a call of the implementation ``name``.

    ``allows``: names out of :data:`REJECTED`, or "dropout", that this implementation supports.

    Raises:
        UnsupportedArgument: dropout, a kwarg of :data:`REJECTED` that is set, or an unknown kwarg that holds tensors
            or a float: those may change the numbers, and nobody would see that they were dropped.
    """
    if dropout and "dropout" not in allows:
        raise _rejected(name, "dropout", dropout, "set attention_dropout=0.0, or use attn_implementation='naive'")
    for key, value in kwargs.items():
        if value is None or value is False or key in _USED or key in HARMLESS or key in allows:
            continue
        if key in REJECTED:
            raise _rejected(name, key, value, REJECTED[key])
        if _may_change_numbers(value):
            raise _rejected(name, key, value, "leave it out, or use attn_implementation='eager' if that knows it")
    causal = kwargs.get("is_causal")
    return Arguments(
        scale=scaling if scaling is not None else 1.0 / math.sqrt(query_BHTD.shape[-1]),
        causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
        window=kwargs.get("sliding_window"),
        softcap=kwargs.get("softcap"),
        sinks_H=kwargs.get("s_aux"),
    )


def _may_change_numbers(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_may_change_numbers(one) for one in value)
    return isinstance(value, (torch.Tensor, float))


def _rejected(name: str, key: str, value: object, instead: str) -> UnsupportedArgument:
    shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
    return UnsupportedArgument(f"attention implementation {name!r} does not support {key}", where=shown, do=instead)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that scores, softmax and sums have for inputs of ``dtype``: never less than float32."""
    return torch.float64 if dtype is torch.float64 else torch.float32
