"""Memory-saving attention: query rows are sliced inside the loop, and each block sees only the keys that it may.

Neither the scores nor the mask of more than one block exist at a time, keys are never repeated, and the last block is
short, not padded. Origin: optimum-habana PR #903.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim; t rows and s keys of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.attention.arguments import Arguments, UnsupportedArgument, resolve
from gaudi_validate.attention.index_mask import IndexMask
from gaudi_validate.attention.kernels import Kernel, attend, matmul_kernel, sdpa_kernel, split_causal, splits
from gaudi_validate.attention.masks import mask_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gaudi_validate.attention.index_mask import Mask

Q_BLOCK_SIZE = 1024
# Under a mask SDPA computes the keys that it hides, and shorter blocks hide fewer: see benchmarks/README.md.
SDPA_ROWS = 256
KERNELS: dict[str, Kernel] = {"sdpa": sdpa_kernel, "matmul": matmul_kernel}
_SDPA_DEVICES = frozenset({"cpu", "cuda"})


def sliced_attention(  # noqa: PLR0917 - transformers' signature
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    q_block_size: int = Q_BLOCK_SIZE,
    block_kernel: str = "auto",
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Return (output [B, T, H, D], None) of query [B, H, T, D], key and value [B, K, S, D].

    ``attention_mask``: a :class:`~gaudi_validate.attention.masks.BlockwiseMask`, a bool or additive tensor
    [B or 1, H or 1, T, S or more], or ``None`` for causal, aligned bottom-right, unless ``is_causal`` (argument, else
    the module's) is false. Rows that see nothing are 0.

    ``q_block_size``: most query rows at a time. ``block_kernel``: "matmul" is matmul, softmax in float32, matmul: what
    an HPU runs and what counts of memory mean. "sdpa" is torch's SDPA, whose workspace no count sees; it has no
    softcap and no sinks. "auto" is "sdpa" on CPU and CUDA where it can, else "matmul".
    """
    arguments = resolve("hpu_sliced", module, query, kwargs, scaling=scaling, dropout=dropout)
    mask = mask_of(attention_mask, arguments, query, key)
    kernel = _kernel(block_kernel, query, arguments)
    rows = q_block_size
    if kernel is sdpa_kernel:
        if isinstance(mask, IndexMask) and mask.causal_only() and splits(query, key, value):
            return _split(query, key, value, mask, arguments.scale, rows), None
        rows = min(rows, SDPA_ROWS)
    blocks = _blocks(kernel, query, key, value, mask, arguments, rows)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return torch.cat([out_BHtD.transpose(1, 2) for _, out_BHtD in blocks], dim=1), None
    b, h, t, _ = query.shape
    out_BTHD = query.new_empty((b, t, h, value.shape[-1]))
    for first, out_BHtD in blocks:
        out_BTHD[:, first : first + rows] = out_BHtD.transpose(1, 2)
    return out_BTHD, None


def _split(  # noqa: PLR0917 - a block is query, key, value and mask, in every kernel
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: IndexMask, scale: float, rows: int
) -> torch.Tensor:
    """Return [B, T, H, D] of plain causal attention, no block with a mask."""
    b, h, t, d = query.shape
    out_BTHD = query.new_empty((b, t, h, d))
    for first in range(0, t, rows):
        last = min(first + rows, t)
        end = mask.key_range(first, last)[1]
        out_BHtD = out_BTHD[:, first:last].transpose(1, 2)
        split_causal(query[:, :, first:last], key[:, :, :end], value[:, :, :end], scale, out_BHtD)
    return out_BTHD


def _blocks(  # noqa: PLR0917 - a block is query, key, value and mask, in every kernel
    kernel: Kernel,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: Mask,
    arguments: Arguments,
    rows: int,
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first row, output [B, H, t, D]) of every block."""
    t = query.shape[2]
    for first in range(0, t, rows):
        last = min(first + rows, t)
        begin, end = mask.key_range(first, last)
        block = mask.block(first, last, begin, end)
        q_BHtD, k_BKsD, v_BKsD = query[:, :, first:last], key[:, :, begin:end], value[:, :, begin:end]
        yield first, attend(kernel, q_BHtD, k_BKsD, v_BKsD, block, arguments)


def _kernel(name: str, query: torch.Tensor, arguments: Arguments) -> Kernel:
    beyond = [n for n, x in (("softcap", arguments.softcap), ("s_aux", arguments.sinks_H)) if x is not None]
    if name == "auto":
        return sdpa_kernel if query.device.type in _SDPA_DEVICES and not beyond else matmul_kernel
    if name == "sdpa" and beyond:
        what = f"attention implementation 'hpu_sliced' does not support {beyond[0]} with block_kernel='sdpa'"
        raise UnsupportedArgument(what, do="use block_kernel='auto' or 'matmul'")
    return KERNELS[name]
