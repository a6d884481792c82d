"""The verdict on a generated text: its golden looked up, compared, recorded as evidence and proposed. No pytest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status, fails
from gaudi_validate.golden import messages
from gaudi_validate.golden.generated import CHECK, Comparer, Generated, exact, incomparable
from gaudi_validate.golden.proposals import propose_text
from gaudi_validate.golden.store import GoldenStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gaudi_validate.core.settings import Settings
    from gaudi_validate.golden.records import TextGolden


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenContext:
    """What a golden test works with; see the top of ``golden.extension``."""

    settings: Settings
    model: str
    port: str
    record: Callable[[Evidence], object]
    propose: Callable[[dict[str, Any]], object]
    invocation: str
    test: str | None = None
    compare: Comparer = exact
    snapshot_update: bool = False

    @property
    def store(self) -> GoldenStore:
        """The golden folder."""
        return GoldenStore(self.settings.golden_dir)

    def command(self, *, changes: bool) -> str:
        """Return the command that records what this run wrote."""
        evidence = self.settings.evidence
        return messages.update_command(
            self.invocation,
            changes=changes,
            ci=self.settings.ci,
            evidence=None if evidence is None else str(evidence),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on one comparison. ``message`` is the failure's text, ``None`` when the test goes on."""

    evidence: Evidence
    golden: TextGolden | None
    path: Path
    message: str | None = None


def judge(generated: Generated, case: str, context: GoldenContext) -> Judged:
    """Compare, record the evidence, propose what would be recorded, and say whether the test fails.

    Raises:
        UserError: the golden cannot be read, which is recorded as NOT_MEASURED.
    """
    settings, store = context.settings, context.store
    path = store.text_path(settings.hardware, context.model, case)
    name = store.name_of(path)
    try:
        golden = store.text(settings.hardware, context.model, case)
    except UserError as error:
        context.record(_known(_evidence(Status.NOT_MEASURED, str(error)), generated, case, context))
        raise
    compared = _known(_verdict(generated, golden, name, context), generated, case, context)
    target = {"hardware": settings.hardware, "model": context.model, "port": context.port, "case": case}
    context.propose(propose_text(generated, golden, **target, status=compared.status, test=context.test))
    evidence = _replaced(compared, golden, name, settings)
    context.record(evidence)
    if not fails(evidence.status, strict=settings.strict_verdicts):
        return Judged(evidence=evidence, golden=golden, path=path)
    command, by_syrupy = context.command(changes=golden is not None), context.snapshot_update
    message = messages.failure(evidence, generated, golden, name=name, command=command, snapshot_update=by_syrupy)
    return Judged(evidence=evidence, golden=golden, path=path, message=message)


def _verdict(generated: Generated, golden: TextGolden | None, name: str, context: GoldenContext) -> Evidence:
    if golden is None:
        return _evidence(Status.NO_BASELINE, messages.missing(name, context.command(changes=False)))
    return incomparable(generated, golden, context.settings.hardware) or context.compare(generated, golden)


def _replaced(compared: Evidence, golden: TextGolden | None, name: str, settings: Settings) -> Evidence:
    """Return the verdict on a golden that this run is asked, with a reason, to replace: it has none to be held to."""
    asked = settings.update_golden and (settings.golden_reason or "").strip()
    if golden is None or not asked or compared.status not in (Status.FAIL, Status.ENV_MISMATCH):
        return compared
    reason = messages.proposed(name, compared.reason, str(settings.golden_reason).strip())
    return replace(compared, status=Status.NO_BASELINE, reason=reason)


def _evidence(status: Status, reason: str) -> Evidence:
    return Evidence(check=CHECK, status=status, reason=reason)


def _known(evidence: Evidence, generated: Generated, case: str, context: GoldenContext) -> Evidence:
    """Return ``evidence`` with what the comparer need not know."""
    return replace(
        evidence,
        model=evidence.model or context.model,
        port=evidence.port or context.port,
        scenario=evidence.scenario or case,
        hardware=evidence.hardware or context.settings.hardware,
        dtype=evidence.dtype or generated.dtype,
    )
