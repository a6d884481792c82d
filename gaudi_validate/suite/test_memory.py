"""Does the port save the memory that it is there to save? Counted in live bytes, on fake tensors of full size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gaudi_validate.fixture_objects import MemoryGate

pytestmark = pytest.mark.memory


def test_prefill_scales(memory_gate: MemoryGate, saving_attention: str | None) -> None:
    """One layer of an 8B model's attention at S = 2048, 4096, 8192: ratio to naive, and growth with length."""
    memory_gate.scaling(
        port=saving_attention, lengths=(2048, 4096, 8192), heads=32, kv_heads=8, head_dim=128, declared_ratio=1 / 6
    )


def test_mask_is_bool(memory_gate: MemoryGate, saving_attention: str | None) -> None:
    """The mask of Llama-3.1-70B at batch 12 and 32768 tokens, which as integers ends in out of memory."""
    memory_gate.mask(port=saving_attention, batch=12, length=32768)


def test_decode_repeats_no_keys(memory_gate: MemoryGate, saving_attention: str | None) -> None:
    """A decode step with 64 query heads on 8 key heads copies no cache."""
    memory_gate.decode(port=saving_attention, heads=64, kv_heads=8, head_dim=128, length=2048)
