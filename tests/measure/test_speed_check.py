"""The speed checks: what they run and say. No test here asserts a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch

from gaudi_validate.attention.naive import repeat_kv
from gaudi_validate.checks import speed
from gaudi_validate.checks.memory import as_port
from gaudi_validate.core.verdicts import Status
from gaudi_validate.measure.attention_call import AttentionShape
from gaudi_validate.measure.live_bytes import count

TINY = AttentionShape(length=8, heads=4, kv_heads=2, head_dim=8, dtype=torch.float32)
JUDGED = {Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_MEASURED}


def _call(shape: AttentionShape, *, repeat: bool = False, port: str = "hpu_sliced") -> Any:
    with ExitStack() as stack:
        return speed._call(stack, as_port(port), shape, None, repeat=repeat)


def test_both_sides_compute_the_same() -> None:
    shape = AttentionShape(length=1, kv_length=40, heads=8, kv_heads=2, head_dim=16, dtype=torch.float64)
    outs = [_call(shape), _call(shape, repeat=True), _call(shape, port="naive")]
    values = [out() for out in outs]
    torch.testing.assert_close(values[1], values[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values[2], values[0], rtol=1e-12, atol=1e-12)


def test_only_the_repeating_side_writes_keys_and_values_out() -> None:
    shape = AttentionShape(length=1, kv_length=256, heads=8, kv_heads=2, head_dim=16, dtype=torch.float32)
    cache = 2 * 2 * 256 * 16 * 4
    more = count(_call(shape, repeat=True)).allocated_bytes - count(_call(shape)).allocated_bytes
    assert more == 4 * cache


def test_evidence_names_the_machine_and_what_it_does_not_say() -> None:
    evidence = speed.paired_speed("hpu_sliced[q_block_size=4]", TINY, required=0.001, repetitions=5)
    assert evidence.status in JUDGED
    assert (evidence.check, evidence.port, evidence.dtype) == (
        "attention speed",
        "hpu_sliced[q_block_size=4]",
        "float32",
    )
    assert evidence.details[0] == "compared with naive"
    assert evidence.details[1] == (f"processor time of one thread on {speed.machine()}: it says nothing about a Gaudi")
    samples = [line for line in evidence.details if line.startswith(("before, ns", "after, ns"))]
    assert [line.count(",") for line in samples] == [5, 5]


def test_an_impossible_requirement_never_passes() -> None:
    evidence = speed.paired_speed("naive", TINY, required=1000.0, repetitions=5)
    assert evidence.status in {Status.FAIL, Status.NOT_MEASURED}


def test_too_few_repetitions_are_not_measured() -> None:
    evidence = speed.paired_speed("naive", TINY, repetitions=4)
    assert evidence.status is Status.NOT_MEASURED


def test_threads_are_as_before() -> None:
    threads = torch.get_num_threads()
    with speed._one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("case", "ratio", "said"),
    [
        ("70b-tp4-128", 1.18, "1.18x published for the whole model"),
        ("70b-tp4-512", 2.04, "2.04x published for the whole model"),
        ("70b-tp4-1024", 2.23, "2.23x published for the whole model"),
        ("70b-tp8-1024", None, "no gain published"),
        ("7b-1024", None, "no gain published"),
    ],
)
def test_the_published_ratio_stands_beside_the_measured_one(case: str, ratio: float | None, said: str) -> None:
    published = speed.GQA_CASES[case]
    assert published.ratio == ratio or published.ratio == pytest.approx(ratio, abs=0.01)
    small = speed.GqaCase(name=case, batch=1, heads=4, kv_heads=2, keys=32, ratio=published.ratio)
    evidence = speed.decode_gqa_speed("hpu_sliced", small, repetitions=5)
    assert evidence.reason.endswith(f"; {said}")
    assert evidence.details[0] == f"{case}: {said} (optimum-habana PR #626)"
    assert evidence.measurements[-1].value == published.ratio
    assert evidence.measurements[-1].limit is None


@pytest.mark.parametrize(("heads", "kv_heads", "repeats"), [(4, 2, True), (4, 1, False), (4, 4, False)])
def test_keys_are_repeated_only_where_the_source_does(
    heads: int, kv_heads: int, repeats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []

    def watched(x: torch.Tensor, n: int) -> torch.Tensor:
        groups.append(n)
        return repeat_kv(x, n)

    monkeypatch.setattr(speed, "repeat_kv", watched)
    case = speed.GqaCase(name="small", batch=1, heads=heads, kv_heads=kv_heads, keys=32, ratio=None)
    speed.decode_gqa_speed("hpu_sliced", case, repetitions=5)
    assert set(groups) == ({heads // kv_heads} if repeats else set())


def out_of_memory(*_: Any, **__: Any) -> Any:
    """Ask for more than there is."""
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes")


def broken(*_: Any, **__: Any) -> Any:
    """Raise what is no lack of memory."""
    raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_running_out_of_memory_is_an_outcome() -> None:
    evidence = speed.paired_speed(f"{__name__}:out_of_memory", TINY)
    assert (evidence.status, evidence.reason) == (Status.FAIL, "out of memory")


def test_any_other_error_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        speed.paired_speed(f"{__name__}:broken", TINY)
