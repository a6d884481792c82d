"""The summary of a run as data: how often each verdict came, one row a group of like checks, what to run next."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gaudi_validate.core.verdicts import Status, fails, worst

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gaudi_validate.core.evidence import Evidence, Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All evidence of one check, model, port and dtype: the gravest verdict and the figure nearest its limit."""

    check: str
    model: str
    port: str
    dtype: str
    status: Status
    cases: int
    not_passed: int
    figure: str


def count_line(evidence: Iterable[Evidence]) -> str:
    """Return how often each verdict came, every status always, the gravest first."""
    statuses = [one.status for one in evidence]
    return ", ".join(f"{statuses.count(status)} {status}" for status in reversed(Status))


def rows(evidence: Iterable[Evidence]) -> list[Row]:
    """Return one row a (check, model, port, dtype), the gravest first, else by name: workers finish in any order."""
    groups: dict[tuple[str, str, str, str], list[Evidence]] = {}
    for one in evidence:
        groups.setdefault((one.check, one.model, one.port, one.dtype), []).append(one)
    order = list(Status)
    ordered = [_row(groups[key]) for key in sorted(groups)]
    return sorted(ordered, key=lambda row: -order.index(row.status))


def _row(group: Sequence[Evidence]) -> Row:
    first = group[0]
    return Row(
        check=first.check,
        model=first.model,
        port=first.port,
        dtype=first.dtype,
        status=worst([one.status for one in group]),
        cases=len(group),
        not_passed=sum(one.status is not Status.PASS for one in group),
        figure=_figure(group),
    )


def _figure(group: Sequence[Evidence]) -> str:
    """Return the headline figure nearest to its limit, or whatever is furthest past its own, and the scenario.

    The first limit of a record is its headline; the others (counts that must agree) matter once they are broken.
    """
    limited = [[(one, item) for item in one.measurements if item.limit is not None] for one in group]
    broken = [pair for pairs in limited for pair in pairs if not pair[1].within]
    headlines = [pairs[0] for pairs in limited if pairs]
    if broken or headlines:
        one, item = max(broken or headlines, key=lambda pair: strain(pair[1]))
        limit = f"{'limit' if item.better == 'lower' else 'at least'} {number(item.limit)}"
        where = f" ({one.scenario})" if len(group) > 1 and one.scenario else ""
        return f"{item.name} {number(item.value)}{_unit(item)}, {limit}{where}"
    reported = [item for one in group for item in one.measurements]
    return f"{reported[0].name} {number(reported[0].value)}{_unit(reported[0])}" if reported else ""


def _unit(item: Measurement) -> str:
    return f" {item.unit}" if item.unit and item.unit != "1" else ""


def strain(item: Measurement) -> float:
    """Return how far ``item`` is along to its limit: 1 at it, above 1 past it, infinite for NaN or no value."""
    if item.value is None or item.value != item.value:
        return math.inf
    value, limit = float(item.value), float(item.limit or 0.0)
    part, whole = (value, limit) if item.better == "lower" else (limit, value)
    if whole == 0:
        return 0.0 if part <= 0 else math.inf
    return part / whole


def number(value: float | None) -> str:
    """Return ``value`` in at most four significant digits; "not measured" for ``None``."""
    if value is None:
        return "not measured"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ") if abs(value) >= 10_000 else str(value)
    return f"{value:.3g}"


def next_command(evidence: Sequence[Evidence], *, strict: bool, record: str | None) -> tuple[str, str] | None:
    """Return (why, the shell command to run next), the gravest need first; ``None`` when nothing is left to do.

    ``record`` is the command that records goldens and baselines, ``None`` where this run has done so.
    """
    for status in reversed(Status):
        for one in evidence:
            if one.status is status and fails(status, strict=strict) and one.reproduce:
                return f"the first {status} alone", one.reproduce
    if record is not None and any(one.status is Status.NO_BASELINE for one in evidence):
        return "record what has no golden or baseline yet", record
    return None
