"""Gates: pure rules from measurements to a verdict with its reason. Standard library only.

The statistics themselves (p-values, intervals) come from measure.statistics, as a :class:`Comparison`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gaudi_validate.core.evidence import Measurement
from gaudi_validate.core.verdicts import Status, worst

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Limit:
    """One constant of a rule, its unit, and what set it."""

    value: float
    unit: str
    source: str


LIMITS: dict[str, Limit] = {
    "regressed_ratio": Limit(0.97, "x", "acceptance rule: a loss of 3 % is the smallest that anyone acts on"),
    "regressed_p": Limit(
        0.01, "", "acceptance rule: exact one-sided Mann-Whitney; two rounds make a false alarm one in 10000"
    ),
    "regressed_rounds": Limit(2, "rounds", "acceptance rule: seen twice"),
    "non_inferior_ratio": Limit(0.95, "x", "acceptance rule: non-inferior at 5 %"),
    "samples": Limit(
        5, "repetitions", "at 5 a side the smallest exact p is 1/252; at 4 it is 1/70 and p <= 0.01 cannot be reached"
    ),
    "cv": Limit(0.10, "", "acceptance rule: above it even a loss of 10 % is within the noise of 7 repetitions"),
    "memory_slope": Limit(1.2, "", "acceptance rule: a linear path shows 1 or less, a whole score matrix 2"),
    "naive_slope": Limit(
        1.8, "", "counted: 1.99 for a whole score matrix; below 1.8 the lengths are too short to tell"
    ),
    "bytes_a_pair": Limit(1.0, "bytes", "counted: no score is kept, and of masks a bool one at most; additive bf16: 2"),
    "mask_kept": Limit(
        1.0, "x", "optimum-habana PR #1302: a bool mask takes one byte a query and key, an integer one 4"
    ),
    "mask_peak": Limit(2.0, "x", "counted: bool masks are built within 1 to 2, additive bf16 ones take 3, integers 5"),
    "cache_copies": Limit(0.0, "copies", "counts are exact: grouped views copy nothing of the KV cache in decoding"),
    "memory_head_factor": Limit(1.02, "x", "acceptance rule: a device's allocator rounds and fragments"),
    "memory_head_bytes": Limit(16 * 1024**2, "bytes", "acceptance rule: the same, for small peaks"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sets of timings compared; ratios are before over after, so that above 1 after is faster.

    ``low`` and ``high`` bound ``ratio``, each at 95 % on its own. ``p_slower``: exact one-sided p for "after is
    slower". ``detectable_ratio``: the ratio, below 1, that would be called slower four times in five. ``cv``: the
    worse of the two robust coefficients of variation.
    """

    before_samples: int
    after_samples: int
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_slower: float = math.nan
    detectable_ratio: float = math.nan
    cv: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of a gate, one line that says why, and the numbers with the limits they were held against."""

    status: Status
    reason: str
    measurements: tuple[Measurement, ...] = ()


def regressed(comparison: Comparison) -> bool:
    """Return whether this round by itself shows a loss; only a second one makes it a regression."""
    return comparison.ratio < LIMITS["regressed_ratio"].value and comparison.p_slower <= LIMITS["regressed_p"].value


def non_inferior(comparison: Comparison) -> bool:
    """Return whether a loss of 5 % is ruled out."""
    return comparison.low > LIMITS["non_inferior_ratio"].value


def paired_speed(rounds: Sequence[Comparison]) -> Verdict:
    """Judge after against before from one or more independent rounds.

    FAIL iff two rounds show a loss; PASS iff every round rules out a loss of 5 %; else INCONCLUSIVE, with the loss
    that could have been seen. One round is enough to pass; a loss needs a second.

    Raises:
        ValueError: no round.
    """
    last = rounds[-1] if rounds else _no_rounds()
    measurements = _speed_measurements(last, LIMITS["regressed_ratio"].value)
    lost = sum(map(regressed, rounds))
    figures = f"ratio {last.ratio:.3f} (95 % bounds {last.low:.3f} to {last.high:.3f}), p {last.p_slower:.2g}"
    if (missing := _not_measured(rounds)) is not None:
        return Verdict(status=Status.NOT_MEASURED, reason=missing, measurements=measurements)
    if lost >= LIMITS["regressed_rounds"].value:
        return Verdict(status=Status.FAIL, reason=f"slower in {lost} rounds: {figures}", measurements=measurements)
    if lost:
        reason = f"slower in 1 of {len(rounds)} rounds, two are needed: last {figures}"
    elif all(map(non_inferior, rounds)):
        return Verdict(status=Status.PASS, reason=f"not 5 % slower: {figures}", measurements=measurements)
    else:
        reason = f"a loss of 5 % is not ruled out: {figures}; ratios above {last.detectable_ratio:.3f} could be missed"
    return Verdict(status=Status.INCONCLUSIVE, reason=reason, measurements=measurements)


def faster_than(comparison: Comparison, required: float) -> Verdict:
    """Judge whether after is at least ``required`` times as fast as before (0.8: may take 1.25 times as long).

    PASS when the lower bound reaches it, FAIL when the upper bound does not, else INCONCLUSIVE.
    """
    measurements = _speed_measurements(comparison, required)
    if (missing := _not_measured([comparison])) is not None:
        return Verdict(status=Status.NOT_MEASURED, reason=missing, measurements=measurements)
    figures = f"{comparison.ratio:.2f}x (95 % bounds {comparison.low:.2f} to {comparison.high:.2f})"
    if comparison.low >= required:
        return Verdict(status=Status.PASS, reason=f"{figures}, {required:g}x required", measurements=measurements)
    if comparison.high < required:
        return Verdict(
            status=Status.FAIL, reason=f"{figures}, below the {required:g}x required", measurements=measurements
        )
    reason = f"{figures}, {required:g}x required lies within the bounds"
    return Verdict(status=Status.INCONCLUSIVE, reason=reason, measurements=measurements)


def memory_ratio(saving_bytes: int, naive_bytes: int, declared: float) -> Verdict:
    """Judge the memory-saving path's peak over the naive path's against the ``declared`` ratio."""
    ratio = saving_bytes / naive_bytes if naive_bytes else math.inf
    measurements = (
        Measurement(name="peak", value=saving_bytes, unit="bytes"),
        Measurement(name="naive peak", value=naive_bytes, unit="bytes"),
        Measurement(name="peak over naive", value=_finite(ratio), unit="x", limit=declared),
    )
    within = ratio <= declared
    reason = f"peak {mib(saving_bytes)} is {ratio:.4g} of naive's {mib(naive_bytes)}, {declared:.4g} allowed"
    return Verdict(status=Status.PASS if within else Status.FAIL, reason=reason, measurements=measurements)


def memory_slope(lengths: Sequence[int], peaks_bytes: Sequence[int]) -> Verdict:
    """Judge how a memory-saving path's peak grows with length: the steepest step of log peak over log length.

    The steepest step rather than a fit, so that a path which falls back to naive above some length is seen.
    """
    limit = LIMITS["memory_slope"].value
    slope = steepest_slope(lengths, peaks_bytes)
    measurements = (Measurement(name="memory slope", value=_finite(slope), unit="", limit=limit),)
    grown = ", ".join(f"{mib(peak)} at {length}" for length, peak in zip(lengths, peaks_bytes, strict=True))
    status = Status.PASS if slope <= limit else Status.FAIL
    return Verdict(
        status=status, reason=f"peak grows as length^{slope:.2f}, {limit:g} allowed: {grown}", measurements=measurements
    )


def naive_slope(lengths: Sequence[int], peaks_bytes: Sequence[int]) -> Verdict:
    """Judge whether these lengths can tell a path that keeps the whole score matrix: naive's own slope must show it."""
    limit = LIMITS["naive_slope"].value
    slope = steepest_slope(lengths, peaks_bytes)
    measurement = Measurement(name="naive memory slope", value=_finite(slope), unit="", limit=limit, better="higher")
    if slope >= limit:
        return Verdict(status=Status.PASS, reason=f"naive's slope is {slope:.2f}", measurements=(measurement,))
    reason = f"naive's own peak grows as length^{slope:.2f} only, {limit:g} needed: take longer lengths"
    return Verdict(status=Status.INCONCLUSIVE, reason=reason, measurements=(measurement,))


def within(measurement: Measurement, reason: str) -> Verdict:
    """Judge one number against its own limit; ``reason`` says what it is, the limit is added.

    Raises:
        ValueError: the measurement has no limit.
    """
    if measurement.within is None:
        raise ValueError(f"{measurement.name} has no limit to be judged against")
    bound = "allowed" if measurement.better == "lower" else "required"
    return Verdict(
        status=Status.PASS if measurement.within else Status.FAIL,
        reason=f"{reason}, {measurement.limit:.4g} {bound}",
        measurements=(measurement,),
    )


def combined(verdicts: Sequence[Verdict], also: Sequence[Measurement] = ()) -> Verdict:
    """Return the gravest status, the reasons of the verdicts that have it, and all measurements, ``also`` last."""
    status = worst([verdict.status for verdict in verdicts])
    reason = "; ".join(verdict.reason for verdict in verdicts if verdict.status is status)
    measurements = tuple(m for verdict in verdicts for m in verdict.measurements)
    return Verdict(status=status, reason=reason, measurements=(*measurements, *also))


def memory_pairs(lengths: Sequence[int], peaks_bytes: Sequence[int], batch: int) -> Verdict:
    """Judge the bytes that a memory-saving path keeps for each query and key of a batch row: of a bool mask at most.

    Exact where peaks are counted: constant and linear parts fall out, so that a mask of 32-bit integers is seen beside
    much larger blocks of scores, where the slope hardly moves.
    """
    limit = LIMITS["bytes_a_pair"].value
    pairs = round(quadratic_part(lengths, peaks_bytes) / batch, 3)
    measurement = Measurement(name="bytes a query and key", value=pairs, unit="bytes", limit=limit)
    return within(measurement, f"{pairs:g} bytes are kept for each query and key")


def quadratic_part(lengths: Sequence[int], peaks_bytes: Sequence[int]) -> float:
    """Return c of peak = a + b length + c length^2 through the three longest lengths."""
    (x0, x1, x2), (y0, y1, y2) = lengths[-3:], peaks_bytes[-3:]
    return ((y2 - y1) / (x2 - x1) - (y1 - y0) / (x1 - x0)) / (x2 - x0)


def steepest_slope(lengths: Sequence[int], peaks_bytes: Sequence[int]) -> float:
    """Return the largest slope of log peak over log length between neighbours; infinite from a peak of 0.

    Raises:
        ValueError: fewer than three lengths, or lengths that do not rise.
    """
    if len(lengths) < 3 or any(a >= b for a, b in itertools.pairwise(lengths)):
        raise ValueError(f"a slope needs three or more rising lengths, not {list(lengths)}")
    if min(peaks_bytes) <= 0:
        return math.inf if max(peaks_bytes) > 0 else 0.0
    points = [(math.log(length), math.log(peak)) for length, peak in zip(lengths, peaks_bytes, strict=True)]
    return max((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in itertools.pairwise(points))


def memory_head(base_bytes: int, head_bytes: int, *, counted: bool) -> Verdict:
    """Judge a peak against its baseline: exactly where it was ``counted``, with the allowance of a device else."""
    if counted:
        return exact_count("peak", base_bytes, head_bytes, "bytes")
    allowed = base_bytes * LIMITS["memory_head_factor"].value + LIMITS["memory_head_bytes"].value
    measurement = Measurement(name="peak", value=head_bytes, unit="bytes", limit=allowed)
    reason = f"peak {mib(head_bytes)}, baseline {mib(base_bytes)}, {mib(allowed)} allowed"
    return Verdict(
        status=Status.PASS if head_bytes <= allowed else Status.FAIL, reason=reason, measurements=(measurement,)
    )


def exact_count(name: str, base: int, head: int, unit: str) -> Verdict:
    """Judge a count against its baseline: a rise fails, a fall is an improvement to be recorded."""
    measurement = Measurement(name=name, value=head, unit=unit, limit=base)
    if head == base:
        return Verdict(status=Status.PASS, reason=f"{name} {head} {unit}, as recorded", measurements=(measurement,))
    status, verb = (Status.FAIL, "rose") if head > base else (Status.IMPROVED, "fell")
    reason = f"{name} {verb} from {base} to {head} {unit} ({head - base:+d})"
    return Verdict(status=status, reason=reason, measurements=(measurement,))


def mib(count: float) -> str:
    """Return ``count`` bytes in binary units, for a reader."""
    power = min(int(math.log2(max(abs(count), 1)) // 10), 3)
    return f"{count:.0f} B" if power == 0 else f"{count / 1024**power:.2f} {'KMG'[power - 1]}iB"


def _not_measured(rounds: Sequence[Comparison]) -> str | None:
    for comparison in rounds:
        fewest = min(comparison.before_samples, comparison.after_samples)
        if fewest < LIMITS["samples"].value:
            return f"{fewest} valid repetitions a side, {LIMITS['samples'].value:g} needed"
        if not comparison.cv <= LIMITS["cv"].value:
            return f"timings vary by {comparison.cv:.1%}, {LIMITS['cv'].value:.0%} allowed: is the machine busy?"
    return None


def _speed_measurements(comparison: Comparison, limit: float) -> tuple[Measurement, ...]:
    return (
        Measurement(name="speed ratio", value=_finite(comparison.ratio), unit="x", limit=limit, better="higher"),
        Measurement(name="speed ratio, lower bound", value=_finite(comparison.low), unit="x"),
        Measurement(name="speed ratio, upper bound", value=_finite(comparison.high), unit="x"),
        Measurement(name="p slower", value=_finite(comparison.p_slower), unit=""),
        Measurement(name="detectable ratio", value=_finite(comparison.detectable_ratio), unit="x"),
        Measurement(name="coefficient of variation", value=_finite(comparison.cv), unit="", limit=LIMITS["cv"].value),
        Measurement(name="repetitions a side", value=min(comparison.before_samples, comparison.after_samples), unit=""),
    )


def _finite(value: float) -> float | None:
    """Return ``value``, or None for what JSON cannot hold."""
    return value if math.isfinite(value) else None


def _no_rounds() -> Comparison:
    raise ValueError("a verdict on speed needs at least one round")
