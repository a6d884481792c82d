"""When a golden or baseline may be written: pure rules over a run's evidence and proposals.

A run proposes; these rules decide. One vocabulary: create (missing), update (changed), prune (unused).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.verdicts import FAILS_ALWAYS, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

LOGIC = "logic parity"
PROBE = "probe"
# When ports of one run write different texts into a golden that is missing, the trusted path's text is taken.
TRUSTED = ("naive", "eager")


class Outcome(str, Enum):
    """What became of a proposal."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    PRUNED = "pruned"
    REFUSED = "refused"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome for one golden or baseline. ``target`` is its name below golden/, ``reason`` one line."""

    outcome: Outcome
    target: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"{self.outcome} {self.target}" + (f": {self.reason}" if self.reason else "")
        # Names and reasons may come from an evidence file: no control characters reach the terminal.
        return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)


def is_gate(check: str) -> bool:
    """Return whether a failure of ``check`` forbids recording: logic parity and the probes."""
    return _words(check) == LOGIC or check.startswith(PROBE)


def _words(check: str) -> str:
    return check.replace("-", " ")


def gate(evidence: Iterable[Mapping[str, Any]], *, port: str, model: str) -> str | None:
    """Return why nothing of ``port`` on ``model`` may be recorded from this run, ``None`` if it may.

    It takes one PASS of logic parity, and no failed or unmeasured logic parity or probe.
    """
    mine = [one for one in evidence if one["port"] == port and one["model"] == model and is_gate(one["check"])]
    for one in mine:
        if Status(one["status"]) in FAILS_ALWAYS:
            scenario = f" on scenario {one['scenario']}" if one.get("scenario") else ""
            return f"{one['check']} of port {port} on {model} is {one['status']}{scenario}: {one['reason']}"
    if any(_words(one["check"]) == LOGIC and one["status"] == Status.PASS.value for one in mine):
        return None
    return f"no {LOGIC} of port {port} on {model} passed in this run; run it together with the update"


def wrong_hardware(proposed: str, here: str) -> str | None:
    """Return why a number of ``proposed`` is not recorded as one of ``here``."""
    return None if proposed == here else f"measured on {proposed}, this run is for {here}"


def given(reason: str | None) -> str | None:
    """Return the --golden-reason, ``None`` for a blank one."""
    return reason.strip() or None if reason is not None else None


def needs_reason(what: str, reason: str | None) -> str | None:
    """Return why an update that changes or loosens (``what``) is refused, ``None`` if it has its reason."""
    return None if given(reason) is not None else f"{what}; say why with --golden-reason"


def chosen(ports: Sequence[str], same: bool) -> tuple[int, str | None]:
    """Return which of the ports that propose one golden is taken, and why none can be.

    ``ports`` must be sorted; ``same``: all propose the same record.
    """
    if same:
        return 0, None
    for trusted in TRUSTED:
        if trusted in ports:
            return ports.index(trusted), None
    return 0, f"ports {', '.join(ports)} differ in this run; run one of them alone (--attention, --port)"


def prunable(
    there: Iterable[tuple[str, str]], used: Iterable[tuple[str, str]], *, not_full: str | None
) -> tuple[list[tuple[str, str]], str | None]:
    """Return the (model, case) goldens to prune, and why none may be pruned.

    Only of models that this run used: a run for another --model says nothing about them. ``not_full`` is why the run
    was not a full one.
    """
    if not_full is not None:
        return [], f"--prune-golden needs a full run: {not_full}"
    needed = set(used)
    models = {model for model, _ in needed}
    return sorted(one for one in set(there) - needed if one[0] in models), None


def why_not_full(
    *, narrowed_by: Sequence[str] = (), deselected: int = 0, not_run: int = 0, failed: int = 0
) -> str | None:
    """Return why a run cannot say that a golden is unused, ``None`` for a full run.

    Args:
        narrowed_by: what narrowed the selection: paths on the command line, "-k", "--lf", ...
        deselected: tests that were collected and not run.
        not_run: tests that were skipped or lost with a worker.
        failed: tests that failed, and may not have come to their golden.
    """
    parts = [f"narrowed by {' '.join(narrowed_by)}"] if narrowed_by else []
    counts = ((deselected, "deselected"), (not_run, "skipped or lost"), (failed, "failed"))
    parts += [f"{count} {'test' if count == 1 else 'tests'} {word}" for count, word in counts if count]
    return ", ".join(parts) or None
