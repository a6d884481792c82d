"""Masks of the memory-saving implementations: one that is only a rule, and 4-D bool ones from 2-D padding masks.

Shapes: B batch rows, H query heads, T query rows, S keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only
from transformers import masking_utils

from gaudi_validate.attention.index_mask import IndexMask, Mask, Pattern, TensorMask, readable
from gaudi_validate.attention.unpick import index_based, pattern_of
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gaudi_validate.attention.arguments import Arguments


class BlockwiseMask(torch.Tensor):
    """A bool tensor [B, 1, T, S] without storage: ``index_mask`` is all that it is.

    A tensor, because transformers sends 4-D masks through the model's forward (static caches in ``generate``) and looks
    at their type and shape. Slicing rows and columns stays lazy; any other operation makes the whole mask first, which
    is right but takes B * T * S bytes.
    """

    index_mask: IndexMask

    @staticmethod
    def __new__(cls, index_mask: IndexMask) -> BlockwiseMask:
        """Return the tensor that stands for ``index_mask``."""
        shape = (index_mask.batch, 1, index_mask.rows, index_mask.columns)
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=index_mask.device)
        made.index_mask = index_mask
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[Any, Any] | None = None
    ) -> Any:
        lazy = _lazily(func, args, kwargs or {})
        if lazy is not None:
            return lazy
        args, kwargs = tree_map_only(BlockwiseMask, lambda mask: mask.index_mask.dense(), (args, kwargs or {}))
        return func(*args, **kwargs)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"BlockwiseMask(shape={tuple(self.shape)}, {self.index_mask.pattern})"


_SAME = frozenset({torch.ops.aten.alias.default, torch.ops.aten.detach.default})
_ROWS, _COLUMNS = 2, 3


def _lazily(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> BlockwiseMask | None:
    """Return the result of ``func`` as a rule again, where it is one."""
    if not args or not isinstance(args[0], BlockwiseMask) or kwargs:
        return None
    if func in _SAME:
        return BlockwiseMask(args[0].index_mask)
    return _sliced(args[0], *args[1:]) if func is torch.ops.aten.slice.Tensor else None


def _sliced(
    mask: BlockwiseMask, dim: int = 0, begin: int | None = None, end: int | None = None, step: int = 1
) -> BlockwiseMask | None:
    index, size = mask.index_mask, mask.shape[dim]
    begin, end, _ = slice(begin, end).indices(size)
    if step != 1 or end <= begin:
        return None
    if dim % 4 == _ROWS:
        return BlockwiseMask(index.window_of(begin, end, 0, index.columns))
    if dim % 4 == _COLUMNS:
        return BlockwiseMask(index.window_of(0, index.rows, begin, end))
    return BlockwiseMask(index) if end - begin == size else None


def blockwise_mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask function of ``hpu_sliced`` and ``hpu_fused``: what transformers' ``sdpa_mask`` makes, as a rule.

    Takes the arguments of transformers 4.55 (``cache_position`` [T]) and of 5.x (``q_length``, ``q_offset``). A
    ``mask_function`` that cannot be evaluated on a block alone (see :func:`index_based`) gives the whole tensor, as
    transformers makes it; bidirectional attention without padding gives ``None`` where transformers allows that.
    """
    if not index_based(mask_function, promised=kwargs.get("use_vmap") is False):
        return masking_utils.sdpa_mask(
            batch_size=batch_size,
            kv_length=kv_length,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **{**kwargs, "allow_is_causal_skip": False},
        )
    rows, start, device = _query_positions(kwargs)
    padding = _padding(attention_mask, kv_offset, kv_length)
    pattern = pattern_of(mask_function)
    if kwargs.get("allow_is_bidirectional_skip") and padding is None and pattern == Pattern(exact=True):
        return None
    return BlockwiseMask(
        IndexMask(
            batch=batch_size,
            rows=rows,
            columns=kv_length,
            device=device,
            pattern=pattern,
            start=start,
            key_start=kv_offset,
            padding=padding,
            rule=mask_function,
        )
    )


def _query_positions(kwargs: dict[str, Any]) -> tuple[int, int | torch.Tensor, torch.device]:
    """Return T, the position of row 0 (or of all rows, where the host may not read it) and the device."""
    if "cache_position" in kwargs:
        positions = kwargs["cache_position"]
        return positions.shape[0], _first_of_run(positions), positions.device
    rows, offset, device = kwargs["q_length"], kwargs.get("q_offset", 0), torch.device(kwargs.get("device", "cpu"))
    if not isinstance(offset, torch.Tensor):
        return rows, int(offset), device
    if readable(offset):
        return rows, int(offset), device
    return rows, torch.arange(rows, device=device) + offset, device


def _first_of_run(positions_T: torch.Tensor) -> int | torch.Tensor:
    if not readable(positions_T) or not bool((positions_T.diff() == 1).all()):
        return positions_T
    return int(positions_T[0])


def _padding(mask_2d: torch.Tensor | None, kv_offset: int, kv_length: int) -> torch.Tensor | None:
    """Return bool [B, S] of the keys at hand, keys past the end of ``mask_2d`` unseen; ``None`` if all are real."""
    if mask_2d is None:
        return None
    missing = kv_offset + kv_length - mask_2d.shape[-1]
    if missing > 0:
        mask_2d = torch.nn.functional.pad(mask_2d, (0, missing))
    seen_BS = mask_2d[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    return None if readable(seen_BS) and bool(seen_BS.all()) else seen_BS


def mask_of(
    attention_mask: torch.Tensor | None, arguments: Arguments, query_BHTD: torch.Tensor, key_BKSD: torch.Tensor
) -> Mask:
    """Return the mask of a call in the form that the block loops use.

    ``None`` becomes the causal (or, where ``arguments`` says so, bidirectional) rule with the last row on the last key;
    a tensor [B or 1, H or 1, T or 1, S or more] is taken as it is, bool or additive.

    Raises:
        UserError: the tensor has another shape.
    """
    t, s = query_BHTD.shape[2], key_BKSD.shape[2]
    if attention_mask is None:
        pattern = Pattern(causal=arguments.causal, window=arguments.window, exact=True)
        b, device = query_BHTD.shape[0], query_BHTD.device
        return IndexMask(batch=b, rows=t, columns=s, device=device, pattern=pattern, start=s - t)
    _check_shape(attention_mask, t, s)
    if isinstance(attention_mask, BlockwiseMask):
        mask = attention_mask.index_mask
        return mask if mask.columns == s else mask.window_of(0, t, 0, s)
    mask_BHTS = attention_mask[:, :, :, :s].expand(-1, -1, t, s)
    if mask_BHTS.dtype == torch.bool:
        return TensorMask(allowed=mask_BHTS)
    return _additive(mask_BHTS)


def _check_shape(mask: torch.Tensor, t: int, s: int) -> None:
    if mask.ndim == 4 and mask.shape[2] in {1, t} and mask.shape[3] >= s:
        return
    where = f"attention_mask of shape {tuple(mask.shape)} for {t} query rows and {s} keys"
    raise UserError("attention mask of a wrong shape", where=where, do="pass [batch, 1 or heads, rows, keys]")


def _additive(mask_BHTS: torch.Tensor) -> TensorMask:
    # Half of the minimum: a mask may have been cast from a narrower dtype, or be the sum of two.
    allowed_BHTS = mask_BHTS > torch.finfo(mask_BHTS.dtype).min / 2
    if readable(mask_BHTS) and bool(((mask_BHTS == 0) | ~allowed_BHTS).all()):
        return TensorMask(allowed=allowed_BHTS)
    return TensorMask(allowed=allowed_BHTS, bias=mask_BHTS)


def bool_mask(mask_2d: torch.Tensor, rows: int, *, causal: bool = True, window: int | None = None) -> torch.Tensor:
    """Return bool [B, 1, T, S], true where a query sees a key, of the padding mask [B, S]; T = ``rows``.

    Views of the padding mask and of one [T, S] triangle, and one fill: B * T * S bytes, and T * S besides. This is how
    optimum-habana PR #1302 fits batch 12 at 32768 tokens where 32-bit integers do not. The last row sits on the last
    key.
    """
    b, s = mask_2d.shape
    seen_BTS = mask_2d.to(torch.bool)[:, None, :].expand(b, rows, s).clone()
    for hidden_TS in _hidden(rows, s, causal, window, mask_2d.device):
        seen_BTS.masked_fill_(hidden_TS, False)
    return seen_BTS[:, None]


def int_mask(mask_2d: torch.Tensor, rows: int, *, causal: bool = True, window: int | None = None) -> torch.Tensor:
    """Return what :func:`bool_mask` does as int32: 4 * B * T * S bytes. Kept only to compare its memory."""
    b, s = mask_2d.shape
    seen_BTS = mask_2d.to(torch.int32)[:, None, :].expand(b, rows, s).clone()
    for hidden_TS in _hidden(rows, s, causal, window, mask_2d.device):
        seen_BTS.masked_fill_(hidden_TS, 0)
    return seen_BTS[:, None]


def _hidden(t: int, s: int, causal: bool, window: int | None, device: torch.device) -> list[torch.Tensor]:
    q_T1 = torch.arange(s - t, s, device=device)[:, None]
    k_1S = torch.arange(s, device=device)[None, :]
    hidden = [k_1S > q_T1] if causal else []
    return hidden if window is None else [*hidden, k_1S <= q_T1 - window]
