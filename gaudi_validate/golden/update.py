"""Applies a run's proposals to the golden files by the rules of :mod:`gaudi_validate.core.golden_rules`.

Only the controller of a run, and ``gaudi-validate accept``, call this. A refused proposal is a decision with its
reason; the caller fails the run for it, since what was asked for was not done.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from gaudi_validate.core import golden_rules as rules
from gaudi_validate.core.baseline_rules import loosened
from gaudi_validate.core.golden_rules import Decision, Outcome
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.names import checked
from gaudi_validate.golden.proposals import MetricProposal, Proposal, TextProposal, parse
from gaudi_validate.golden.records import (
    BaselineFile,
    Metric,
    ProvenanceRecord,
    SessionRecord,
    TextGolden,
    encode,
    provenance_record,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gaudi_validate.core.provenance import Provenance
    from gaudi_validate.golden.store import GoldenStore

_RECORDED = ("text", "prompt", "ids", "prompt_ids", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run hands over: its evidence (``core.evidence.to_json`` each), provenance, and the reason for changes."""

    evidence: Sequence[Mapping[str, Any]]
    provenance: Provenance
    reason: str | None = None

    def refusal(self, proposal: Proposal) -> str | None:
        """Return why ``proposal`` may not be recorded whatever it says, ``None`` if it may."""
        return rules.wrong_hardware(proposal.hardware, self.provenance.hardware) or rules.gate(
            self.evidence, port=proposal.port, model=proposal.model
        )

    def stamp(self, samples: int = 1) -> ProvenanceRecord:
        """Return the provenance entry of what this run records."""
        return provenance_record(self.provenance, reason=rules.given(self.reason), samples=samples)


def apply(
    proposals: Sequence[Mapping[str, Any]], run: Run, store: GoldenStore, *, prune: bool = False, not_full: str | None
) -> list[Decision]:
    """Record what may be recorded and return one decision a golden, in a stable order.

    Args:
        proposals: of this run, in any order.
        run: what the rules need to know of it.
        store: where the files are; other writers are locked out meanwhile.
        prune: whether --prune-golden was given.
        not_full: why the run was not a full one, ``None`` for a full one (``core.golden_rules.why_not_full``).

    Raises:
        UserError: a file cannot be written, or a proposal is malformed. Each file is the old or the new one.
    """
    parsed = [parse(one) for one in proposals]
    texts, metrics = _grouped(parsed)
    with store.locked():
        store.remove_leftovers()
        decisions = [_text(group, run, store) for _, group in sorted(texts.items())]
        decisions += _baselines([group for _, group in sorted(metrics.items())], run, store)
        if prune:
            decisions += _prune(list(texts), run, store, not_full)
    return decisions


def _grouped(
    parsed: Sequence[Proposal],
) -> tuple[dict[tuple[str, ...], list[TextProposal]], dict[tuple[str, ...], list[MetricProposal]]]:
    """Return the proposals by target, each group sorted: workers report in any order."""
    texts: dict[tuple[str, ...], list[TextProposal]] = defaultdict(list)
    metrics: dict[tuple[str, ...], list[MetricProposal]] = defaultdict(list)
    for one in sorted(parsed, key=lambda one: (one.port, msgspec.json.encode(one))):
        if isinstance(one, TextProposal):
            texts[one.hardware, one.model, one.case].append(one)
        else:
            metrics[one.hardware, one.metric].append(one)
    return texts, metrics


def _text(group: Sequence[TextProposal], run: Run, store: GoldenStore) -> Decision:
    """Decide on one golden text and write it."""
    first = group[0]
    target = f"text/{first.hardware}/{first.model}/{first.case}"
    try:
        existing = store.text(first.hardware, first.model, first.case)
        outcome, reason, golden = _text_outcome(group, run, existing)
        data = None if golden is None else encode(golden)
    except UserError as error:
        return Decision(outcome=Outcome.REFUSED, target=target, reason=str(error))
    if data is not None:
        store.write(store.text_path(first.hardware, first.model, first.case), data)
    return Decision(outcome=outcome, target=target, reason=reason)


def _text_outcome(
    group: Sequence[TextProposal], run: Run, existing: TextGolden | None
) -> tuple[Outcome, str, TextGolden | None]:
    passed = [one for one in group if existing is not None and _passed(one, existing)]
    changing = [one for one in group if one not in passed]
    if not changing:
        return Outcome.UNCHANGED, "", None
    if passed:
        ports = ", ".join(one.port for one in changing)
        return Outcome.REFUSED, f"{passed[0].port} still writes the golden's text and {ports} does not", None
    refusals = {one.port: refusal for one in changing if (refusal := run.refusal(one)) is not None}
    allowed = [one for one in changing if one.port not in refusals]
    if not allowed:
        return Outcome.REFUSED, "; ".join(dict.fromkeys(refusals.values())), None
    index, conflict = rules.chosen([one.port for one in allowed], same=len({_content(one) for one in allowed}) == 1)
    if conflict is not None:
        return Outcome.REFUSED, conflict, None
    winner = allowed[index]
    return _record_text(winner, run, existing, [one.port for one in allowed if _content(one) != _content(winner)])


def _passed(proposal: TextProposal, golden: TextGolden) -> bool:
    """Return whether ``proposal`` agrees with ``golden``: the same text, or a tie with this very golden."""
    if proposal.status == Status.PASS.value and proposal.golden == golden.digest:
        return True
    return _content(proposal) == _content(golden) and golden.hardware == proposal.hardware


def _record_text(
    proposal: TextProposal, run: Run, existing: TextGolden | None, others: Sequence[str]
) -> tuple[Outcome, str, TextGolden | None]:
    """Return the golden that ``proposal`` makes, its provenance appended to what is there."""
    if existing is not None and (refusal := rules.needs_reason("the golden changes", run.reason)) is not None:
        return Outcome.REFUSED, refusal, None
    history = existing.provenance if existing is not None else ()
    fields = {name: getattr(proposal, name) for name in (*_RECORDED, "margins")}
    try:
        golden = TextGolden(**fields, provenance=(*history, run.stamp()))
    except ValueError as error:
        return Outcome.REFUSED, f"{proposal.port} proposed what no golden can hold: {error}", None
    note = f"{proposal.port}'s text; {', '.join(others)} wrote other text, the next run judges it" if others else ""
    return (Outcome.UPDATED if existing is not None else Outcome.CREATED), note, golden


def _content(record: TextProposal | TextGolden) -> tuple[Any, ...]:
    """Return what makes two texts the same: margins are measurements and may differ."""
    return tuple(getattr(record, name) for name in _RECORDED)


def _baselines(groups: Sequence[Sequence[MetricProposal]], run: Run, store: GoldenStore) -> list[Decision]:
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
    refusal = next((found for one in group if (found := run.refusal(one)) is not None), None) or _ambiguous(group)
    if refusal is not None:
        return Outcome.REFUSED, refusal, None
    try:
        metric = _metric(group, run, existing)
    except ValueError as error:
        return Outcome.REFUSED, f"cannot be a baseline: {error}", None
    if existing is None:
        return Outcome.CREATED, _thin(metric, first.metric), metric
    if metric.kind != "speed" and _judged(metric) == _judged(existing) and not _elsewhere(existing, run):
        return Outcome.UNCHANGED, "", None
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


def _judged(metric: Metric) -> tuple[Any, ...]:
    return metric.value, metric.unit, metric.kind, metric.better, metric.tolerance


def _thin(metric: Metric, name: str) -> str:
    baseline = metric.baseline(name)
    return f"provisional, {baseline.occasions} of 5 occasions" if baseline.provisional else ""


def _prune(used: Sequence[tuple[str, ...]], run: Run, store: GoldenStore, not_full: str | None) -> list[Decision]:
    """Delete the golden texts of this hardware that a full run did not use."""
    hardware = checked(run.provenance.hardware, "hardware key")
    unused, refusal = rules.prunable(
        store.texts(hardware), [(model, case) for key, model, case in used if key == hardware], not_full=not_full
    )
    if refusal is not None:
        return [Decision(outcome=Outcome.REFUSED, target=f"text/{hardware}", reason=refusal)]
    decisions = []
    for model, case in unused:
        store.delete_text(hardware, model, case)
        decisions.append(Decision(outcome=Outcome.PRUNED, target=f"text/{hardware}/{model}/{case}", reason="unused"))
    return decisions
