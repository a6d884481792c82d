"""From evidence to the message that a failing test shows: what, where, by how much, what was allowed, what to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gaudi_validate.core.evidence import Evidence, Location, Measurement

MAX_LINES = 15
_INDENT = "  "


def explain(evidence: Evidence) -> str:
    """Return at most :data:`MAX_LINES` lines; details give way first, and their number is told."""
    body = [evidence.reason, *place(evidence.location), *_measured(evidence.measurements)]
    last = [] if evidence.reproduce is None else [f"reproduce: {evidence.reproduce}"]
    details = _fitted(evidence.details, MAX_LINES - 1 - len(body) - len(last))
    return "\n".join([headline(evidence), *(_INDENT + line for line in (*body, *details, *last))])


def headline(evidence: Evidence) -> str:
    """Return the verdict, the check, and what it was run on, in one line."""
    subject = " on ".join(part for part in (evidence.port, evidence.model) if part)
    scenario = f"scenario {evidence.scenario}" if evidence.scenario else ""
    machine = ", ".join(part for part in (evidence.hardware, evidence.dtype) if part)
    what = ", ".join(part for part in (subject, scenario) if part)
    text = f"{evidence.status} {evidence.check}"
    text = f"{text}: {what}" if what else text
    return f"{text} ({machine})" if machine else text


def place(location: Location | None) -> list[str]:
    """Return up to three lines: the first module that departs, the worst error there, the note."""
    if location is None:
        return []
    layer = "" if location.layer is None else f"layer {location.layer}"
    where = ", ".join(part for part in (layer, location.module or "", location.phase or "") if part)
    worst = ", ".join(_indices(location))
    lines = [f"first departs from the reference: {where}"] if where else []
    if worst:
        lines.append(f"worst error there: {worst} (counted from 0, columns of the padded input)")
    return lines if location.note is None else [*lines, location.note]


def _indices(location: Location) -> list[str]:
    named = (("batch row", location.batch_row), ("head", location.head), ("query row", location.query_row))
    found = [f"{name} {index}" for name, index in named if index is not None]
    if location.key_start is not None and location.key_end is not None:
        last = location.key_end - 1
        found.append(f"key {last}" if location.key_start == last else f"keys {location.key_start} to {last}")
    return found


def _measured(measurements: tuple[Measurement, ...]) -> list[str]:
    """Return one line with the numbers that have no limit or keep none; the latter name it."""
    told = [_figure(one) for one in measurements if not one.within]
    return ["measured: " + "; ".join(told)] if told else []


def _figure(one: Measurement) -> str:
    value = "not measured" if one.value is None else f"{one.value:.4g} {one.unit}".rstrip()
    if one.within is False:
        bound = "at most" if one.better == "lower" else "at least"
        return f"{one.name} {value} (allowed: {bound} {one.limit:.4g})"
    return f"{one.name} {value}"


def _fitted(details: tuple[str, ...], room: int) -> list[str]:
    lines = [line for detail in details for line in detail.splitlines()]
    if len(lines) <= room:
        return lines
    kept = max(room - 1, 0)
    return [*lines[:kept], f"... {len(lines) - kept} more lines in the evidence"]
