"""A user's attention function under assert_parity: right ones pass, wrong ones fail with a message to act on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("_torch_is_here_to_stay")

ATTENTION = """
import torch

def forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (scaling{wrong})
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask[..., : key.shape[2]], torch.finfo(scores.dtype).min)
    elif query.shape[2] > 1:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None
"""
TESTS = """
def test_parity(assert_parity):
    assert_parity("tiny-llama", ["single", "left-mixed"])
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(pytester: pytest.Pytester, cache: Path, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--cache-dir={cache}", "test_it.py", *arguments)


def test_a_right_function_passes(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(test_it=TESTS, right_attention=ATTENTION.format(wrong=""))
    result = run(pytester, cache, "--attention", "right_attention:forward")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["0 FAIL, *, 2 PASS"])


def test_a_wrong_scale_fails_with_place_figure_limit_and_command(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(test_it=TESTS, wrong_attention=ATTENTION.format(wrong=" * 1.02"))
    result = run(pytester, cache, "--attention", "wrong_attention:forward")
    result.assert_outcomes(failed=1)
    text = "\n".join(result.stdout.lines)
    message = text.partition("test_parity ____")[2].partition("\n")[2].partition("\n====")[0].splitlines()
    assert len(message) <= 15
    assert message[0] == ("FAIL logic parity: wrong_attention:forward on tiny-llama, scenario single (cpu, float64)")
    assert re.fullmatch(r"  worst \|Δlogit\| \S+ sd, limit 1e-09 sd", message[1])
    assert message[2].startswith("  first departs from the reference: layer 0, ")
    assert message[3].startswith("  worst error there: batch row 0, head ")
    assert message[-1] == "  reproduce: pytest test_it.py::test_parity --attention wrong_attention:forward"
    result.stdout.fnmatch_lines(["2 FAIL, *, 0 PASS", "  pytest test_it.py::test_parity --attention *"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_planted_fault_fails_a_right_port(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = run(pytester, cache, "--attention", "sdpa", "--plant-fault", "A1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*attention sdpa, *, FAULT A1 PLANTED",
            "FAIL logic parity: sdpa+A1 on tiny-llama, scenario left-mixed (cpu, float64)",
            "  reproduce: pytest test_it.py::test_parity --attention sdpa --plant-fault A1",
            "1 FAIL, *, 1 PASS",
        ]
    )


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (("--attention", "nope"), "unknown attention implementation: 'nope'; use pkg.module:function or one of "),
        (("--attention", "no_such:f"), "cannot import the attention function: 'no_such:f'; "),
        (("--port", "nope"), "unknown port: 'nope'; use transformers or pkg.module:load"),
        (("--plant-fault", "Z99"), "unknown fault: --plant-fault 'Z99'; use one of A1, A3, "),
        (("--model", "./no/such/folder"), "no such model folder: no/such/folder; "),
        (("--model", "nope"), "unknown model: 'nope'; "),
    ],
)
def test_unknown_names_are_usage_errors(
    pytester: pytest.Pytester, cache: Path, arguments: tuple[str, ...], start: str
) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = run(pytester, cache, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.stderr.lines if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"ERROR: {start}")


def test_a_users_mistake_in_a_test_is_one_line(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(
        test_it="""
def test_model(load_model):
    load_model("nope")

def test_scenario(assert_parity):
    assert_parity("tiny-llama", "nope")

def test_rule(assert_parity):
    assert_parity("tiny-llama", "single", rule="nope")

def test_dtype(load_model):
    load_model("tiny-llama", dtype="int9")
"""
    )
    result = run(pytester, cache, "--attention", "sdpa")
    result.assert_outcomes(failed=4)
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*>  *")
    result.stdout.fnmatch_lines(
        [
            "unknown model: 'nope'; *",
            "unknown scenario: 'nope'; use one of single, no-mask, *",
            "unknown parity rule: 'nope'; use logic, precision or logits",
            "unknown dtype: 'int9'; use float64, float32, bfloat16 or float16",
        ]
    )


def test_models_load_once_a_session(pytester: pytest.Pytester, cache: Path) -> None:
    pytester.makepyfile(
        test_it="""
import torch

def test_first(load_model):
    load_model.first = load_model("tiny-llama", "float32")

def test_second(load_model):
    again = load_model("tiny-llama", torch.float32)
    assert again.model is load_model.first.model
    assert again.dtype is torch.float32
    assert (again.spec.name, again.port.name) == ("tiny-llama", "sdpa")
    with again.port.active(again.model):
        assert again.model(torch.tensor([[1, 2, 3]])).logits.shape[:2] == (1, 3)
"""
    )
    run(pytester, cache, "--attention", "sdpa").assert_outcomes(passed=2)
