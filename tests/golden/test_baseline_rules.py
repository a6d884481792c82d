"""Baselines: exact counts, device memory, speed bands; and which updates loosen a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gaudi_validate.core.baseline_rules import Baseline, Session, band, judge, loosened, occasions, worst_allowed
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import Run, apply

from .builders import metric_proposal, run

if TYPE_CHECKING:
    from pathlib import Path

    from gaudi_validate.core.gates import Verdict
    from gaudi_validate.core.golden_rules import Decision
    from gaudi_validate.golden.records import Metric

MIB = 1024**2
CREATE = "pytest --update-golden"


def count(value: int = 32, **changes: Any) -> Baseline:
    fields: dict[str, Any] = {"name": "graphs", "unit": "graphs", "kind": "count", "better": "lower", "tolerance": 0.0}
    fields |= {"hardware": "cpu", "sessions": (Session(date="2025-01-01T00:00:00Z", value=value),)}
    return Baseline(value=value, **{**fields, **changes})


def speed(values: list[float], **changes: Any) -> Baseline:
    sessions = tuple(Session(date=f"2025-01-0{1 + day}T00:00:00Z", value=value) for day, value in enumerate(values))
    fields: dict[str, Any] = {"name": "decode", "unit": "tok/s", "kind": "speed", "better": "higher", "tolerance": 0.0}
    middle = sorted(values)[len(values) // 2]
    return Baseline(value=middle, **{**fields, "hardware": "cpu", "sessions": sessions, **changes})


def verdict(baseline: Baseline | None, *values: float, unit: str = "graphs", **changes: Any) -> Verdict:
    options: dict[str, Any] = {"name": "graphs", "unit": unit, "hardware": "cpu", "create": CREATE, **changes}
    return judge(baseline, values, **options)


def said(found: Verdict) -> tuple[Status, str]:
    return found.status, found.reason


def test_no_baseline_names_the_command_that_makes_one() -> None:
    assert said(verdict(None, 32)) == (
        Status.NO_BASELINE,
        "graphs 32 graphs, no baseline on cpu yet; record one with: pytest --update-golden",
    )


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (32, Status.PASS, "graphs 32 graphs, as recorded"),
        (33, Status.FAIL, "graphs rose from 32 to 33 graphs (+1)"),
        (31, Status.IMPROVED, "graphs fell from 32 to 31 graphs (-1)"),
    ],
)
def test_a_count_is_exact(value: int, status: Status, reason: str) -> None:
    assert said(verdict(count(), value)) == (status, reason)


def test_a_count_is_as_loose_as_its_baseline_says() -> None:
    loose = count(100, tolerance=0.02)
    assert said(verdict(loose, 102)) == (
        Status.PASS,
        "graphs rose from 100 to 102 graphs (+2), within the 102 that its baseline's tolerance of 0.02 allows",
    )
    assert verdict(loose, 103).status is Status.FAIL


def test_device_memory_has_the_device_s_allowance() -> None:
    baseline = count(100 * MIB, name="peak", unit="bytes", kind="memory")
    assert verdict(baseline, 118 * MIB, unit="bytes").status is Status.PASS
    assert verdict(baseline, 119 * MIB, unit="bytes").status is Status.FAIL


@pytest.mark.parametrize(
    ("baseline", "options", "reason"),
    [
        (count(hardware="gaudi2"), {}, "graphs: its baseline was recorded on gaudi2, this run is on cpu"),
        (count(unit="ops"), {}, "graphs: its baseline is in ops, this run measured graphs"),
        (
            speed([10.0] * 5, device="Xeon A", unit="graphs"),
            {"device": "Xeon B"},
            "graphs: its baseline was recorded on Xeon A, this machine is Xeon B",
        ),
    ],
)
def test_what_cannot_be_compared_is_a_mismatch(baseline: Baseline, options: dict[str, str], reason: str) -> None:
    assert said(verdict(baseline, 33, **options)) == (Status.ENV_MISMATCH, reason)


def test_counts_do_not_depend_on_the_machine() -> None:
    assert verdict(count(device="Xeon A"), 32, device="Xeon B").status is Status.PASS


def test_a_thin_speed_baseline_judges_nothing() -> None:
    assert said(verdict(speed([100.0] * 4), 1.0, unit="tok/s")) == (
        Status.INCONCLUSIVE,
        "decode 1 tok/s, recorded 100; provisional: 4 of 5 occasions, nothing is judged; "
        "record another: pytest --update-golden",
    )


@pytest.mark.parametrize(
    ("values", "status", "reason"),
    [
        ((96.0,), Status.PASS, "decode 96 tok/s, within 5.0% of the recorded 100 (5 occasions)"),
        (
            (94.0,),
            Status.INCONCLUSIVE,
            "decode 94 tok/s, past the bar 95 in 1 of 1 runs, two fail: run again (5 occasions)",
        ),
        (
            (94.0, 96.0),
            Status.INCONCLUSIVE,
            "decode 96 tok/s, past the bar 95 in 1 of 2 runs, two fail: run again (5 occasions)",
        ),
        ((94.0, 93.0), Status.FAIL, "decode 93 tok/s, past the bar 95 in 2 runs, recorded 100 (5 occasions)"),
        ((106.0,), Status.IMPROVED, "decode 106 tok/s, more than 5.0% better than the recorded 100 (5 occasions)"),
    ],
)
def test_two_runs_below_the_band_fail(values: tuple[float, ...], status: Status, reason: str) -> None:
    assert said(verdict(speed([100.0] * 5), *values, unit="tok/s")) == (status, reason)


def test_latency_is_judged_the_other_way_round() -> None:
    latency = speed([100.0] * 5, better="lower", unit="ms")
    assert [verdict(latency, *values, unit="ms").status for values in ((106.0, 107.0), (94.0,), (103.0,))] == [
        Status.FAIL,
        Status.IMPROVED,
        Status.PASS,
    ]


def test_the_band_follows_the_noise_of_the_recordings() -> None:
    noisy = speed([90.0, 95.0, 100.0, 105.0, 110.0])
    assert band(noisy) == pytest.approx(3 * 1.4826 * 5 / 100)
    assert band(speed([100.0] * 5)) == 0.05


def test_an_anchor_stops_slow_drift() -> None:
    drifted = speed([90.0] * 5, anchor=100.0)
    assert worst_allowed(drifted) == 95.0
    assert verdict(drifted, 90.0, 90.0, unit="tok/s").status is Status.FAIL
    assert worst_allowed(speed([110.0] * 5, anchor=100.0)) == pytest.approx(104.5)


def test_nan_is_not_measured() -> None:
    assert said(verdict(speed([100.0] * 5), float("nan"), unit="tok/s", name="decode")) == (
        Status.NOT_MEASURED,
        "decode is nan",
    )


def test_no_values_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        verdict(count())


def test_runs_within_the_hour_are_one_occasion() -> None:
    dates = [
        "2025-01-01T00:00:00Z",
        "2025-01-01T00:59:59Z",
        "2025-01-01T01:00:00Z",
        "2025-01-01T01:30:00",
        "2025-01-02T00:00:00+00:00",
    ]
    assert occasions(dates) == 3
    assert occasions([]) == 0


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (count(32), count(31), None),
        (count(32), count(33), "it rises from 32 to 33"),
        (count(32), count(32, tolerance=0.1), "its tolerance rises from 0 to 0.1"),
        (count(32), count(32, unit="ops"), "count in graphs, lower is better, becomes count in ops"),
        (speed([100.0] * 5), speed([90.0] * 5), "its bar moves from 95 to 85.5 tok/s"),
        (speed([100.0] * 5), speed([90.0] * 5, anchor=100.0), None),
        (speed([100.0] * 4), speed([90.0] * 5), None),
    ],
)
def test_what_loosens_a_bar(before: Baseline, after: Baseline, what: str | None) -> None:
    assert loosened(before, after) == what


# How updates keep baselines.


def record(store: GoldenStore, value: float, *, day: int = 1, reason: str | None = None, **changes: Any) -> Decision:
    by = run(reason=reason, date=f"2025-01-{day:02}T00:00:00Z")
    decisions = apply([metric_proposal(value, **changes)], by, store, not_full="part")
    return decisions[0]


def metric_of(store: GoldenStore, name: str = "graphs") -> Metric:
    baselines = store.baselines("cpu")
    assert baselines is not None
    return baselines.metrics[name]


SPEED = {"rule": "speed", "unit": "tok/s", "better": "higher", "metric": "decode"}


def test_a_rise_needs_a_reason_and_a_fall_does_not(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    assert str(record(store, 32)) == "created baselines/cpu: graphs"
    assert str(record(store, 32)) == "unchanged baselines/cpu: graphs"
    assert str(record(store, 33)) == (
        "refused baselines/cpu: graphs: it rises from 32 to 33; say why with --golden-reason"
    )
    assert metric_of(store).value == 32
    assert str(record(store, 30)) == "updated baselines/cpu: graphs"
    assert str(record(store, 33, reason="one bucket more")) == "updated baselines/cpu: graphs"
    assert [one.value for one in metric_of(store).sessions] == [32, 30, 33]
    assert [one.reason for one in metric_of(store).provenance] == ["create", "create", "one bucket more"]


def test_what_is_recorded_already_needs_no_logic_parity(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    record(store, 32)
    without = Run(evidence=[], provenance=run().provenance)
    assert [str(one) for one in apply([metric_proposal(32)], without, store, not_full="part")] == [
        "unchanged baselines/cpu: graphs"
    ]
    other = Run(evidence=[], provenance=run(hardware="gaudi2").provenance)
    assert [str(one) for one in apply([metric_proposal(32)], other, store, not_full="part")] == [
        "refused baselines/cpu: graphs: measured on cpu, this run is for gaudi2"
    ]


def test_a_wider_tolerance_needs_a_reason(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    record(store, 32)
    assert str(record(store, 32, tolerance=0.1)) == (
        "refused baselines/cpu: graphs: its tolerance rises from 0 to 0.1; say why with --golden-reason"
    )


def test_five_occasions_make_a_speed_baseline_and_pin_its_anchor(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    said = [str(record(store, value, day=day, **SPEED)) for day, value in enumerate((99.0, 100.0, 101.0, 100.0), 1)]
    assert said == [
        "created baselines/cpu: decode: provisional, 1 of 5 occasions",
        *(f"updated baselines/cpu: decode: provisional, {count} of 5 occasions" for count in (2, 3, 4)),
    ]
    assert metric_of(store, "decode").anchor is None
    assert str(record(store, 102.0, day=5, **SPEED)) == "updated baselines/cpu: decode"
    assert (metric_of(store, "decode").value, metric_of(store, "decode").anchor) == (100.0, 100.0)


def test_a_speed_cannot_drift_below_its_anchor_without_a_reason(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    for day in range(1, 6):
        record(store, 100.0, day=day, **SPEED)
    said = [str(record(store, 97.0, day=day, **SPEED)) for day in range(6, 13)]
    assert said[-1] == (
        "refused baselines/cpu: decode: its bar moves from 95 to 93.23 tok/s; say why with --golden-reason"
    )
    assert worst_allowed(metric_of(store, "decode").baseline("decode")) == 95.0
    for day in range(13, 20):
        record(store, 97.0, day=day, reason="slower and safer", **SPEED)
    assert (metric_of(store, "decode").value, metric_of(store, "decode").anchor) == (97.0, 97.0)


def test_another_machine_s_speed_starts_a_new_list_and_needs_a_reason(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    for day in range(1, 6):
        apply(
            [metric_proposal(100.0, **SPEED)],
            run(date=f"2025-01-0{day}T00:00:00Z", device="Xeon A"),
            store,
            not_full="",
        )
    other = run(date="2025-01-07T00:00:00Z", device="Xeon B")
    decision = apply([metric_proposal(50.0, **SPEED)], other, store, not_full="")[0]
    assert str(decision) == (
        "refused baselines/cpu: decode: 5 occasions on Xeon A would be dropped for 1 on Xeon B; "
        "say why with --golden-reason"
    )
    assert len(metric_of(store, "decode").sessions) == 5


def test_two_counts_of_one_run_that_differ_are_refused(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    decisions = apply([metric_proposal(3), metric_proposal(4)], run(), store, not_full="part")
    assert str(decisions[0]) == (
        "refused baselines/cpu: graphs: measured as 3 graphs, 4 graphs in one run: give each its own name"
    )


def test_a_count_with_a_fraction_is_refused(tmp_path: Path) -> None:
    store = GoldenStore(tmp_path / "golden")
    assert str(record(store, 3.5)) == (
        "refused baselines/cpu: graphs: cannot be a baseline: a count is whole numbers, of which lower is better"
    )
