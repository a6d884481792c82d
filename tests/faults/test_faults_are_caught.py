from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.attention.registry import ensure
from gaudi_validate.checks import forward
from gaudi_validate.checks.logic import logic_parity
from gaudi_validate.core.verdicts import Status
from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.faults.fault import Fault, FaultyPort
from gaudi_validate.faults.soil import in_attention, in_mask
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.inputs import make
from gaudi_validate.scenarios.matrix import BY_ID, MATRIX

if TYPE_CHECKING:
    from gaudi_validate.checks.reference import ReferenceStore
    from gaudi_validate.core.evidence import Evidence, Location
    from gaudi_validate.ports.pool import ModelPool

LOGIC = [fault for fault in FAULTS.values() if fault.check == "logic parity"]
PORT = "hpu_sliced"
PORTS = ("naive", "hpu_sliced", "hpu_sliced[q_block_size=8]", "hpu_fused")
CORRECT = ("sdpa", *PORTS)
WITH_SOFTCAP = ("naive", "hpu_sliced", "hpu_sliced[q_block_size=8]")
# Small beside the limit of 1e-9: the distance that a correct path keeps.
CORRECT_LIMIT = 1e-12


@dataclass
class Bench:
    """Logic parity of ports, with one pool and one store of references."""

    pool: ModelPool
    references: ReferenceStore

    def judge(self, fault: Fault, scenario: str, attention: str = PORT) -> Evidence:
        port = FaultyPort(TransformersPort(ensure(attention)), fault)
        return logic_parity(self.pool, port, resolve(fault.model), BY_ID[scenario], references=self.references)


@pytest.fixture(scope="module")
def bench(faults_pool: ModelPool, faults_references: ReferenceStore) -> Bench:
    return Bench(pool=faults_pool, references=faults_references)


def located(bench: Bench, fault: str, scenario: str) -> Location:
    evidence = bench.judge(FAULTS[fault], scenario)
    assert evidence.status is Status.FAIL
    assert evidence.location is not None
    return evidence.location


@pytest.mark.parametrize("fault", LOGIC, ids=lambda fault: fault.id)
def test_caught_where_it_shows_and_only_there(bench: Bench, fault: Fault) -> None:
    evidence = bench.judge(fault, fault.shows[0])
    assert evidence.status is Status.FAIL, evidence.reason
    worst = evidence.measurements[0].value
    assert worst is not None
    assert worst > 1e-3
    assert evidence.location is not None
    assert evidence.location.batch_row is not None
    assert evidence.location.query_row is not None
    assert evidence.location.phase is not None
    for scenario in fault.silent[:1]:
        assert bench.judge(fault, scenario).status is Status.PASS


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_a_plant_leaves_nothing_behind(bench: Bench, fault: Fault) -> None:
    port = TransformersPort(ensure(PORT))
    model = bench.pool.get(resolve(fault.model), port, torch.float64, torch.device("cpu"))
    inputs = make(BY_ID[(*fault.shows, *fault.silent)[0]], 260)
    before = forward.run(model, port, inputs)
    forward.run(model, FaultyPort(port, fault), inputs)
    assert torch.equal(forward.run(model, port, inputs), before)


@pytest.mark.parametrize(
    ("fault", "scenario", "expected", "words"),
    [
        ("A1", "left-mixed", {"layer": 0, "phase": "prefill"}, "keys 0 to 3, which the reference masks"),
        ("A3", "static-tail", {"layer": 0, "phase": "prefill"}, "keys 11 to 39, which the reference masks"),
        ("A4", "decode", {"layer": 0, "phase": "decode step 1", "query_row": 13}, "keys 1 to 13, which"),
        ("A4", "continuation", {"layer": 0, "phase": "chunk 2"}, "the row does not see keys 1 to "),
        ("A7", "left-mixed", {"layer": 1, "phase": "prefill"}, "NaN or infinite values (columns 0 to 7)"),
        ("B11", "decode", {"layer": 0, "phase": "decode step 1", "query_row": 13}, "keys (columns 4 to 12)"),
        ("B15", "decode", {"module": "model.rotary_emb", "phase": "decode step 1"}, "first in model.rotary_emb"),
        ("C16", "at-window", {"layer": 0, "query_row": 15}, "does not see key 0, which the reference sees"),
        ("C17", "over-window", {"layer": 0, "phase": "prefill", "query_row": 36}, "sees keys 14 to 20, which"),
        ("D30", "decode", {"layer": 0, "phase": "decode step 1", "query_row": 13}, "values (columns 12 to 13)"),
        ("F35", "second-call", {"layer": 0, "module": "model.rotary_emb"}, "queries (columns 1 to 13) and keys"),
        ("F37-dynamic", "past-original-maximum", {"phase": "decode step 3", "query_row": 64}, "(column 64)"),
        ("F41", "single", {"layer": 0, "module": "gpt_neox.rotary_emb"}, "first in gpt_neox.rotary_emb"),
        ("F42", "single", {"layer": 0, "module": "model.layers.0.self_attn"}, "RoPE, norm or cache"),
        ("K56", "single", {"layer": 0}, "the row's weights sum to 0"),
        ("K57", "single", {"layer": 0}, "the row's weights sum to 0.0"),
        ("M63", "right-mixed", {"layer": None, "phase": "prefill"}, "the fault lies after the last one"),
    ],
)
def test_place(bench: Bench, fault: str, scenario: str, expected: dict[str, Any], words: str) -> None:
    location = located(bench, fault, scenario)
    assert {name: getattr(location, name) for name in expected} == expected
    assert location.note is not None
    assert words in location.note


def test_a_tiled_head_is_named(bench: Bench) -> None:
    location = located(bench, "G43", "single")
    assert location.head in {1, 3, 4, 6}, "heads 0, 2, 5, 7 read the same KV head either way"
    assert location.note == "the attention's inputs are equal: the fault lies in the attention function or its mask"


def test_the_zero_tail_is_named_to_the_row(bench: Bench) -> None:
    location = located(bench, "K56", "single")
    assert location.query_row in range(8, 12)
    assert location.key_start is not None
    assert location.key_end is not None
    assert 0 <= location.key_start < location.key_end <= 12


def test_trimmed_logits_are_named_to_the_token(bench: Bench) -> None:
    location = located(bench, "M63", "right-mixed")
    lengths = BY_ID["right-mixed"].lengths
    assert location.batch_row is not None
    assert location.query_row == lengths[location.batch_row] - 1


@pytest.mark.parametrize("fault", ["L59", "L60"])
def test_experts_are_named(bench: Bench, fault: str) -> None:
    location = located(bench, fault, "single")
    assert location.module is not None
    assert location.module.startswith("model.layers.0.mlp")
    assert (location.layer, location.head, location.key_start) == (0, None, None)


def test_a_fault_in_one_layer_is_found_in_that_layer(bench: Bench) -> None:
    def in_layer_2(original: Any) -> Any:
        def attention(module: Any, query: Any, *rest: Any, **kwargs: Any) -> Any:
            return original(module, query * 1.01 if module.layer_idx == 2 else query, *rest, **kwargs)

        return attention

    fault = Fault(
        id="H47", cls="H", title="", origin="", model="tiny-llama", shows=(), silent=(), plant=in_attention(in_layer_2)
    )
    evidence = bench.judge(fault, "single")
    assert evidence.location is not None
    assert (evidence.location.layer, evidence.location.module) == (2, "model.layers.2.self_attn")


def test_one_wrong_key_is_the_key_range(bench: Bench) -> None:
    def without_key_4(original: Any) -> Any:
        def mask(**kwargs: Any) -> Any:
            padding = kwargs["attention_mask"].clone()
            padding[:, 4] = False
            return original(**{**kwargs, "attention_mask": padding})

        return mask

    fault = Fault(
        id="A1", cls="A", title="", origin="", model="tiny-llama", shows=(), silent=(), plant=in_mask(without_key_4)
    )
    location = bench.judge(fault, "decode").location
    assert location is not None
    assert location.note is not None
    assert location.note.endswith("the row does not see key 4, which the reference sees")


@pytest.mark.parametrize("attention", CORRECT)
@pytest.mark.parametrize("scenario", ["left-mixed", "decode-over-window", "chunked-prefill", "static-tail", "packed"])
def test_correct_ports_are_not_flagged(bench: Bench, attention: str, scenario: str) -> None:
    assert_correct(bench, attention, "tiny-mistral", scenario)


def assert_correct(bench: Bench, attention: str, model: str, scenario: str) -> None:
    port = TransformersPort(ensure(attention))
    evidence = logic_parity(bench.pool, port, resolve(model), BY_ID[scenario], references=bench.references)
    assert evidence.status is Status.PASS, evidence.reason
    worst = evidence.measurements[0].value
    assert worst is not None
    assert worst <= CORRECT_LIMIT


SLOW_MODELS = (
    "tiny-llama",
    "tiny-mistral",
    "tiny-mixtral",
    "tiny-gemma2",
    "tiny-qwen3",
    "tiny-qwen3-moe",
    "tiny-phi3",
    "tiny-gpt-neox",
    "tiny-llama-linear",
    "tiny-llama-dynamic",
    "tiny-llama-yarn",
    "tiny-llama-llama3",
    "tiny-llama-mha",
    "tiny-llama-mqa",
)


@pytest.mark.slow
@pytest.mark.parametrize("attention", CORRECT)
@pytest.mark.parametrize("model", SLOW_MODELS)
def test_correct_ports_over_the_whole_matrix(bench: Bench, attention: str, model: str) -> None:
    if model == "tiny-gemma2" and attention not in WITH_SOFTCAP:
        pytest.skip(f"{attention} has no softcap")
    for scenario in MATRIX:
        assert_correct(bench, attention, model, scenario.id)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["naive", "hpu_sliced[q_block_size=8]"])
@pytest.mark.parametrize("fault", LOGIC, ids=lambda fault: fault.id)
def test_every_fault_in_every_scenario(bench: Bench, fault: Fault, attention: str) -> None:
    found = {name: bench.judge(fault, name, attention).status for name in (*fault.shows, *fault.silent)}
    wrong = {name: status for name, status in found.items() if (status is Status.FAIL) != (name in fault.shows)}
    assert not wrong


@pytest.mark.slow
def test_correct_past_8192_tokens_with_the_default_block(bench: Bench) -> None:
    assert_correct(bench, "hpu_sliced", "tiny-llama-one-layer", "past-8192")
