"""Plants in the mask function: whatever function the port registered, called with other arguments.

transformers calls it by keyword; 4.55 says ``cache_position`` where 5.x says ``q_length`` and ``q_offset``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers.masking_utils import and_masks, causal_mask_function, or_masks

from gaudi_validate.faults.attention import BLOCK

if TYPE_CHECKING:
    from gaudi_validate.faults.soil import MaskFunction


def queries(kwargs: dict[str, Any]) -> tuple[int, int]:
    """Return the number of query rows and the position of the first."""
    if "cache_position" in kwargs:
        return len(kwargs["cache_position"]), int(kwargs["cache_position"][0])
    return int(kwargs["q_length"]), int(kwargs.get("q_offset", 0))


def padding_forgotten(original: MaskFunction) -> MaskFunction:
    """A1: a prefill is computed as causal without a mask, so padding on the left is attended to."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        rows, offset = queries(kwargs)
        return original(**{**kwargs, "attention_mask": None} if offset == 0 and rows > 1 else kwargs)

    return mask


def unused_slots_seen(original: MaskFunction) -> MaskFunction:
    """A3: slots of a static cache beyond the current length are not masked."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        seen = sum(queries(kwargs))
        return original(**_visible_from(seen, kwargs))

    return mask


def triangle_at_top_left(original: MaskFunction) -> MaskFunction:
    """A4: the causal triangle starts at the first key, whatever the number of cached keys."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        moved = {"q_offset": 0} if "q_length" in kwargs else {}
        if "cache_position" in kwargs:
            moved["cache_position"] = kwargs["cache_position"] - kwargs["cache_position"][0]
        return original(**{**kwargs, **moved, "allow_is_causal_skip": False})

    return mask


def window_one_short(original: MaskFunction) -> MaskFunction:
    """C16: each row sees one key fewer than its window holds."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        window = getattr(kwargs["config"], "sliding_window", None)
        if window is None or kwargs.get("local_size") is None:
            return original(**kwargs)

        def near(_b: Any, _h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < window - 1

        return original(**_with(kwargs, and_masks(kwargs["mask_function"], near)))

    return mask


def window_forgotten(original: MaskFunction) -> MaskFunction:
    """C17: sliding layers get the mask of full ones."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        return original(**{**_with(kwargs, causal_mask_function), "local_size": None})

    return mask


def window_on_the_others(original: MaskFunction) -> MaskFunction:
    """C18: full layers get the window, and sliding ones do not."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        window = getattr(kwargs["config"], "sliding_window", None)
        if window is None or kwargs.get("local_size") is not None:
            return original(**{**_with(kwargs, causal_mask_function), "local_size": None})

        def near(_b: Any, _h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return q_idx - kv_idx < window

        return original(**_with(kwargs, and_masks(kwargs["mask_function"], near)))

    return mask


def key_padding_seen(original: MaskFunction) -> MaskFunction:
    """K57: the mask covers keys up to the next block, and lets every row see those that are not there."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        keys = int(kwargs["kv_length"])
        kwargs = _visible_from(keys + int(kwargs.get("kv_offset", 0)), kwargs, more=-keys % BLOCK)
        return original(**{**kwargs, "kv_length": keys + -keys % BLOCK})

    return mask


def integer_mask(original: MaskFunction) -> MaskFunction:
    """Q75: the mask is computed in 32-bit integers, which live as long as the bool one made of them."""

    def mask(**kwargs: Any) -> torch.Tensor | None:
        made: Any = original(**kwargs)
        if made is None:
            return None
        shape = (int(kwargs["batch_size"]), 1, queries(kwargs)[0], int(kwargs["kv_length"]))
        device = kwargs["cache_position"].device if "cache_position" in kwargs else kwargs.get("device", "cpu")
        made.integers = torch.ones(shape, dtype=torch.int32, device=device)
        return made  # type: ignore[no-any-return]

    return mask


def _with(kwargs: dict[str, Any], function: Any) -> dict[str, Any]:
    return {**kwargs, "mask_function": function, "allow_is_causal_skip": False}


def _visible_from(first: int, kwargs: dict[str, Any], *, more: int = 0) -> dict[str, Any]:
    """Let every row see the keys from ``first`` on, which padding hides from the 2-D mask as well."""

    def beyond(_b: Any, _h: Any, _q: Any, kv_idx: Any) -> Any:
        return kv_idx >= first

    changed = _with(kwargs, or_masks(kwargs["mask_function"], beyond))
    padding = kwargs.get("attention_mask")
    if padding is not None:
        length = int(kwargs["kv_length"]) + int(kwargs.get("kv_offset", 0)) + more
        changed["attention_mask"] = torch.nn.functional.pad(padding, (0, length - padding.shape[-1]), value=True)
    return changed
