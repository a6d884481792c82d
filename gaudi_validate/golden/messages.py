"""What golden tests and updates say: every message is built here, from plain values."""

from __future__ import annotations

import difflib
import shlex
import textwrap
from typing import TYPE_CHECKING

from gaudi_validate.core.explain import headline, place
from gaudi_validate.core.golden_rules import Outcome
from gaudi_validate.core.text_verdict import first_difference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.core.golden_rules import Decision
    from gaudi_validate.golden.generated import Generated
    from gaudi_validate.golden.records import TextGolden

WIDTH = 88
MAX_DIFF_LINES = 24
_IDS_BEFORE, _IDS_AFTER = 2, 6
WHY = "WHY"


def update_command(invocation: str, *, changes: bool, ci: bool, evidence: str | None) -> str:
    """Return the command that records what this run wrote.

    Args:
        invocation: the command of this run, as a shell line.
        changes: whether a golden that is there changes, which takes a reason.
        ci: whether this run is under CI, where nothing is written.
        evidence: the evidence file of this run.
    """
    reason = f" --golden-reason {shlex.quote(WHY)}" if changes else ""
    if ci and evidence is not None:
        return f"gaudi-validate accept {shlex.quote(evidence)}{reason}"
    if ci:
        return f"{invocation} --evidence evidence.json && gaudi-validate accept evidence.json{reason}"
    return f"{invocation} --update-golden{reason}"


def missing(name: str, command: str) -> str:
    """Return the reason of NO_BASELINE for a golden that is not there."""
    return f"no golden {name}; record it with: {command}"


def proposed(name: str, reason: str, golden_reason: str) -> str:
    """Return the reason of NO_BASELINE for a golden that this run is to replace."""
    return f"{reason}; --update-golden proposes the new {name}: {golden_reason}"


def failure(
    evidence: Evidence,
    generated: Generated,
    golden: TextGolden | None,
    *,
    name: str,
    command: str,
    snapshot_update: bool = False,
) -> str:
    """Return the message of a golden test that fails: verdict, place, diff of the text and ids, the command to run.

    ``name`` is the golden's path as messages name it, ``snapshot_update`` whether syrupy's own option was given.
    """
    lines = [headline(evidence), evidence.reason, *place(evidence.location)]
    if golden is not None:
        lines += [*_recorded(golden), *text_diff(golden.text, generated.text, name), *ids_diff(golden, generated)]
    lines += evidence.details
    if snapshot_update:
        lines.append("--snapshot-update does not write goldens; --update-golden does")
    if golden is None:
        return "\n".join([*lines, "next:", f"  {command}"])
    return "\n".join([*lines, "next, if the new text is right:", f"  {command}"])


def _recorded(golden: TextGolden) -> list[str]:
    newest = golden.provenance[-1]
    commit = f" at {newest.commit}" if newest.commit else ""
    return [f"golden recorded {newest.date} on {newest.hardware}{commit}: {newest.reason}"]


def text_diff(golden: str, generated: str, name: str) -> list[str]:
    """Return a unified diff of the two texts, long lines wrapped and control characters made visible."""
    if golden == generated:
        return ["the text is the same, its ids are not"]
    lines = list(
        difflib.unified_diff(_wrapped(golden), _wrapped(generated), name, "this run", lineterm="", n=2),
    )
    if len(lines) > MAX_DIFF_LINES:
        lines = [*lines[:MAX_DIFF_LINES], f"... {len(lines) - MAX_DIFF_LINES} more lines of the diff"]
    return lines


def _wrapped(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in line)
        lines += textwrap.wrap(shown, WIDTH, drop_whitespace=False, break_on_hyphens=False) or [""]
    return lines


def ids_diff(golden: TextGolden, generated: Generated) -> list[str]:
    """Return the ids around the first difference."""
    step = first_difference(golden.ids, generated.ids)
    if step is None:
        return []
    start = max(step - _IDS_BEFORE, 0)
    return [
        f"ids from {start}: golden   {_excerpt(golden.ids, start, step)}",
        f"ids from {start}: this run {_excerpt(generated.ids, start, step)}",
    ]


def _excerpt(ids: Sequence[int], start: int, step: int) -> str:
    end = step + _IDS_AFTER
    shown = " ".join(str(one) for one in ids[start:end]) or "(ended)"
    return f"{shown} ..." if end < len(ids) else shown


def not_written_in_ci(proposals: int, evidence: str | None) -> str:
    """Return the note of a run under CI that was asked to update."""
    if evidence is None:
        return "under CI no golden is written, and without --evidence PATH the proposals of this run are lost"
    records = "1 golden or baseline" if proposals == 1 else f"{proposals} goldens and baselines"
    accept = update_command("", changes=True, ci=True, evidence=evidence)
    return f"under CI no golden is written; {evidence} carries {records}, take them with: {accept}"


def decisions_summary(decisions: Sequence[Decision]) -> list[str]:
    """Return the summary's lines: a count, then what was created, updated, pruned or refused, one line each."""
    counts = [f"{sum(one.outcome is outcome for one in decisions)} {outcome}" for outcome in Outcome]
    notable = [str(one) for one in decisions if one.outcome is not Outcome.UNCHANGED]
    return [f"goldens: {', '.join(counts)}", *notable] if decisions else []
