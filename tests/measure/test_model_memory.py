"""Peaks of whole tiny models, under ports that are right and ports that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.checks.memory import as_port
from gaudi_validate.checks.model_memory import model_peak
from gaudi_validate.core.verdicts import Status
from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.faults.fault import FaultyPort
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.pool import ModelPool

if TYPE_CHECKING:
    from gaudi_validate.core.evidence import Evidence

LLAMA = resolve("tiny-llama")
SLICED = "hpu_sliced[q_block_size=32]"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> ModelPool:
    return ModelPool(tmp_path_factory.mktemp("cache"))


def _value(evidence: Evidence, name: str) -> Any:
    return next(m.value for m in evidence.measurements if m.name == name)


def test_the_sliced_prefill_grows_with_length_only(pool: ModelPool) -> None:
    evidence = model_peak(pool, as_port(SLICED), LLAMA, lengths=(64, 128, 256), declared_ratio=0.5)
    assert evidence.status is Status.PASS
    assert (evidence.model, evidence.scenario) == ("tiny-llama", "prefill, batch 2, length 256")
    # Kept: keys and values of all layers, and the last position's logits of two rows.
    config = pool.get(LLAMA, as_port(SLICED), torch.float32, torch.device("cpu")).config
    cache = 2 * config.num_hidden_layers * 2 * config.num_key_value_heads * 256 * config.head_dim * 4
    assert _value(evidence, "bytes kept") >= cache + 2 * config.vocab_size * 4
    assert _value(evidence, "bytes kept") <= cache + 2 * config.vocab_size * 4 + 2048


def test_naive_is_no_memory_saving_path(pool: ModelPool) -> None:
    evidence = model_peak(pool, as_port("naive"), LLAMA, lengths=(128, 256, 512))
    assert evidence.status is Status.FAIL
    assert evidence.reason.startswith("peak grows as length^1.")


def test_decoding_with_repeated_keys_takes_as_much_as_naive(pool: ModelPool) -> None:
    right = model_peak(pool, as_port(SLICED), LLAMA, lengths=(256,), phase="decode", declared_ratio=0.5)
    assert right.status is Status.PASS
    wrong = model_peak(
        pool, FaultyPort(as_port(SLICED), FAULTS["P69"]), LLAMA, lengths=(256,), phase="decode", declared_ratio=0.5
    )
    assert wrong.status is Status.FAIL
    assert _value(wrong, "bytes allocated") > 2 * _value(right, "bytes allocated")


def test_an_integer_mask_is_seen_in_a_model(pool: ModelPool) -> None:
    port = FaultyPort(as_port(SLICED), FAULTS["Q75"])
    assert model_peak(pool, port, LLAMA, lengths=(256, 512, 1024), batch=1).status is Status.FAIL


def test_the_same_model_has_the_same_count(pool: ModelPool) -> None:
    counts = {
        model_peak(pool, as_port(SLICED), LLAMA, lengths=(32, 64, 128), declared_ratio=2).measurements[:2]
        for _ in range(2)
    }
    assert len(counts) == 1


def broken(*_: Any, **__: Any) -> Any:
    """Raise."""
    raise TypeError("takes 9 arguments and 7 were given")


def test_what_a_port_raises_is_its_failure(pool: ModelPool) -> None:
    evidence = model_peak(pool, as_port(f"{__name__}:broken"), LLAMA, lengths=(8, 16, 32))
    assert evidence.status is Status.FAIL
    assert evidence.reason.endswith("raised TypeError: takes 9 arguments and 7 were given at batch 2, length 8")
