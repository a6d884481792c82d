"""Each planted fault must make the grid fail: a grid that passes a broken kernel says nothing of a correct one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.attention import arguments, index_mask, kernels, masks, online_softmax, sliced
from gaudi_validate.attention.index_mask import IndexMask

from .dense import GRID, Case
from .test_attention_grid import LIMIT, backward_error, forward_error, supports

if TYPE_CHECKING:
    from collections.abc import Callable

Patch = pytest.MonkeyPatch
# The smallest effect that counts as seen: far above the limit, so that rounding cannot pass for a catch.
SEEN = 1e-4


def tail_block_dropped(patch: Patch) -> None:
    original = kernels.attend

    def attend(kernel: Any, q: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = original(kernel, q, *rest)
        return out if q.shape[2] == 4 else out * 0

    patch.setattr(sliced, "attend", attend)


def causal_top_left(patch: Patch) -> None:
    original = masks.mask_of

    def mask_of(mask: Any, *rest: Any) -> Any:
        made = original(mask, *rest)
        return dataclasses.replace(made, start=0) if mask is None and isinstance(made, IndexMask) else made

    patch.setattr(sliced, "mask_of", mask_of)


def kv_tiled(patch: Patch) -> None:
    original = kernels.attend

    def attend(kernel: Any, q: torch.Tensor, k: torch.Tensor, *rest: Any) -> torch.Tensor:
        h, kv = q.shape[1], k.shape[1]
        order = torch.arange(h).reshape(h // kv, kv).T.reshape(-1)  # the heads that tiling gives to each KV head
        return original(kernel, q[:, order], k, *rest)[:, order.argsort()]

    patch.setattr(sliced, "attend", attend)


def window_off_by(shift: int) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        original = IndexMask._rule

        def rule(self: IndexMask, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            window = self.pattern.window
            if window is None:
                return original(self, q, k)
            return (k <= q) & (k > q - window - shift)

        patch.setattr(IndexMask, "_rule", rule)

    return plant


def too_many_keys_skipped(patch: Patch) -> None:
    original = IndexMask.key_range

    def key_range(self: IndexMask, first: int, last: int) -> tuple[int, int]:
        begin, end = original(self, first, last)
        return begin, max(end - 1, begin + 1)

    patch.setattr(IndexMask, "key_range", key_range)


def padding_ignored(patch: Patch) -> None:
    patch.setattr(masks, "_padding", lambda *_: None)


def offset_lost(patch: Patch) -> None:
    original = masks._query_positions

    def query_positions(kwargs: dict[str, Any]) -> tuple[int, int, torch.device]:
        rows, _, device = original(kwargs)
        return rows, 0, device

    patch.setattr(masks, "_query_positions", query_positions)


def argument_dropped(**changes: Any) -> Callable[[Patch], None]:
    def plant(patch: Patch) -> None:
        resolve = arguments.resolve
        patch.setattr(sliced, "resolve", lambda *a, **k: dataclasses.replace(resolve(*a, **k), **changes))

    return plant


def empty_rows_unguarded(patch: Patch) -> None:
    original = kernels.attend

    def attend(*args: Any) -> torch.Tensor:
        kernel, q, k, v, block, given = args
        return original(kernel, q, k, v, block._replace(empty_rows=False), given)

    patch.setattr(sliced, "attend", attend)


def minimum_for_a_mask(patch: Patch) -> None:
    """Masked scores are lowered by 20, not removed."""
    patch.setattr(kernels, "_INF", 20.0)


def shrink_forgotten(patch: Patch) -> None:
    exp = torch.exp
    patch.setattr(torch, "exp", lambda x: torch.ones_like(x) if x.shape[-1] == 1 else exp(x))


def earlier_keys_forgotten(patch: Patch) -> None:
    """The two parts of a block are not joined: only the square on the diagonal counts."""
    original = kernels.split_causal

    def split_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> None:
        t = q.shape[2]
        original(q, k[:, :, -t:], v[:, :, -t:], *rest)

    patch.setattr(sliced, "split_causal", split_causal)


SLICED = ("sliced 4", "sliced 4 matmul")
FAULTS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...]]] = {
    "tail block dropped": (tail_block_dropped, SLICED),
    "causal top-left": (causal_top_left, SLICED),
    "KV heads tiled": (kv_tiled, SLICED),
    "window + 1": (window_off_by(1), ("sliced 4", "fused 4 3")),
    "window - 1": (window_off_by(-1), ("sliced 4", "fused 4 3")),
    "one key too many skipped": (too_many_keys_skipped, ("sliced 4", "fused 4 3")),
    "padding ignored": (padding_ignored, ("sliced 4", "fused 4 3")),
    "query offset lost": (offset_lost, ("sliced 4", "fused 4 3")),
    "softcap dropped": (argument_dropped(softcap=None), SLICED),
    "sinks dropped": (argument_dropped(sinks_H=None), SLICED),
    "scale of the head_dim": (argument_dropped(scale=8**-0.5), SLICED),
    "empty rows unguarded": (empty_rows_unguarded, ("sliced 4 matmul",)),
    "masked scores lowered, not removed": (minimum_for_a_mask, ("sliced 4 matmul",)),
    "keys before the diagonal forgotten": (earlier_keys_forgotten, ("sliced 4", "sliced 1024")),
    "running sum not rescaled": (shrink_forgotten, ("fused 4 3",)),
}


def error_or_infinite(measure: Callable[[str, Case], float], variant: str, case: Case) -> float:
    try:
        return measure(variant, case)
    except AssertionError:  # NaN or another shape
        return float("inf")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_grid_sees_the_fault(fault: str, monkeypatch: Patch) -> None:
    plant, variants = FAULTS[fault]
    plant(monkeypatch)
    for variant in variants:
        errors = [error_or_infinite(forward_error, variant, case) for case in GRID if supports(variant, case)]
        assert max(errors) > SEEN, variant
        assert min(errors) <= LIMIT, f"{variant}: a fault that shows everywhere tests nothing in particular"


def test_the_grid_sees_a_wrong_gradient(monkeypatch: Patch) -> None:
    original = online_softmax._add_gradients

    def without_delta(*args: Any) -> None:
        grads, tile, grad_out, base, delta, plan = args
        original(grads, tile, grad_out, base, delta * 0, plan)

    monkeypatch.setattr(online_softmax, "_add_gradients", without_delta)
    case = Case(t=13, mask="none")
    assert forward_error("fused 4 3", case) <= LIMIT
    assert backward_error("fused 4 3", case) > SEEN


def test_nan_shows_without_the_guard(monkeypatch: Patch) -> None:
    case = Case(t=3, past=4, tail=5, mask="bool")
    q, k, v = case.inputs()
    v[:, :, 7:] = float("nan")
    monkeypatch.setattr(kernels, "blanked", lambda x, _: x)
    out = sliced.sliced_attention(torch.nn.Module(), q, k, v, case.make_mask())[0]
    assert bool(out.isnan().any())
    monkeypatch.undo()
    assert not bool(sliced.sliced_attention(torch.nn.Module(), q, k, v, case.make_mask())[0].isnan().any())


def test_reading_a_position_off_the_host_is_what_loses_the_skip(monkeypatch: Patch) -> None:
    mask = IndexMask(
        batch=1,
        rows=4,
        columns=9,
        device=torch.device("cpu"),
        pattern=index_mask.Pattern(causal=True, exact=True),
        start=torch.arange(2, 6),
    )
    assert mask.key_range(0, 2) == (0, 9)
    assert dataclasses.replace(mask, start=2).key_range(0, 2) == (0, 4)
    known, unknown = dataclasses.replace(mask, start=2).dense(), mask.dense()
    assert torch.equal(known, unknown)
