"""Evidence goes from a test to the summary and the file, with and without xdist, also when a worker dies."""

from __future__ import annotations

import json

import pytest

from gaudi_validate.core.evidence import Evidence, Location, Measurement, to_json
from gaudi_validate.core.travel import evidence_from, primitives
from gaudi_validate.core.verdicts import Status

TESTS = """
import os
import pytest
from gaudi_validate.core.evidence import Evidence, Measurement
from gaudi_validate.core.verdicts import Status

def one(status, number):
    return Evidence(
        check="logic parity", status=status, reason=f"{status} on scenario {number}", model="tiny-llama", port="mine",
        scenario=f"s{number}", dtype="float64",
        measurements=(Measurement(name="worst", value=number * 1e-10, unit="sd", limit=1e-9),),
    )

@pytest.mark.parametrize("number", range(4))
def test_good(judge, number):
    judge(one(Status.PASS, number))

def test_unsure(judge):
    judge(one(Status.INCONCLUSIVE, 5))

def test_bad(judge):
    judge(one(Status.FAIL, 20), one(Status.NOT_MEASURED, 1))
"""


def test_the_summary_counts_every_status_and_names_the_next_command(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_port=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=5, failed=1)
    lines = result.stdout.lines
    start = next(index for index, line in enumerate(lines) if " gaudi-validate " in line and line.startswith("==="))
    end = next(index for index in range(start + 1, len(lines)) if lines[index].startswith("==="))
    assert lines[start + 1 : end] == [
        "1 FAIL, 1 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, 1 INCONCLUSIVE, 0 IMPROVED, 4 PASS",
        "verdict  check         model       port  dtype    cases  nearest to its limit",
        "FAIL     logic parity  tiny-llama  mine  float64    3/7  worst 2e-09 sd, limit 1e-09 (s20)",
        "next (the first FAIL alone):",
        "  pytest test_port.py::test_bad",
    ]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_same_verdicts_with_workers(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_port=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *workers)
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(
        [
            "FAIL logic parity: mine on tiny-llama, scenario s20 (cpu, float64)",
            "  FAIL on scenario 20",
            "  measured: worst 2e-09 sd (allowed: at most 1e-09)",
            "  1 more verdict of this test fails: NOT_MEASURED logic parity: mine on tiny-llama, scenario s1 *",
            "  reproduce: pytest test_port.py::test_bad",
            "1 FAIL, 1 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, 1 INCONCLUSIVE, 0 IMPROVED, 4 PASS",
            "FAIL     logic parity  tiny-llama  mine  float64    3/7  worst 2e-09 sd, limit 1e-09 (s20)",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_strict_verdicts_fail_the_uncertain(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_port=TESTS)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--strict-verdicts", "-k", "unsure")
    result.assert_outcomes(failed=1, deselected=5)
    result.stdout.fnmatch_lines(
        ["  INCONCLUSIVE on scenario 5", "  reproduce: pytest test_port.py::test_unsure --strict-verdicts"]
    )


def test_a_worker_that_dies_takes_nothing_with_it_that_had_finished(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_port=TESTS.partition("def test_unsure")[0]
        + """
def test_killed(judge):
    judge(one(Status.PASS, 9))
    os.kill(os.getpid(), 9)
"""
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-n", "1", "--evidence", "evidence.json")
    result.assert_outcomes(passed=4, failed=1)
    written = json.loads((pytester.path / "evidence.json").read_text())
    assert [one["test"] for one in written["evidence"]] == [f"test_port.py::test_good[{number}]" for number in range(4)]
    result.stdout.fnmatch_lines(
        [
            "worker 'gw0' crashed while running 'test_port.py::test_killed'",
            "0 FAIL, 0 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, 0 INCONCLUSIVE, 0 IMPROVED, 4 PASS",
            "1 test failed without a verdict, see above",
        ]
    )


def test_a_record_comes_back_as_it_was() -> None:
    evidence = Evidence(
        check="c",
        status=Status.FAIL,
        reason="r",
        measurements=(Measurement(name="m", value=float("inf"), unit="sd", limit=1),),
        location=Location(layer=1, head=2),
        details=("one", "two"),
    )
    sent = primitives(to_json(evidence))
    assert type(sent["measurements"]) is list
    assert type(sent["status"]) is str
    assert evidence_from(sent) == evidence


def test_only_primitives_travel() -> None:
    class Number(float):
        pass

    assert type(primitives({"a": Number(1.5)})["a"]) is float
    with pytest.raises(TypeError, match=r"^set cannot travel on a test report; use JSON primitives$"):
        primitives({"a": {1, 2}})
