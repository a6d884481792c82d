from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.attention.registry import ensure
from gaudi_validate.checks.logic import compare, logic_parity
from gaudi_validate.checks.reference import ReferenceStore
from gaudi_validate.core import hardware_table
from gaudi_validate.core.explain import explain
from gaudi_validate.core.hardware_table import Hardware
from gaudi_validate.core.verdicts import Status
from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.faults.fault import FaultyPort
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.matrix import BY_ID

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

LLAMA = resolve("tiny-llama")
SDPA = TransformersPort("sdpa")


def values(evidence: Evidence) -> dict[str, float | int | None]:
    return {one.name: one.value for one in evidence.measurements}


@dataclass(frozen=True)
class Disguised:
    """A port whose attention function is said to be ``attention`` while ``inner`` is what runs."""

    inner: Port
    attention: str | None
    name: str = "disguised"

    @property
    def load_key(self) -> str:
        return self.inner.load_key

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        return self.inner.load(checkpoint, dtype=dtype, device=device)

    def active(self, model: PreTrainedModel) -> contextlib.AbstractContextManager[None]:
        return self.inner.active(model)


@pytest.mark.parametrize("scenario", ["left-mixed", "decode", "static-tail", "second-call"])
@pytest.mark.parametrize("model", ["tiny-llama", "tiny-mixtral", "tiny-gpt-neox"])
def test_a_correct_port_passes_far_below_the_limit(logic_pool: ModelPool, model: str, scenario: str) -> None:
    evidence = logic_parity(logic_pool, SDPA, resolve(model), BY_ID[scenario])
    assert evidence.status is Status.PASS, evidence.reason
    worst = values(evidence)["worst |Δlogit|"]
    assert worst is not None
    assert 0 < worst <= 1e-12
    assert values(evidence)["argmax flips"] == 0
    layers, passes = 4, len(BY_ID[scenario].passes) + (scenario == "second-call")
    assert values(evidence)["attention calls"] == layers * passes
    assert evidence.location is None


def test_the_reference_is_computed_once_for_all_ports(logic_pool: ModelPool, tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path)
    ports = (SDPA, TransformersPort("eager"))
    details = [
        logic_parity(logic_pool, port, LLAMA, BY_ID["single"], references=store).details[0].rsplit(", ", 1)[1]
        for port in ports
    ]
    assert details == ["computed", "kept from earlier in this session"]


def test_a_silent_fallback_fails_though_every_number_agrees(logic_pool: ModelPool) -> None:
    port = Disguised(inner=TransformersPort("eager"), attention="sdpa")
    evidence = logic_parity(logic_pool, port, LLAMA, BY_ID["decode"])
    assert values(evidence)["worst |Δlogit|"] == 0
    assert evidence.status is Status.FAIL
    assert evidence.reason == (
        "the attention function 'sdpa' was called 0 times where eager's was called 24 times: "
        "the port takes another path without a word"
    )


def test_a_port_without_a_named_attention_function_is_judged_by_its_numbers(logic_pool: ModelPool) -> None:
    good = logic_parity(logic_pool, Disguised(inner=SDPA, attention=None), LLAMA, BY_ID["single"])
    assert good.status is Status.PASS
    assert "attention calls" not in values(good)
    bad = Disguised(inner=FaultyPort(SDPA, FAULTS["H47"]), attention=None)
    evidence = logic_parity(logic_pool, bad, LLAMA, BY_ID["single"])
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    assert evidence.location.module == "model.layers.0.self_attn.o_proj"  # the first module that attention feeds
    assert evidence.location.head is None
    assert evidence.location.note is not None
    assert evidence.location.note.startswith("head and keys are unknown")


def test_what_a_port_raises_is_its_failure(logic_pool: ModelPool) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted\nsecond line")

    fault = replace(FAULTS["H47"], plant=lambda model, _: _forward_replaced(model, broken))
    evidence = logic_parity(logic_pool, FaultyPort(SDPA, fault), LLAMA, BY_ID["single"])
    assert evidence.status is Status.FAIL
    assert evidence.reason == "the port raised RuntimeError: planted"
    assert "in broken" in evidence.details[0]


def test_a_rejection_by_name_is_no_failure_and_no_pass(logic_pool: ModelPool) -> None:
    evidence = logic_parity(logic_pool, TransformersPort(ensure("hpu_fused")), resolve("tiny-gemma2"), BY_ID["single"])
    assert evidence.status is Status.INCONCLUSIVE
    assert evidence.reason == (
        "rejected by name: attention implementation 'hpu_fused' does not support softcap; "
        "use attn_implementation='hpu_sliced'"
    )


def test_nan_is_a_failure_of_its_own(logic_pool: ModelPool) -> None:
    def with_nan(original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            output.logits[0, 3, 7:9] = torch.nan
            return output

        return forward

    fault = replace(FAULTS["H47"], plant=lambda model, _: _forward_replaced(model, with_nan(model.forward)))
    evidence = logic_parity(logic_pool, FaultyPort(SDPA, fault), LLAMA, BY_ID["single"])
    assert evidence.reason == "2 logits of real tokens are NaN or infinite on one side only"
    assert evidence.location is not None
    assert (evidence.location.batch_row, evidence.location.query_row) == (0, 3)


def test_nan_in_padded_rows_is_nobodys_business(logic_pool: ModelPool) -> None:
    def with_nan(original: Any) -> Any:
        def forward(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            output.logits[0, :8] = torch.nan
            return output

        return forward

    fault = replace(FAULTS["H47"], plant=lambda model, _: _forward_replaced(model, with_nan(model.forward)))
    assert logic_parity(logic_pool, FaultyPort(SDPA, fault), LLAMA, BY_ID["left-mixed"]).status is Status.PASS


@contextlib.contextmanager
def _forward_replaced(model: Any, forward: Any) -> Any:
    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def test_hardware_without_fp64_runs_the_port_in_fp32(logic_pool: ModelPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hardware_table.TABLE, "card", Hardware(key="card", name="Card", device="cpu", fp64=False))
    good = logic_parity(logic_pool, SDPA, LLAMA, BY_ID["decode"], hardware="card")
    assert (good.status, good.dtype) == (Status.PASS, "float32")
    worst, noise = values(good)["worst |Δlogit|"], values(good)["eager's own worst |Δlogit|"]
    assert worst is not None
    assert noise is not None
    assert good.measurements[0].limit == pytest.approx(1e-4 + 3 * noise)
    assert 1e-8 < worst < 1e-4
    bad = logic_parity(logic_pool, FaultyPort(SDPA, FAULTS["A4"]), LLAMA, BY_ID["decode"], hardware="card")
    assert bad.status is Status.FAIL
    assert bad.location is not None
    assert (bad.location.layer, bad.location.phase, bad.location.query_row) == (0, "decode step 1", 13)


def test_the_whole_message_of_a_failure(logic_pool: ModelPool, tmp_path: Path) -> None:
    store = ReferenceStore(tmp_path)
    evidence = logic_parity(
        logic_pool, FaultyPort(SDPA, FAULTS["C16"]), resolve("tiny-mistral"), BY_ID["at-window"], references=store
    )
    evidence = replace(evidence, reproduce="pytest --attention sdpa -k at-window")
    lines = explain(evidence).splitlines()
    assert lines[0] == "FAIL logic parity: sdpa+C16 on tiny-mistral, scenario at-window (cpu, float64)"
    assert lines[2] == "  first departs from the reference: layer 0, model.layers.0.self_attn, prefill"
    assert lines[4] == (
        "  the attention's inputs are equal: the fault lies in the attention function or its mask; "
        "the row does not see key 0, which the reference sees"
    )
    assert lines[-2:] == [
        "  reference: transformers' eager attention in float64, exact mode, computed",
        "  reproduce: pytest --attention sdpa -k at-window",
    ]
    assert len(lines) <= 15


def test_compare_counts_patterns_and_flips() -> None:
    reference = torch.tensor([[0.0, 1.0, 2.0], [5.0, 1.0, torch.inf]], dtype=torch.float64)
    same = compare(reference, reference.clone())
    assert (same.worst, same.pattern, same.flips) == (0, 0, 0)
    port = reference.clone()
    port[0, 0] = 3.0
    flipped = compare(reference, port)
    assert (flipped.row, flipped.pattern, flipped.flips) == (0, 0, 0.5)
    assert flipped.worst == pytest.approx(3.0 / flipped.sd)
    port[1, 1] = torch.nan
    broken = compare(reference, port)
    assert (broken.worst, broken.row, broken.pattern) == (float("inf"), 1, 1)
