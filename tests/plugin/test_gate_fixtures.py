"""generate, golden, memory_gate and perf_gate on a tiny model: the checks run, and a fault is seen through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("_torch_is_here_to_stay")

GATES = """
import torch
from gaudi_validate.measure.attention_call import AttentionShape

SMALL = dict(heads=4, kv_heads=2, head_dim=16)

def test_scaling(memory_gate):
    evidence = memory_gate.scaling(lengths=(64, 128, 256), declared_ratio=2.0, naive="naive", **SMALL)
    assert evidence.hardware == "cpu"

def test_mask(memory_gate):
    memory_gate.mask(batch=1, length=256)

def test_decode(memory_gate):
    memory_gate.decode(length=128, **SMALL)

def test_model(memory_gate):
    evidence = memory_gate.model_peak("tiny-llama", lengths=(32, 64, 128))
    assert evidence.model == "tiny-llama"

def test_speed(perf_gate):
    shape = AttentionShape(length=64, dtype=torch.float32, **SMALL)
    evidence = perf_gate.faster_than_naive(shape, required=1e-6)
    assert evidence.port == "sdpa"
"""
TEXT = """
def test_logic(assert_parity):
    assert_parity("tiny-llama", "single")

def test_precision(assert_parity):
    assert_parity("tiny-llama", rule="precision", prompts=["He has a", "Peace"])
    assert_parity("tiny-llama", "single", rule="logits", dtype="bfloat16")

def test_text(generate, golden):
    (text,) = generate(["He has a"], new_tokens=8)
    assert len(text.ids) <= 8
    assert text == golden(name="he-has-a")
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(pytester: pytest.Pytester, cache: Path, *arguments: str) -> pytest.RunResult:
    options = ("-p", "no:cacheprovider", f"--cache-dir={cache}", "--attention", "sdpa", "test_it.py")
    return pytester.runpytest_inprocess(*options, *arguments)


def test_gates_judge_and_record(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(test_it=GATES)
    result = run(pytester, cache)
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    for check in ("attention memory", "mask memory", "decode memory", "model memory", "attention speed"):
        assert check in text


def test_a_memory_fault_fails_its_gate(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(
        test_it="""
def test_decode(memory_gate):
    memory_gate.decode(length=128, heads=4, kv_heads=2, head_dim=16, port="naive")
"""
    )
    result = run(pytester, cache)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["FAIL decode memory: naive, *", "*reproduce: pytest test_it.py::test_decode --attention sdpa"]
    )


def test_generated_text_against_its_golden(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(test_it=TEXT)
    options = ("--model", "tiny-llama", "--dtype", "float32")
    run(pytester, cache, *options, "--update-golden").assert_outcomes(passed=3)
    assert (pytester.path / "golden/text/cpu/tiny-llama/he-has-a.json").is_file()
    run(pytester, cache, *options).stdout.fnmatch_lines(["0 FAIL, *, 0 NO_BASELINE, *, 4 PASS"])
