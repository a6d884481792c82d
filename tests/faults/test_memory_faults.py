from __future__ import annotations

import pytest

from gaudi_validate.attention.registry import ensure
from gaudi_validate.checks.memory import decode_allocation, mask_memory
from gaudi_validate.core.verdicts import Status
from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.faults.fault import FaultyPort
from gaudi_validate.ports.transformers_port import TransformersPort


@pytest.fixture
def sliced() -> TransformersPort:
    return TransformersPort(ensure("hpu_sliced"))


def test_repeated_kv_is_caught_by_counted_bytes(sliced: TransformersPort) -> None:
    good = decode_allocation(sliced)
    assert good.status is Status.PASS, good.reason
    bad = decode_allocation(FaultyPort(sliced, FAULTS["P69"]))
    assert bad.status is Status.FAIL
    copies = bad.measurements[0].value
    assert copies is not None
    assert copies >= 8, "64 query heads to 8 KV heads"


def test_an_integer_mask_is_caught_by_its_peak(sliced: TransformersPort) -> None:
    good = mask_memory(sliced)
    assert good.status is Status.PASS, good.reason
    bad = mask_memory(FaultyPort(sliced, FAULTS["Q75"]))
    assert bad.status is Status.FAIL
    values = {one.name: one.value for one in bad.measurements}
    assert values["mask peak bytes"] == pytest.approx(48 * 1024**3, rel=0.001), "published for batch 12, 32768 tokens"
