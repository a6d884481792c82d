"""What each implementation allocates: no [B, 1, T, S] tensor in hpu_sliced, and a peak far below naive's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from gaudi_validate.attention.arguments import Arguments
from gaudi_validate.attention.fused import fused_attention
from gaudi_validate.attention.index_mask import Block
from gaudi_validate.attention.kernels import matmul_kernel, sdpa_kernel
from gaudi_validate.attention.naive import naive_attention
from gaudi_validate.attention.sliced import sliced_attention
from gaudi_validate.measure import live_bytes

from .dense import Case

if TYPE_CHECKING:
    from collections.abc import Callable


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the largest number of elements over the last two dimensions of anything that an operation returned."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(out)[0]:
            if isinstance(tensor, torch.Tensor) and tensor.ndim >= 2:
                self.elements = max(self.elements, tensor.shape[-1] * tensor.shape[-2])
        return out


def largest(function: Callable[..., Any], case: Case, **options: Any) -> int:
    q, k, v = case.inputs()
    mask = case.make_mask()
    seen = Largest()
    with torch.no_grad(), seen:
        function(torch.nn.Module(), q, k, v, mask, **case.kwargs(), **options)
    return seen.elements


@pytest.mark.parametrize("mask", ["none", "rule"])
@pytest.mark.parametrize("kernel", ["sdpa", "matmul"])
def test_no_tensor_of_all_rows_and_all_keys_exists(kernel: str, mask: str) -> None:
    """4 rows a block, in groups of 2 heads: at most 8 of 64 rows with all 64 keys, or all rows of head_dim 8."""
    for padding in ((0, 0), (9, 0)) if mask == "rule" else ((0, 0),):
        case = Case(t=64, padding=padding, mask=mask)
        assert largest(sliced_attention, case, q_block_size=4, block_kernel=kernel) <= 8 * 64
        assert largest(naive_attention, case) >= 64 * 64


def test_a_window_bounds_the_keys_of_a_block() -> None:
    case = Case(t=64, window=5, mask="rule")
    assert largest(sliced_attention, case, q_block_size=4, block_kernel="matmul") <= 64 * 8  # the inputs themselves
    spans: list[int] = []

    def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: Block, arguments: Any) -> torch.Tensor:
        spans.append(k.shape[2])
        return matmul_kernel(q, k, v, block, arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sliced_attention.__globals__["KERNELS"], "matmul", spy)
        sliced_attention(torch.nn.Module(), *case.inputs(), case.make_mask(), q_block_size=4, block_kernel="matmul")
    assert spans == [4, *[8] * 15]


def above(function: Callable[..., Any], q: tuple[int, ...], k: tuple[int, ...], **options: Any) -> int:
    """Return the bytes above the inputs' own at the peak of one call in bf16, on fake tensors."""
    query, key, value = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (q, k, k))
    with torch.no_grad():
        counted = live_bytes.count(function, torch.nn.Module(), query, key, value, None, fake=True, **options)
    return counted.above_bytes


def peak(function: Callable[..., Any], s: int, **options: Any) -> int:
    return above(function, (1, 32, s, 128), (1, 8, s, 128), **options)


def test_peak_memory_is_at_most_a_sixth_of_naive_and_grows_linearly() -> None:
    naive, at_8k = peak(naive_attention, 8192), peak(sliced_attention, 8192, block_kernel="matmul")
    assert at_8k * 6 <= naive
    assert peak(fused_attention, 8192) * 6 <= naive
    assert peak(sliced_attention, 16384, block_kernel="matmul") <= 2.2 * at_8k
    assert peak(naive_attention, 16384) >= 3.8 * naive


def test_keys_are_never_repeated() -> None:
    """In decode a repeated key is the largest tensor there is: 16 heads of 4096 keys, where the cache holds 2."""
    shapes = (8, 16, 1, 128), (8, 2, 4096, 128)
    keys = 8 * 2 * 4096 * 128 * 2
    assert above(naive_attention, *shapes) >= 16 * keys
    assert above(sliced_attention, *shapes, block_kernel="sdpa") < keys / 8
    assert above(sliced_attention, *shapes, block_kernel="matmul") < keys / 3


@pytest.mark.parametrize("kernel", [sdpa_kernel, matmul_kernel])
def test_kernels_take_views_of_keys(kernel: Callable[..., Any]) -> None:
    q, k, v = Case(t=3, past=2, mask="none").inputs()
    wide = [torch.cat([x, x * float("nan")], dim=-1)[..., :8] for x in (q, k, v)]
    arguments = Arguments(scale=0.5, causal=True)
    assert torch.allclose(kernel(q, k, v, Block(), arguments), kernel(*wide, Block(), arguments), rtol=0, atol=1e-14)
