from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from gaudi_validate.checks.reference import Reference, ReferenceStore, reference_key
from gaudi_validate.scenarios.inputs import make
from gaudi_validate.scenarios.matrix import BY_ID

if TYPE_CHECKING:
    from pathlib import Path

    from gaudi_validate.scenarios.data import Scenario

CPU = torch.device("cpu")


class Counted:
    """Computes the same result each time, and counts how often."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Reference:
        self.times += 1
        return Reference(logits=torch.arange(12, dtype=torch.float64).reshape(3, 4), attention_calls=8)


def test_computed_once_then_memory_then_disk(tmp_path: Path) -> None:
    compute, store = Counted(), ReferenceStore(tmp_path)
    sources = [store.get("k", compute)[1], store.get("k", compute)[1]]
    found, source = ReferenceStore(tmp_path).get("k", compute)
    assert [*sources, source] == ["computed", "kept from earlier in this session", "read from the cache"]
    assert compute.times == 1
    assert found.attention_calls == 8
    assert torch.equal(found.logits, compute().logits)
    assert [path.name for path in tmp_path.iterdir()] == ["k.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "not safetensors"])
def test_a_corrupt_entry_is_said_and_replaced(tmp_path: Path, damage: str) -> None:
    compute = Counted()
    ReferenceStore(tmp_path).get("k", compute)
    path = tmp_path / "k.safetensors"
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    path.write_bytes({"cut": whole[:-9], "empty": b"", "flipped": flipped, "not safetensors": b"x" * 99}[damage])
    found, source = ReferenceStore(tmp_path).get("k", compute)
    assert source.startswith("computed again, the cache entry k.safetensors was corrupt (")
    assert compute.times == 2
    assert float(found.logits[2, 3]) == 11.0
    assert ReferenceStore(tmp_path).get("k", compute)[1] == "read from the cache"


def test_a_failed_computation_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Reference:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        ReferenceStore(tmp_path).get("k", fail)
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_entries_go_when_the_disk_limit_is_reached(tmp_path: Path) -> None:
    compute = Counted()
    size = 0
    for name in ("a", "b", "c"):
        ReferenceStore(tmp_path, disk_bytes=2 * size or 10**6).get(name, compute)
        size = (tmp_path / f"{name}.safetensors").stat().st_size
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["b", "c"]


def test_memory_is_bounded(tmp_path: Path) -> None:
    compute, store = Counted(), ReferenceStore(tmp_path, memory_bytes=100)
    store.get("a", compute)
    store.get("b", compute)
    assert store.get("a", compute)[1] == "read from the cache"


def test_the_key_changes_with_all_that_a_reference_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make(BY_ID["left-mixed"], 260)
    other_ids = make(replace(BY_ID["left-mixed"], seed=1), 260)
    base = reference_key("f", inputs, dtype=torch.float64, device=CPU)
    assert reference_key("f", make(BY_ID["left-mixed"], 260), dtype=torch.float64, device=CPU) == base
    keys = {
        base,
        reference_key("g", inputs, dtype=torch.float64, device=CPU),
        reference_key("f", other_ids, dtype=torch.float64, device=CPU),
        reference_key("f", inputs, dtype=torch.float32, device=CPU),
        reference_key("f", inputs, dtype=torch.float64, device=torch.device("cuda")),
        reference_key("f", make(BY_ID["static-tail"], 260), dtype=torch.float64, device=CPU),
    }
    monkeypatch.setattr("gaudi_validate.core.versions.installed", lambda _: {"torch": "0"})
    keys.add(reference_key("f", inputs, dtype=torch.float64, device=CPU))
    assert len(keys) == 7


def test_the_key_tells_one_call_from_two_and_one_cache_length_from_another() -> None:
    def key(scenario: Scenario) -> str:
        return reference_key("f", make(scenario, 260), dtype=torch.float64, device=CPU)

    tail, single = BY_ID["static-tail"], BY_ID["single"]
    assert key(tail) != key(replace(tail, cache_length=64))
    assert key(single) != key(replace(single, calls=2))
