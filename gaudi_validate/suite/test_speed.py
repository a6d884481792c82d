"""Is the fast path fast? A paired ratio in one run; on a CPU it shows that work is avoided, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gaudi_validate.fixture_objects import PerfGate

pytestmark = [pytest.mark.speed, pytest.mark.slow]

# What a path that saves half of a causal prefill's work, and does not store scores, must reach over naive.
REQUIRED = {"hpu_sliced": 3.0}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_prefill_beats_naive(perf_gate: PerfGate, timed_attention: str | None, dtype: str) -> None:
    """S = 2048, 16 query heads on 4 key heads."""
    import torch

    from gaudi_validate.measure.attention_call import AttentionShape

    shape = AttentionShape(length=2048, heads=16, kv_heads=4, head_dim=128, dtype=getattr(torch, dtype))
    perf_gate.faster_than_naive(shape, port=timed_attention, required=REQUIRED.get(timed_attention or ""))


def test_decode_without_repeated_keys(perf_gate: PerfGate, timed_attention: str | None) -> None:
    """Llama-2-70B on four cards, 1024 + 1024 tokens: the published gain stands beside the measured one."""
    perf_gate.decode("70b-tp4-1024", port=timed_attention)
