"""Peaks against byte counts that are derived by hand in each test. fp32 has 4 bytes an element."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gaudi_validate.core.messages import UserError
from gaudi_validate.measure.live_bytes import LiveByteCounter, LiveTensor, count

N = 1000
BYTES = 4 * N

both = pytest.mark.parametrize("fake", [False, True], ids=["real", "fake"])


@both
def test_a_chain_frees_as_it_goes(fake: bool) -> None:
    # x is before. a is freed by rebinding only once b exists: two temporaries at the peak, one kept.
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x + 1
        return x

    found = count(chain, torch.zeros(N), fake=fake)
    assert (found.before_bytes, found.above_bytes, found.peak_bytes) == (BYTES, 2 * BYTES, 3 * BYTES)
    assert (found.allocated_bytes, found.retained_bytes, found.ops) == (5 * BYTES, BYTES, 5)
    assert found.peak_op == "aten::add"
    assert found.opaque_ops == ()


@both
def test_holding_all_of_a_chain_holds_all_of_it(fake: bool) -> None:
    found = count(lambda x: [x + i for i in range(5)], torch.zeros(N), fake=fake)
    assert (found.above_bytes, found.retained_bytes) == (5 * BYTES, 5 * BYTES)


@both
def test_views_and_in_place_operations_cost_nothing(fake: bool) -> None:
    def views(x: torch.Tensor) -> torch.Tensor:
        y = x.view(10, 100).transpose(0, 1)[3:].expand(2, -1, -1)
        x.add_(1).mul_(2)
        return y.detach()

    found = count(views, torch.zeros(N), fake=fake)
    assert (found.before_bytes, found.above_bytes, found.allocated_bytes) == (BYTES, 0, 0)
    assert found.peak_op == ""


@both
def test_a_view_keeps_its_whole_base_alive(fake: bool) -> None:
    found = count(lambda x: (x + 1)[:1], torch.zeros(N), fake=fake)
    assert found.retained_bytes == BYTES


@both
def test_reshape_of_an_expanded_tensor_copies(fake: bool) -> None:
    # repeat_kv in one line: an expand is free, its reshape is groups times as large.
    found = count(lambda x: x[:, None].expand(10, 4, 100).reshape(40, 100), torch.zeros(10, 100), fake=fake)
    assert found.above_bytes == 4 * BYTES


@both
def test_resize_counts_old_and_new_while_it_copies(fake: bool) -> None:
    def grow(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(N)
        y.resize_(3 * N)
        return y

    found = count(grow, torch.zeros(1), fake=fake)
    assert (found.above_bytes, found.retained_bytes) == (4 * BYTES, 3 * BYTES)


def test_a_storage_resized_without_an_operation_is_seen() -> None:
    def shrink(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(N)
        y.untyped_storage().resize_(0)
        return torch.empty(2 * N) if y.untyped_storage().nbytes() == 0 else y

    original = torch.UntypedStorage.resize_
    found = count(shrink, torch.zeros(1))
    assert (found.above_bytes, found.retained_bytes) == (2 * BYTES, 2 * BYTES)
    assert torch.UntypedStorage.resize_ is original


def test_an_input_that_is_emptied_gives_its_bytes_back() -> None:
    # A cache that is freed before its successor is made: the peak is the successor less the cache, plus before.
    def replace(x: torch.Tensor) -> torch.Tensor:
        x.untyped_storage().resize_(0)
        return torch.empty(N + 10)

    found = count(replace, torch.zeros(N))
    assert (found.before_bytes, found.above_bytes, found.peak_bytes) == (BYTES, 40, BYTES + 40)


def test_out_variants_that_resize_their_target() -> None:
    def out(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(0)
        torch.add(x, 1, out=y)
        return y

    assert count(out, torch.zeros(N)).above_bytes == BYTES


@both
def test_saved_tensors_live_until_backward_frees_them(fake: bool) -> None:
    # Forward saves exp's result (its own y) and, for z*z, z twice over (one storage). Backward of sum expands for free.
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        z = y.sin()
        return (z * z).sum()

    x = torch.zeros(N, requires_grad=True)
    kept = count(forward, x, fake=fake)
    # y (saved by exp and sin), z (saved by mul), and z*z until the sum is there.
    assert (kept.above_bytes, kept.retained_bytes) == (3 * BYTES + 4, 2 * BYTES + 4)
    with torch.no_grad():
        bare = count(forward, x, fake=fake)
    assert (bare.above_bytes, bare.retained_bytes) == (3 * BYTES + 4, 4)


def test_backward_is_counted_and_its_gradient_stays() -> None:
    x = torch.zeros(N, requires_grad=True)
    found = count(lambda: torch.autograd.backward((x.exp() * 2).sum()))
    assert x.grad is not None
    # At the end of backward: the loss and its own gradient of one element each, exp's result (saved), the doubled
    # ones that come down to it, and the gradient of x that is made of the two.
    assert found.retained_bytes == BYTES
    assert found.above_bytes == 3 * BYTES + 8


def test_what_a_closure_holds_was_there_before() -> None:
    weight = torch.zeros(N)
    found = count(lambda x: x + weight, torch.zeros(N))
    assert (found.before_bytes, found.above_bytes) == (2 * BYTES, BYTES)


def test_the_weights_of_a_module_and_a_named_cache_are_before() -> None:
    cache = torch.zeros(7)
    found = count(torch.nn.Linear(10, 20), torch.zeros(1, 10), before=[cache])
    assert found.before_bytes == 4 * (200 + 20 + 10 + 7)
    assert found.retained_bytes == 4 * 20


def test_tensors_made_from_data_are_allocations() -> None:
    assert count(lambda: torch.tensor([1.0, 2.0])).above_bytes == 8


def test_what_dies_within_is_not_at_the_peak() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        y = x.repeat(4)
        small = y[:1].clone()
        del y
        return small + x.repeat(8)[:1]

    found = count(twice, torch.zeros(N))
    assert found.above_bytes == 8 * BYTES + 8
    assert [(t.op, t.shape, t.bytes) for t in found.peak_tensors] == [
        ("aten::repeat", (8 * N,), 8 * BYTES),
        ("before", (N,), BYTES),
        ("aten::clone", (1,), 4),
        ("aten::add", (1,), 4),
    ]


def test_the_peak_names_its_largest_tensors_and_the_timeline_its_operations() -> None:
    found = count(lambda x: (x.double() + 1).sum(), torch.zeros(N), timeline=True)
    assert found.peak_tensors[0] == LiveTensor(op="aten::_to_copy", shape=(N,), dtype="float64", bytes=8 * N)
    assert found.timeline == (("aten::_to_copy", 3 * BYTES), ("aten::add", 5 * BYTES), ("aten::sum", 3 * BYTES + 8))


@both
def test_opaque_operations_are_named(fake: bool) -> None:
    q = torch.zeros(1, 2, 8, 16)
    found = count(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True), fake=fake)
    assert found.opaque_ops == ("aten::_scaled_dot_product_flash_attention_for_cpu",)


def test_custom_operations_are_opaque() -> None:
    @torch.library.custom_op("gaudi_validate_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    found = count(doubled, torch.zeros(N))
    assert (found.opaque_ops, found.above_bytes) == (("gaudi_validate_tests::doubled",), BYTES)


def test_meta_tensors_count_full_size_shapes() -> None:
    x = torch.empty(64 * 2**30, dtype=torch.uint8, device="meta")
    found = count(lambda x: x + 1, x, fake=True)
    assert (found.before_bytes, found.above_bytes) == (64 * 2**30, 64 * 2**30)


def test_fake_tensors_of_the_caller_keep_their_mode() -> None:
    with FakeTensorMode():
        x = torch.zeros(N)
    assert count(lambda: x + 1, fake=True).above_bytes == BYTES
    assert count(lambda y: y + torch.ones(N), x, fake=True).above_bytes == 2 * BYTES


def test_reading_a_value_of_a_fake_tensor_is_one_line() -> None:
    with pytest.raises(
        UserError, match="reads a tensor's value, which fake tensors do not have; count on real"
    ) as seen:
        count(lambda x: bool(x.sum() > 0), torch.zeros(3), fake=True)
    assert "\n" not in str(seen.value)


def test_an_error_leaves_nothing_behind() -> None:
    counter = LiveByteCounter()
    enabled = gc.isenabled()

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError(str((x + 1).shape))

    x = torch.zeros(N)
    with pytest.raises(ZeroDivisionError), counter:
        fail(x)
    assert gc.isenabled() == enabled
    assert counter.report().above_bytes == BYTES


class Pair(torch.Tensor):
    """A wrapper without storage that says it is [2 N] and holds two tensors."""

    parts: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> Pair:
        size = first.numel() + second.numel()
        made: Pair = torch.Tensor._make_wrapper_subclass(cls, (size,), dtype=first.dtype)
        made.parts = (first, second)
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Pair:
        first, second = zip(*(a.parts if isinstance(a, Pair) else (a, a) for a in args), strict=True)
        return Pair(func(*first, **(kwargs or {})), func(*second, **(kwargs or {})))


@both
def test_a_wrapper_costs_what_its_parts_cost(fake: bool) -> None:
    def pairs(x: torch.Tensor) -> torch.Tensor:
        pair = Pair(x, x[:10] + 1)
        return pair + 1  # a part of N and one of 10 elements

    found = count(pairs, torch.zeros(N), fake=fake)
    assert (found.before_bytes, found.above_bytes, found.retained_bytes) == (BYTES, BYTES + 80, BYTES + 40)


def test_a_wrapper_among_the_inputs_is_before_by_its_parts() -> None:
    found = count(lambda pair: pair * 2, Pair(torch.zeros(N), torch.zeros(10)))
    assert (found.before_bytes, found.above_bytes) == (BYTES + 40, BYTES + 40)


def test_sparse_tensors_count_by_their_parts() -> None:
    x = torch.eye(10).to_sparse()
    found = count(lambda x: x, x)
    assert found.before_bytes == 10 * 4 + 2 * 10 * 8


def test_the_same_program_has_the_same_count_every_time() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    counts = {count(layer, torch.zeros(2, 5, 16)).above_bytes for _ in range(3)}
    assert len(counts) == 1
