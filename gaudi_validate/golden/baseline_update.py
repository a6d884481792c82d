"""Records measured numbers in the baseline file of a run's hardware; see :mod:`gaudi_validate.golden.update`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import msgspec

from gaudi_validate.core import golden_rules as rules
from gaudi_validate.core.baseline_rules import loosened
from gaudi_validate.core.golden_rules import Decision, Outcome
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.records import BaselineFile, Metric, SessionRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.golden.proposals import MetricProposal
    from gaudi_validate.golden.run import Run
    from gaudi_validate.golden.store import GoldenStore


def update_baselines(groups: Sequence[Sequence[MetricProposal]], run: Run, store: GoldenStore) -> list[Decision]:
    """Decide on the metrics and write the file of this hardware once, all other metrics kept."""
    hardware = run.provenance.hardware
    decisions: list[Decision] = []
    recorded: dict[str, Metric] = {}
    try:
        existing = store.baselines(hardware) or BaselineFile(hardware=hardware, metrics={})
    except UserError as error:
        return [_decision(group[0], Outcome.REFUSED, str(error)) for group in groups]
    for group in groups:
        outcome, reason, metric = _metric_outcome(group, run, existing.metrics.get(group[0].metric))
        decisions.append(_decision(group[0], outcome, reason))
        if metric is not None:
            recorded[group[0].metric] = metric
    if recorded:
        store.write_baselines(BaselineFile(hardware=hardware, metrics={**existing.metrics, **recorded}))
    return decisions


def _decision(proposal: MetricProposal, outcome: Outcome, reason: str) -> Decision:
    return Decision(outcome=outcome, target=f"baselines/{proposal.hardware}: {proposal.metric}", reason=reason)


def _metric_outcome(
    group: Sequence[MetricProposal], run: Run, existing: Metric | None
) -> tuple[Outcome, str, Metric | None]:
    first = group[0]
    if existing is not None and all(_is_recorded(one, existing, run) for one in group):
        return Outcome.UNCHANGED, "", None
    refusal = next((found for one in group if (found := run.refusal(one)) is not None), None) or _ambiguous(group)
    if refusal is not None:
        return Outcome.REFUSED, refusal, None
    try:
        metric = _metric(group, run, existing)
    except ValueError as error:
        return Outcome.REFUSED, f"cannot be a baseline: {error}", None
    if existing is None:
        return Outcome.CREATED, _thin(metric, first.metric), metric
    looser = loosened(existing.baseline(first.metric), metric.baseline(first.metric))
    if looser is not None and (refusal := rules.needs_reason(looser, run.reason)) is not None:
        return Outcome.REFUSED, refusal, None
    return Outcome.UPDATED, _thin(metric, first.metric), metric


def _ambiguous(group: Sequence[MetricProposal]) -> str | None:
    """Return why the proposals of one metric cannot all be right; speeds may vary."""
    shapes = {(one.unit, one.rule, one.better, one.tolerance) for one in group}
    values = {one.value for one in group}
    if len(shapes) == 1 and (len(values) == 1 or group[0].rule == "speed"):
        return None
    return f"measured as {', '.join(f'{one.value} {one.unit}' for one in group)} in one run: give each its own name"


def _metric(group: Sequence[MetricProposal], run: Run, existing: Metric | None) -> Metric:
    """Return the metric with this run's session; the history is kept.

    A speed is the median of its sessions, a count this run's value.
    """
    first = group[0]
    comparable = existing if existing is not None and _same_scale(existing, first, run) else None
    samples = sum(one.samples for one in group)
    speed = first.rule == "speed"
    value = statistics.median(one.value for one in group) if speed else first.value
    session = SessionRecord(date=run.provenance.date, value=value, samples=samples, commit=run.provenance.commit)
    sessions = (*(comparable.sessions if comparable else ()), session)
    metric = Metric(
        value=statistics.median(one.value for one in sessions) if speed else value,
        unit=first.unit,
        kind=first.rule,
        better=first.better,
        tolerance=first.tolerance,
        anchor=comparable.anchor if comparable else None,
        sessions=sessions,
        provenance=(*(existing.provenance if existing else ()), run.stamp(samples)),
    )
    pinned = _pinned(metric, first.metric, run) if speed else None
    return msgspec.structs.replace(metric, anchor=pinned)


def _pinned(metric: Metric, name: str, run: Run) -> int | float | None:
    """Return the anchor: the first complete value, or one that is worse by a given reason."""
    if metric.baseline(name).provisional:
        return None
    if metric.anchor is None:
        return metric.value
    worse = metric.value < metric.anchor if metric.better == "higher" else metric.value > metric.anchor
    return metric.value if worse and rules.given(run.reason) is not None else metric.anchor


def _same_scale(existing: Metric, proposal: MetricProposal, run: Run) -> bool:
    """Return whether old sessions and this one can stand in one list."""
    shape = (existing.kind, existing.unit, existing.better)
    return shape == (proposal.rule, proposal.unit, proposal.better) and not _elsewhere(existing, run)


def _elsewhere(existing: Metric, run: Run) -> bool:
    """Return whether the recorded number is of other hardware, or a wall-clock one of another machine."""
    newest, here = existing.provenance[-1], run.provenance
    other_machine = bool(newest.device and here.device and newest.device != here.device)
    return newest.hardware != here.hardware or (existing.kind == "speed" and other_machine)


def _is_recorded(proposal: MetricProposal, existing: Metric, run: Run) -> bool:
    """Return whether ``proposal`` says what is recorded. Another occasion of a speed is news."""
    proposed = (proposal.value, proposal.unit, proposal.rule, proposal.better, proposal.tolerance, proposal.hardware)
    recorded = (existing.value, existing.unit, existing.kind, existing.better, existing.tolerance)
    return (
        existing.kind != "speed" and proposed == (*recorded, run.provenance.hardware) and not _elsewhere(existing, run)
    )


def _thin(metric: Metric, name: str) -> str:
    baseline = metric.baseline(name)
    return f"provisional, {baseline.occasions} of 5 occasions" if baseline.provisional else ""
