"""The memory checks on correct implementations, on planted faults, and on functions that break in known ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.attention.masks import blockwise_mask, bool_mask, int_mask
from gaudi_validate.attention.naive import naive_attention, repeat_kv
from gaudi_validate.attention.sliced import sliced_attention
from gaudi_validate.checks.memory import as_port, decode_allocation, mask_memory, memory_scaling
from gaudi_validate.core.verdicts import Status
from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.faults.fault import FaultyPort
from gaudi_validate.measure.live_bytes import count

if TYPE_CHECKING:
    from gaudi_validate.core.evidence import Evidence

GIB = 2**30
SMALL: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 16, "lengths": (2048, 4096, 8192)}
Result = tuple[torch.Tensor, torch.Tensor | None]


def values_repeated(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """Half of P69: only the values are repeated."""
    value = repeat_kv(value, query.shape[1] // key.shape[1])[:, :: query.shape[1] // key.shape[1]]
    return sliced_attention(module, query, key, value, mask, **kwargs)


def cache_in_fp32(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """P74: keys and values are upcast at each step."""
    out, _ = sliced_attention(module, query.float(), key.float(), value.float(), mask, **kwargs)
    return out.to(query.dtype), None


def keys_cloned(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """P74: the keys are cloned at each step."""
    return sliced_attention(module, query, key.clone(), value, mask, **kwargs)


def additive_within(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """Q75 in the attention function: the bool mask is made additive as a whole."""
    zero = torch.zeros((), dtype=query.dtype)
    additive = torch.where(bool_mask(torch.ones(query.shape[0], key.shape[2]), query.shape[2]), zero, -1e30)
    return sliced_attention(module, query, key, value, additive, **kwargs)


def naive_when_long(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """Fall back to the whole score matrix above some length, without a word."""
    if query.shape[2] > 2048:
        return naive_attention(module, query, key, value, None, **kwargs)
    return sliced_attention(module, query, key, value, mask, **kwargs)


def out_of_memory(*_: Any, **__: Any) -> Result:
    """Ask for more than there is."""
    raise torch.OutOfMemoryError("HPU out of memory")


def broken(*_: Any, **__: Any) -> Result:
    """Raise."""
    raise IndexError("tuple index out of range")


def reads_values(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Result:
    """Decide by a tensor's value, which fake tensors do not have."""
    if bool(query.sum() > 0):
        key = key * 1
    return sliced_attention(module, query, key, value, mask, **kwargs)


# The mask function of all of these: see attention.registry.ensure.
mask_function = blockwise_mask


def _user(function: Any) -> str:
    return f"{__name__}:{function.__name__}"


def _value(evidence: Evidence, name: str) -> float:
    (found,) = [m.value for m in evidence.measurements if m.name == name]
    assert found is not None
    return found


def test_the_sliced_path_at_full_size() -> None:
    evidence = memory_scaling("hpu_sliced")
    assert evidence.status is Status.PASS
    assert evidence.scenario == "batch 1, 32/8 heads, head_dim 128, length 8192, bfloat16, left padding"
    bound = "hpu_sliced[block_kernel=matmul]"
    assert _value(evidence, f"peak over naive ({bound})") <= 1 / 6
    assert _value(evidence, f"memory slope ({bound})") <= 1.2
    assert _value(evidence, "naive memory slope") >= 1.8
    # 32 heads of bf16 scores (2), their fp32 copy and its softmax (4 + 4), and the additive bf16 mask (2): by hand.
    pairs = 8192**2 * (32 * (2 + 4 + 4) + 2)
    assert _value(evidence, f"naive peak ({bound})") - pairs == 2 * 8192 * 32 * 128 * 2  # and K and V, repeated
    assert (
        "hpu_sliced: workspace inside aten::_scaled_dot_product_flash_attention_for_cpu is not counted"
        in evidence.details
    )
    assert not [line for line in evidence.details if line.startswith(bound) and "is not counted" in line]


@pytest.mark.parametrize("spec", ["hpu_sliced", "hpu_sliced[q_block_size=256]", "hpu_sliced[q_block_size=1000]"])
@pytest.mark.parametrize("padded", [False, True])
def test_correct_paths_pass(spec: str, padded: bool) -> None:
    assert memory_scaling(spec, **SMALL, padded=padded, declared_ratio=0.5).status is Status.PASS


@pytest.mark.parametrize("spec", ["naive", "sdpa"])
def test_fake_and_real_counts_agree(spec: str) -> None:
    # Of implementations that decide nothing by values: those may do less on real tensors.
    small = {**SMALL, "lengths": (64, 128, 256)}
    fake, real = (memory_scaling(spec, **small, fake=fake) for fake in (True, False))
    assert fake.measurements == real.measurements
    assert fake.details == real.details


def test_naive_fails_its_own_gate() -> None:
    evidence = memory_scaling("naive", **SMALL)
    assert evidence.status is Status.FAIL
    assert _value(evidence, "bytes a query and key (naive)") == 8 * 10 + 2
    assert evidence.reason.startswith("naive: peak 5.13 GiB is 1 of naive's 5.13 GiB, 0.1667 allowed; peak grows as ")


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [(additive_within, "bytes a query and key", 2.0), (naive_when_long, "memory slope", 2.0)],
)
def test_growth_is_found(function: Any, name: str, value: float) -> None:
    spec = _user(function)
    evidence = memory_scaling(spec, **SMALL, declared_ratio=1)
    assert evidence.status is Status.FAIL
    assert _value(evidence, f"{name} ({spec})") > value * 0.99


def test_lengths_too_short_to_tell_are_inconclusive() -> None:
    evidence = memory_scaling(
        "hpu_sliced[q_block_size=4]", heads=2, kv_heads=2, head_dim=256, lengths=(8, 16, 32), declared_ratio=9
    )
    assert evidence.status is Status.INCONCLUSIVE
    assert "take longer lengths" in evidence.reason


@pytest.mark.parametrize(("fault", "times"), [("P69", 4)])
def test_repeated_keys_in_decoding_are_found(fault: str, times: int) -> None:
    port = FaultyPort(as_port("hpu_sliced"), FAULTS[fault])
    evidence = decode_allocation(port, heads=16, kv_heads=4, head_dim=16, length=256)
    assert evidence.status is Status.FAIL
    assert (
        f"a decoding step without padding copies the KV cache of 64.00 KiB {times} times, 0 allowed" in evidence.reason
    )


@pytest.mark.parametrize("spec", ["hpu_sliced", "hpu_sliced[block_kernel=matmul]", "hpu_sliced[q_block_size=8]"])
def test_grouped_decoding_copies_nothing(spec: str) -> None:
    evidence = decode_allocation(spec, heads=16, kv_heads=4, head_dim=16, length=256)
    assert evidence.status is Status.PASS
    assert _value(evidence, "KV cache copies (without padding)") == 0
    assert _value(evidence, "KV cache copies (with padding)") == 0


def test_the_stand_in_of_the_fused_kernel_widens_blocks_only() -> None:
    assert memory_scaling("hpu_fused", **SMALL, declared_ratio=0.5).status is Status.PASS
    right = decode_allocation("hpu_fused", fake=True)
    assert right.status is Status.PASS
    assert _value(right, "KV cache copies alive at once (with padding)") == 0
    wrong = decode_allocation(FaultyPort(as_port("hpu_fused"), FAULTS["P69"]), fake=True)
    assert wrong.status is Status.FAIL
    assert _value(wrong, "KV cache copies alive at once (without padding)") >= 8


def test_repeat_kv_of_naive_at_the_reported_shape() -> None:
    # P69: 64 heads on 8, 2048 keys. x129 peak was reported; 8 copies of keys and of values is what it comes from.
    evidence = decode_allocation("naive", heads=64, kv_heads=8, head_dim=128, length=2048, fake=True)
    assert _value(evidence, "KV cache copies (without padding)") == 8
    sliced = decode_allocation("hpu_sliced[block_kernel=matmul]", heads=64, kv_heads=8, head_dim=128, length=2048)
    assert _value(evidence, "peak (without padding)") > 50 * _value(sliced, "peak (without padding)")


@pytest.mark.parametrize(("function", "copies"), [(values_repeated, 2.0), (cache_in_fp32, 2.0), (keys_cloned, 0.5)])
def test_copies_of_the_cache_are_counted_exactly(function: Any, copies: float) -> None:
    evidence = decode_allocation(_user(function), heads=16, kv_heads=4, head_dim=16, length=256)
    assert evidence.status is Status.FAIL
    assert _value(evidence, "KV cache copies (without padding)") == copies


def test_an_integer_mask_is_found() -> None:
    port = FaultyPort(as_port("hpu_sliced"), FAULTS["Q75"])
    evidence = mask_memory(port)
    assert evidence.status is Status.FAIL
    assert _value(evidence, "mask peak") >= 4
    assert memory_scaling(port, **SMALL, declared_ratio=1).status is Status.FAIL


def test_the_memory_saving_mask_is_no_tensor() -> None:
    evidence = mask_memory("hpu_sliced")
    assert evidence.status is Status.PASS
    assert _value(evidence, "mask bytes") == 12 * 32768  # the padding, as bool


def test_a_bool_mask_passes_and_an_additive_one_fails() -> None:
    assert mask_memory("sdpa").status is Status.PASS
    additive = mask_memory("naive")
    assert additive.status is Status.FAIL
    assert (_value(additive, "mask"), _value(additive, "mask bytes")) == (2.0, 24 * GIB)


def test_the_masks_of_the_published_case() -> None:
    # optimum-habana PR #1302: [12, 1, 32768, 32768] takes 48 GB in 32-bit integers and 12 GB as bool.
    padding = torch.ones(12, 32768, dtype=torch.int64, device="meta")
    assert count(bool_mask, padding, 32768, fake=True).retained_bytes == 12 * GIB
    assert count(int_mask, padding, 32768, fake=True).retained_bytes == 48 * GIB


def test_running_out_of_memory_is_an_outcome() -> None:
    evidence = memory_scaling(_user(out_of_memory), **SMALL)
    assert evidence.status is Status.FAIL
    assert evidence.reason == ("out of memory at batch 1, 8/2 heads, head_dim 16, length 2048, bfloat16, left padding")


def test_what_an_implementation_raises_is_its_failure() -> None:
    evidence = decode_allocation(_user(broken), heads=4, kv_heads=2, head_dim=8, length=16)
    assert evidence.status is Status.FAIL
    assert "raised IndexError: tuple index out of range at batch 1, 4/2 heads" in evidence.reason


def test_reading_values_cannot_be_counted_on_fake_tensors_and_says_so() -> None:
    evidence = memory_scaling(_user(reads_values), **SMALL)
    assert evidence.status is Status.NOT_MEASURED
    assert "reads a tensor's value" in evidence.reason
    small = {**SMALL, "lengths": (1024, 1536, 2048), "heads": 2}
    assert memory_scaling(_user(reads_values), **small, fake=False, declared_ratio=1).status is Status.PASS
