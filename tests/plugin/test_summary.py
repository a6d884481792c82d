from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gaudi_validate import __version__
from gaudi_validate.core.evidence import Evidence, Measurement
from gaudi_validate.core.settings import Settings
from gaudi_validate.core.verdicts import Status
from gaudi_validate.report.summary import count_line, next_command, number, rows, strain
from gaudi_validate.report.terminal import header, summary


def one(
    status: Status = Status.PASS,
    *measurements: Measurement,
    check: str = "logic parity",
    scenario: str = "",
    model: str = "m",
) -> Evidence:
    return Evidence(
        check=check,
        status=status,
        reason="r",
        model=model,
        scenario=scenario,
        port="p",
        dtype="float64",
        measurements=measurements,
        reproduce=f"pytest 't.py::{scenario or check}'",
    )


def worst(value: float | None, limit: float | None = 1e-9, better: str = "lower") -> Measurement:
    return Measurement(name="worst", value=value, unit="sd", limit=limit, better=better)


def lines(*evidence: Evidence, width: int = 100, strict: bool = False) -> list[str]:
    return summary(evidence, strict=strict, record="pytest -m slow --update-golden", width=width, colour=False)


def test_every_status_is_counted_always() -> None:
    assert count_line([]) == (
        "0 FAIL, 0 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, 0 INCONCLUSIVE, 0 IMPROVED, 0 PASS"
    )
    assert count_line([one(status) for status in Status]) == (
        "1 FAIL, 1 NOT_MEASURED, 1 ENV_MISMATCH, 1 NO_BASELINE, 1 INCONCLUSIVE, 1 IMPROVED, 1 PASS"
    )


def test_the_whole_text_of_a_passing_run() -> None:
    assert lines(
        one(Status.PASS, worst(1e-14), scenario="decode"), one(Status.PASS, worst(3e-13), scenario="packed")
    ) == [
        "0 FAIL, 0 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, 0 INCONCLUSIVE, 0 IMPROVED, 2 PASS",
        "verdict  check         model  port  dtype    cases  nearest to its limit",
        "PASS     logic parity  m      p     float64      2  worst 3e-13 sd, limit 1e-09 (packed)",
    ]


def test_the_gravest_comes_first_and_is_run_next() -> None:
    found = lines(
        one(Status.PASS, check="text"),
        one(Status.NO_BASELINE, check="speed"),
        one(Status.FAIL, worst(2.0), check="logic parity", scenario="at-window"),
    )
    assert [line.split()[0] for line in found[2:5]] == ["FAIL", "NO_BASELINE", "PASS"]
    assert found[-2:] == ["next (the first FAIL alone):", "  pytest 't.py::at-window'"]


def test_what_has_no_baseline_is_recorded_next() -> None:
    evidence = [one(Status.PASS), one(Status.NO_BASELINE, check="speed")]
    assert next_command(evidence, strict=False, record="pytest -m slow --update-golden") == (
        "record what has no golden or baseline yet",
        "pytest -m slow --update-golden",
    )
    assert next_command(evidence, strict=False, record=None) is None
    assert next_command(evidence, strict=True, record=None) == (
        "the first NO_BASELINE alone",
        "pytest 't.py::speed'",
    )
    assert next_command([one()], strict=True, record=None) is None


def test_a_broken_count_is_shown_before_a_good_headline() -> None:
    calls = Measurement(name="attention calls", value=0, unit="calls", limit=12, better="higher")
    broken, good = one(Status.FAIL, worst(1e-14), calls, scenario="a"), one(Status.PASS, worst(9e-10), scenario="b")
    assert [row.figure for row in rows([good, broken])] == ["attention calls 0 calls, at least 12 (a)"]
    assert [row.figure for row in rows([good])] == ["worst 9e-10 sd, limit 1e-09"]


@pytest.mark.parametrize(
    ("measurement", "expected"),
    [
        (worst(5e-10), 0.5),
        (worst(2e-9), 2.0),
        (worst(math.nan), math.inf),
        (worst(None), math.inf),
        (worst(0, 0), 0.0),
        (worst(1, 0), math.inf),
        (worst(6.0, 3.0, "higher"), 0.5),
        (worst(0.0, 3.0, "higher"), math.inf),
    ],
)
def test_strain(measurement: Measurement, expected: float) -> None:
    assert strain(measurement) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "not measured"), (3, "3"), (12884901888, "12 884 901 888"), (0.12345, "0.123"), (math.inf, "inf")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_a_long_summary_stays_within_forty_lines_and_says_what_it_left_out() -> None:
    evidence = [one(Status.PASS, worst(1e-14), model=f"model-{index}") for index in range(70)]
    evidence += [one(Status.FAIL, worst(3.0), model="the bad one")]
    found = summary(evidence, strict=False, record=None, width=100, colour=False, notes=["a"] * 50)
    assert len(found) == 40
    assert found[2].startswith("FAIL     logic parity  the bad one")
    assert "... and 48 rows more, none graver; --evidence PATH writes them all" in found
    assert "... and 39 notes more" in found


def test_a_narrow_terminal_cuts_only_the_last_column() -> None:
    found = lines(one(Status.PASS, worst(1e-14), scenario="decode"), width=60)
    assert found[2].startswith("PASS     logic parity  m      p     float64      1  worst 1")
    assert max(map(len, found[1:])) <= 60


def settings(**changes: Any) -> Settings:
    base: dict[str, Any] = {"hardware": "cpu", "hardware_source": "found", "model": "tiny-llama", "dtype": "bfloat16"}
    return Settings(**{**base, **changes}, golden_dir=Path("golden"), cache_dir=Path("cache"))


def test_the_header() -> None:
    assert header(settings(), "hpu_sliced (default)", {"torch": "2.13.0"}, [("speed of an HPU", "no device")]) == [
        f"gaudi-validate {__version__}: hardware cpu (found), port transformers, attention hpu_sliced (default), "
        "model tiny-llama, bfloat16",
        "versions: torch 2.13.0",
        "not measured here: speed of an HPU: no device",
    ]
    changed = settings(hardware="gaudi2", hardware_source="GAUDI2_CI", port="a:b", plant_fault="A4")
    assert header(changed, "mine:f", {"torch": "2"}, [], shipped_suite="--attention") == [
        f"gaudi-validate {__version__}: hardware gaudi2 (GAUDI2_CI), port a:b, attention mine:f, model tiny-llama, "
        "bfloat16, FAULT A4 PLANTED",
        "versions: torch 2",
        "suite: --attention without a path runs the checks shipped in gaudi_validate.suite",
    ]
