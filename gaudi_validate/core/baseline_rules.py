"""Verdicts on a measurement against its recorded baseline: exact counts, memory peaks, speed. Pure.

A baseline is a number per hardware with its provenance. Counts are exact: a rise fails, a fall is an improvement to
be recorded. Speed needs five recordings on different occasions before it judges; fewer are provisional.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from gaudi_validate.core.evidence import Measurement
from gaudi_validate.core.gates import Limit, Verdict, exact_count, memory_head
from gaudi_validate.core.verdicts import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

Number = int | float

SPEED_LIMITS: dict[str, Limit] = {
    "occasions": Limit(5, "occasions", "acceptance rule: recordings on 5+ different occasions make a baseline"),
    "occasion_gap": Limit(3600, "s", "runs within the hour share the machine's clocks, heat and neighbours"),
    "band": Limit(0.05, "", "acceptance rule: the band is max(5 %, 3 robust sd)"),
    "band_sd": Limit(3, "robust sd", "acceptance rule: the band is max(5 %, 3 robust sd)"),
    "runs_below": Limit(2, "runs", "acceptance rule: two runs below the band fail"),
}
# The median absolute deviation of a normal sample is its standard deviation over this.
MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What one run recorded. ``date``: UTC, ISO 8601."""

    date: str
    value: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A recorded number.

    ``kind``: "count" (exact, lower is better: graphs, bytes counted, operators), "memory" (a device's peak in bytes) or
    "speed". ``tolerance``: declared, relative; 0 is exact. ``anchor``: the speed that was pinned when the baseline was
    complete, so that it cannot drift away in small steps.
    """

    name: str
    value: Number
    unit: str
    kind: str
    better: str
    tolerance: float
    hardware: str
    sessions: tuple[Session, ...]
    anchor: Number | None = None
    device: str | None = None

    @property
    def occasions(self) -> int:
        """How many recordings are at least an hour apart."""
        return occasions([one.date for one in self.sessions])

    @property
    def provisional(self) -> bool:
        """Whether a speed baseline is still too thin to judge by. Counts are exact from the first."""
        return self.kind == "speed" and self.occasions < SPEED_LIMITS["occasions"].value


def occasions(dates: Sequence[str]) -> int:
    """Return how many different occasions ``dates`` (UTC, ISO 8601) are; runs within the hour of one are the same."""
    gap = timedelta(seconds=SPEED_LIMITS["occasion_gap"].value)
    count, last = 0, None
    for moment in sorted(moment_of(date) for date in dates):
        if last is None or moment - last >= gap:
            count, last = count + 1, moment
    return count


def moment_of(date: str) -> datetime:
    """Return the moment, UTC where nothing is said. Python 3.10 does not read the "Z" that stands for it."""
    moment = datetime.fromisoformat(date.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def robust_sd(values: Sequence[Number]) -> float:
    """Return the standard deviation that the median absolute deviation of ``values`` implies."""
    middle = statistics.median(values)
    return MAD_TO_SD * statistics.median(abs(value - middle) for value in values)


def band(baseline: Baseline) -> float:
    """Return the relative half-width within which a speed is as recorded: max(5 %, 3 robust sd, the declared one)."""
    spread = SPEED_LIMITS["band_sd"].value * robust_sd([one.value for one in baseline.sessions])
    relative = spread / abs(baseline.value) if baseline.value else math.inf
    return max(SPEED_LIMITS["band"].value, relative, baseline.tolerance)


def worst_allowed(baseline: Baseline) -> float:
    """Return the bar of a speed: the band's far side, from the recorded value or the anchor, whichever is stricter."""
    width = band(baseline)
    if baseline.better == "higher":
        return max(baseline.value, _anchor(baseline)) * (1 - width)
    return min(baseline.value, _anchor(baseline)) * (1 + width)


def _anchor(baseline: Baseline) -> Number:
    return baseline.value if baseline.anchor is None else baseline.anchor


def judge(
    baseline: Baseline | None,
    values: Sequence[Number],
    *,
    name: str,
    unit: str,
    hardware: str,
    create: str,
    device: str | None = None,
) -> Verdict:
    """Judge what this run measured against ``baseline``.

    Args:
        baseline: what is recorded for this hardware key, ``None`` for nothing.
        values: this run's values, one a repeated measurement; counts and peaks are judged by the last.
        name: the metric.
        unit: of ``values``.
        hardware: this run's key.
        create: the command that records a baseline.
        device: this machine in words; a wall-clock number of another machine is not comparable.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a verdict needs at least one value")
    measured = Measurement(name=name, value=values[-1], unit=unit)
    if baseline is None:
        reason = f"{name} {values[-1]} {unit}, no baseline on {hardware} yet; record one with: {create}"
        return Verdict(status=Status.NO_BASELINE, reason=reason, measurements=(measured,))
    mismatch = _mismatch(baseline, unit, hardware, device)
    if mismatch is not None:
        return Verdict(status=Status.ENV_MISMATCH, reason=f"{name}: {mismatch}", measurements=(measured,))
    if not math.isfinite(values[-1]):
        return Verdict(status=Status.NOT_MEASURED, reason=f"{name} is {values[-1]}", measurements=(measured,))
    if baseline.kind == "speed":
        return _speed(baseline, values, create)
    if baseline.kind == "memory":
        return memory_head(int(baseline.value), int(values[-1]), counted=False)
    return _count(baseline, int(values[-1]))


def _mismatch(baseline: Baseline, unit: str, hardware: str, device: str | None) -> str | None:
    """Return why the two cannot be compared."""
    if baseline.hardware != hardware:
        return f"its baseline was recorded on {baseline.hardware}, this run is on {hardware}"
    if baseline.unit != unit:
        return f"its baseline is in {baseline.unit or 'no unit'}, this run measured {unit or 'no unit'}"
    if baseline.kind == "speed" and device and baseline.device and device != baseline.device:
        return f"its baseline was recorded on {baseline.device}, this machine is {device}"
    return None


def _count(baseline: Baseline, value: int) -> Verdict:
    """Exactly, or within the tolerance that the baseline declares."""
    allowed = math.floor(baseline.value * (1 + baseline.tolerance))
    verdict = exact_count(baseline.name, int(baseline.value), value, baseline.unit)
    if verdict.status is not Status.FAIL or value > allowed or not baseline.tolerance:
        return verdict
    measurement = Measurement(name=baseline.name, value=value, unit=baseline.unit, limit=allowed)
    reason = f"{verdict.reason}, within the {allowed} that its baseline's tolerance of {baseline.tolerance:g} allows"
    return Verdict(status=Status.PASS, reason=reason, measurements=(measurement,))


def _speed(baseline: Baseline, values: Sequence[Number], create: str) -> Verdict:
    """Two runs past the bar fail, one is inconclusive; past the band's near side is an improvement."""
    name, unit, seen = baseline.name, baseline.unit, baseline.occasions
    if baseline.provisional:
        needed = SPEED_LIMITS["occasions"].value
        figures = f"{name} {values[-1]:.4g} {unit}, recorded {baseline.value:.4g}"
        reason = f"{figures}; provisional: {seen} of {needed:g} occasions, nothing is judged; record another: {create}"
        measured = Measurement(name=name, value=values[-1], unit=unit)
        return Verdict(status=Status.INCONCLUSIVE, reason=reason, measurements=(measured,))
    bar, width = worst_allowed(baseline), band(baseline)
    measurement = Measurement(name=name, value=values[-1], unit=unit, limit=bar, better=baseline.better)
    beyond = [value for value in values if (value < bar if baseline.better == "higher" else value > bar)]
    status, text = Status.PASS, f"within {width:.1%} of the recorded {baseline.value:.4g}"
    if len(beyond) >= SPEED_LIMITS["runs_below"].value:
        status, text = Status.FAIL, f"past the bar {bar:.4g} in {len(beyond)} runs, recorded {baseline.value:.4g}"
    elif beyond:
        status, text = Status.INCONCLUSIVE, f"past the bar {bar:.4g} in 1 of {len(values)} runs, two fail: run again"
    elif _improved(baseline, values, width):
        status, text = Status.IMPROVED, f"more than {width:.1%} better than the recorded {baseline.value:.4g}"
    reason = f"{name} {values[-1]:.4g} {unit}, {text} ({seen} occasions)"
    return Verdict(status=status, reason=reason, measurements=(measurement,))


def _improved(baseline: Baseline, values: Sequence[Number], width: float) -> bool:
    if baseline.better == "higher":
        return min(values) > baseline.value * (1 + width)
    return max(values) < baseline.value * (1 - width)


def loosened(before: Baseline, after: Baseline) -> str | None:
    """Return what recording ``after`` in the place of ``before`` would loosen, ``None`` for nothing."""
    if (before.kind, before.unit, before.better) != (after.kind, after.unit, after.better):
        return f"{before.kind} in {before.unit}, {before.better} is better, becomes {after.kind} in {after.unit}"
    if after.tolerance > before.tolerance:
        return f"its tolerance rises from {before.tolerance:g} to {after.tolerance:g}"
    if before.kind != "speed":
        return f"it rises from {before.value} to {after.value}" if after.value > before.value else None
    if after.occasions < before.occasions:
        there, here = before.device or before.hardware, after.device or after.hardware
        return f"{before.occasions} occasions on {there} would be dropped for {after.occasions} on {here}"
    if before.provisional:
        return None
    old, new = worst_allowed(before), worst_allowed(after)
    worse = new < old if before.better == "higher" else new > old
    return f"its bar moves from {old:.4g} to {new:.4g} {before.unit}" if worse else None
