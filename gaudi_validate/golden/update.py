"""Applies a run's proposals to the golden files by the rules of :mod:`gaudi_validate.core.golden_rules`.

Only the controller of a run, and ``gaudi-validate accept``, call this. A refused proposal is a decision with its
reason; the caller fails the run for it, since what was asked for was not done.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from gaudi_validate.core import golden_rules as rules
from gaudi_validate.core.golden_rules import Decision, Outcome
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.baseline_update import update_baselines
from gaudi_validate.golden.names import checked
from gaudi_validate.golden.proposals import MetricProposal, Proposal, TextProposal, parse
from gaudi_validate.golden.records import TextGolden, encode
from gaudi_validate.golden.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gaudi_validate.golden.store import GoldenStore

__all__ = ["Run", "apply"]

_RECORDED = ("text", "prompt", "ids", "prompt_ids", "dtype")


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
        decisions += update_baselines([group for _, group in sorted(metrics.items())], run, store)
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
