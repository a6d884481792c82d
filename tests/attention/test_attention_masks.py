"""Masks as rules: what transformers makes as a tensor, block by block, lazily, and in both of its versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig, masking_utils

from gaudi_validate.attention.arguments import Arguments
from gaudi_validate.attention.index_mask import IndexMask, Pattern, TensorMask
from gaudi_validate.attention.masks import BlockwiseMask, blockwise_mask, bool_mask, int_mask, mask_of
from gaudi_validate.attention.registry import ensure
from gaudi_validate.attention.unpick import index_based, pattern_of
from gaudi_validate.core.messages import UserError

from .dense import OLD, Case, positions

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 1024**3
CAUSAL = masking_utils.causal_mask_function
window_mask = masking_utils.sliding_window_causal_mask_function
PADDING = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0, 0]], dtype=torch.bool)
SEQUENCES = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1, 1]])


def chunked() -> Callable[..., Any]:
    if OLD:
        old: Any = masking_utils.chunked_causal_mask_function
        return old(4)  # type: ignore[no-any-return]
    return masking_utils.chunked_causal_mask_function(4, torch.tensor([2, 0]))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "causal": CAUSAL,
    "window": window_mask(3),
    "chunked": chunked(),
    "packed": masking_utils.and_masks(CAUSAL, masking_utils.packed_sequence_mask_function(SEQUENCES)),
    "either": masking_utils.or_masks(window_mask(2), masking_utils.packed_sequence_mask_function(SEQUENCES)),
}


def both(function: Callable[..., Any], t: int, past: int, **more: Any) -> tuple[Any, torch.Tensor]:
    """Return the mask as a rule and as transformers' tensor."""
    kwargs: dict[str, Any] = {"batch_size": 2, "kv_length": 9, "mask_function": function}
    kwargs["allow_is_causal_skip"] = False
    kwargs |= positions(t, past) | more
    whole = masking_utils.sdpa_mask(**kwargs)
    assert whole is not None
    return blockwise_mask(**kwargs), whole


@pytest.mark.parametrize("padding", [None, PADDING, PADDING[:, :6]], ids=["none", "padded", "short"])
@pytest.mark.parametrize(("t", "past"), [(9, 0), (4, 5), (1, 8), (1, 3), (3, 2)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_block_is_that_of_transformers(name: str, t: int, past: int, padding: torch.Tensor | None) -> None:
    rule, whole = both(FUNCTIONS[name], t, past, attention_mask=padding)
    assert isinstance(rule, BlockwiseMask)
    assert torch.equal(rule.index_mask.dense(), whole.expand(2, 1, t, 9))
    for first in range(0, t, 2):
        last = min(first + 2, t)
        begin, end = rule.index_mask.key_range(first, last)
        outside = whole[:, :, first:last].clone()
        outside[..., begin:end] = False
        assert not bool(outside.any()), "a key that is seen lies outside of the range"
        allowed = rule.index_mask.block(first, last, begin, end).allowed
        seen = torch.tensor(True) if allowed is None else allowed
        assert torch.equal(seen.expand(2, 1, last - first, end - begin), whole[:, :, first:last, begin:end])


@pytest.mark.skipif(OLD, reason="transformers 4.55 passes positions as a tensor always")
def test_a_query_offset_on_the_device_is_as_good() -> None:
    kwargs: dict[str, Any] = {"batch_size": 2, "kv_length": 9, "mask_function": window_mask(3)}
    kwargs["attention_mask"] = PADDING
    host, device = (blockwise_mask(**kwargs, **positions(3, 4, on_device=d)) for d in (False, True))
    assert isinstance(host, BlockwiseMask)
    assert isinstance(device, BlockwiseMask)
    assert torch.equal(host.index_mask.dense(), device.index_mask.dense())


def test_keys_are_skipped_where_transformers_own_functions_say_so() -> None:
    def ranges(function: Callable[..., Any]) -> list[tuple[int, int]]:
        rule = both(function, 8, 1)[0]
        assert isinstance(rule, BlockwiseMask)
        return [rule.index_mask.key_range(first, first + 4) for first in (0, 4)]

    assert ranges(CAUSAL) == [(0, 5), (0, 9)]
    assert ranges(window_mask(3)) == [(0, 5), (3, 9)]
    assert ranges(FUNCTIONS["packed"]) == [(0, 5), (0, 9)]
    assert ranges(FUNCTIONS["chunked"]) == [(0, 5), (0, 9)]
    assert ranges(FUNCTIONS["either"]) == [(0, 9), (0, 9)]


def test_patterns_are_exact_only_where_nothing_else_is_in_the_mask() -> None:
    assert pattern_of(CAUSAL) == Pattern(causal=True, exact=True)
    assert pattern_of(window_mask(7)) == Pattern(causal=True, window=7, exact=True)
    assert pattern_of(masking_utils.and_masks(window_mask(7), window_mask(5))) == Pattern(
        causal=True, window=5, exact=True
    )
    assert pattern_of(FUNCTIONS["packed"]) == Pattern(causal=True, exact=False)
    assert pattern_of(FUNCTIONS["either"]) == Pattern()
    assert pattern_of(lambda b, h, q, k: k <= q) == Pattern()


def test_an_unknown_function_gives_the_whole_mask_of_transformers() -> None:
    def even_keys(batch: Any, head: Any, q: Any, k: Any) -> Any:
        return (k % 2 == 0) & (k <= q)

    mixed = masking_utils.and_masks(CAUSAL, even_keys)
    assert not index_based(mixed, promised=False)
    rule, whole = both(mixed, 9, 0, **({} if OLD else {"use_vmap": True}))
    assert type(rule) is torch.Tensor
    assert torch.equal(rule, whole)


@pytest.mark.skipif(OLD, reason="use_vmap is new in transformers 5")
def test_a_function_that_transformers_calls_index_based_is_evaluated_by_block() -> None:
    rule, whole = both(lambda b, h, q, k: (k % 2 == 0) & (k <= q), 9, 0)
    assert isinstance(rule, BlockwiseMask)
    assert torch.equal(rule.index_mask.dense(), whole)
    assert rule.index_mask.key_range(0, 1) == (0, 9)


def packed_mask(attention: str, position_ids: torch.Tensor, window: int | None) -> torch.Tensor | None:
    make_config: Any = LlamaConfig
    config = make_config(sliding_window=window, attn_implementation=ensure(attention))
    make = masking_utils.create_causal_mask if window is None else masking_utils.create_sliding_window_causal_mask
    embeds = torch.zeros(2, position_ids.shape[1], 8)
    if OLD:
        old = {"input_embeds": embeds, "cache_position": torch.arange(position_ids.shape[1]), "past_key_values": None}
        return make(config=config, attention_mask=None, position_ids=position_ids, **old)  # type: ignore[no-any-return]
    new: dict[str, Any] = {"inputs_embeds": embeds, "cache": None}
    return make(config=config, attention_mask=None, position_ids=position_ids, **new)  # type: ignore[no-any-return]


@pytest.mark.parametrize("window", [None, 3])
def test_packed_sequences(window: int | None) -> None:
    rows = [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8]]
    position_ids = torch.tensor(rows)
    rule = packed_mask("hpu_sliced", position_ids, window)
    assert isinstance(rule, BlockwiseMask)
    sequence = [[sum(p == 0 for p in row[: i + 1]) for i in range(11)] for row in rows]
    for row in range(2):
        for q in range(11):
            for k in range(11):
                near = window is None or q - k < window
                seen = k <= q and near and sequence[row][q] == sequence[row][k]
                assert bool(rule.index_mask.dense()[row, 0, q, k]) is seen
    assert rule.index_mask.key_range(8, 11) == ((0, 11) if window is None else (6, 11))


def test_nothing_is_stored_until_something_else_than_a_slice_is_asked() -> None:
    with FakeTensorMode():
        huge = blockwise_mask(batch_size=12, kv_length=10**6, **positions(10**6, 0))
    assert isinstance(huge, BlockwiseMask)
    assert (huge.shape, huge.dtype, huge.ndim) == ((12, 1, 10**6, 10**6), torch.bool, 4)
    assert isinstance(huge, torch.Tensor)
    assert repr(huge) == (
        "BlockwiseMask(shape=(12, 1, 1000000, 1000000), Pattern(causal=True, window=None, exact=True))"
    )


def test_slices_are_lazy_and_right_and_all_else_is_right() -> None:
    rule, whole = both(window_mask(3), 9, 0, attention_mask=PADDING)
    for made, wanted in (
        (rule[:, :, 2:5, :], whole[:, :, 2:5, :]),
        (rule[:, :, -3:, :7], whole[:, :, -3:, :7]),
        (rule[:, :, :, 2:][:, :, 1:, 1:], whole[:, :, :, 2:][:, :, 1:, 1:]),
        (rule.detach(), whole),
        (rule.to("cpu"), whole),
    ):
        assert isinstance(made, BlockwiseMask)
        assert made.shape == wanted.shape
        assert torch.equal(made.index_mask.dense(), wanted)
    for made, wanted in (
        (~rule, ~whole),
        (rule & PADDING[:, None, None, :], whole & PADDING[:, None, None, :]),
        (rule[1], whole[1]),
        (rule[:, :, ::2], whole[:, :, ::2]),
        (rule[:, :, 4:4], whole[:, :, 4:4]),
        (torch.where(rule, 0.0, -1.0), torch.where(whole, 0.0, -1.0)),
        (rule.clone(), whole),
        (rule.to(torch.float32), whole.to(torch.float32)),
        (rule.sum(-1), whole.sum(-1)),
        (torch.cat([rule, rule], dim=-1), torch.cat([whole, whole], dim=-1)),
    ):
        assert type(made) is torch.Tensor
        assert torch.equal(made, wanted)


def test_a_slice_keeps_its_place_in_the_sequence() -> None:
    rule = both(CAUSAL, 9, 0)[0]
    assert isinstance(rule, BlockwiseMask)
    part = rule[:, :, 4:6, 3:8]
    assert isinstance(part, BlockwiseMask)
    assert part.index_mask.key_range(0, 1) == (0, 2)


def test_bidirectional_masks() -> None:
    function = getattr(masking_utils, "bidirectional_mask_function", None)
    if function is None:
        pytest.skip("transformers 4.55 has no bidirectional masks")
    kwargs = {"batch_size": 2, "kv_length": 9, "mask_function": function, "allow_is_bidirectional_skip": True}
    assert blockwise_mask(**kwargs, **positions(9, 0)) is None
    padded = blockwise_mask(**kwargs, **positions(9, 0), attention_mask=PADDING)
    assert isinstance(padded, BlockwiseMask)
    assert torch.equal(padded.index_mask.dense(), PADDING[:, None, None, :].expand(2, 1, 9, 9))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [9, 4, 1])
def test_bool_and_integer_masks_from_2d(rows: int, causal: bool, window: int | None) -> None:
    q, k = torch.arange(9 - rows, 9)[:, None], torch.arange(9)[None]
    wanted = PADDING[:, None, None, :] & ((k <= q) | (not causal)) & (k > q - (window or 99))
    made = bool_mask(PADDING, rows, causal=causal, window=window)
    assert made.dtype == torch.bool
    assert torch.equal(made, wanted)
    integers = int_mask(PADDING.long(), rows, causal=causal, window=window)
    assert integers.dtype == torch.int32
    assert torch.equal(integers, wanted.int())


def test_the_bool_mask_of_llama_70b_takes_12_gib_and_the_integer_one_48() -> None:
    """Published by optimum-habana PR #1302: batch 12 at 32768 tokens."""
    with FakeTensorMode():
        padding = torch.ones(12, 32768, dtype=torch.bool)
        small, large = bool_mask(padding, 32768), int_mask(padding, 32768)
    assert small.shape == large.shape == (12, 1, 32768, 32768)
    assert small.untyped_storage().nbytes() == 12 * GIB
    assert large.untyped_storage().nbytes() == 48 * GIB


def test_additive_masks_of_zeros_and_minima_are_bool_masks() -> None:
    q, k = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 7, 8)
    arguments = Arguments(scale=1.0, causal=True)
    seen = Case(t=3, past=4).allowed()
    for low in (torch.finfo(torch.float32).min, torch.finfo(torch.bfloat16).min, float("-inf")):
        made = mask_of(torch.where(seen, 0.0, low), arguments, q, k)
        assert isinstance(made, TensorMask)
        assert made.bias is None
        assert torch.equal(made.allowed, seen)
    biased = mask_of(torch.where(seen, 0.5, -1e9), arguments, q, k)
    assert isinstance(biased, TensorMask)
    assert biased.bias is not None
    assert bool(biased.allowed.all())


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 3, 6), (2, 1, 4, 7), (1, 3, 7)])
def test_a_mask_of_a_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    q, k = torch.zeros(2, 4, 3, 8), torch.zeros(2, 2, 7, 8)
    with pytest.raises(UserError) as error:
        mask_of(torch.ones(shape, dtype=torch.bool), Arguments(scale=1.0, causal=True), q, k)
    assert str(error.value) == (
        f"attention mask of a wrong shape: attention_mask of shape {shape} for 3 query rows and 7 keys; "
        "pass [batch, 1 or heads, rows, keys]"
    )


def test_a_whole_padded_row_is_no_reason_to_skip_a_key() -> None:
    mask = IndexMask(
        batch=2,
        rows=1,
        columns=9,
        device=torch.device("cpu"),
        pattern=Pattern(causal=True, exact=True),
        start=8,
        padding=PADDING,
    )
    block = mask.block(0, 1, *mask.key_range(0, 1))
    assert block.allowed is not None
    assert torch.equal(block.allowed[:, 0, 0], PADDING)
    assert (block.causal, block.empty_rows, block.dead_columns) == (False, True, True)
