"""What test reports carry to the controller, and what the controller does with it: the same with and without xdist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gaudi_validate import options
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.core.golden_rules import Decision
    from gaudi_validate.core.provenance import Provenance

NAME = "gaudi_validate-recorder"


class Recorder:
    """Gathers evidence and golden proposals from the test reports; writes files and the summary at the end.

    Registered in the controller only, so that workers cannot write.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._settings = options.settings_of(config)
        # By node id and file: below another root than pytest's, the node id alone may not tell two files apart.
        self._sent: dict[tuple[str, str], list[tuple[str, object]]] = {}
        self._outcomes: dict[tuple[str, str], str] = {}
        self._deselected = self._broken = 0
        self._notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the report carries: the properties of a test pile up over its phases, so the last has them all."""
        test = (report.nodeid, report.location[0])
        if report.user_properties:
            self._sent[test] = list(report.user_properties)
        if report.outcome != "passed" or test not in self._outcomes:
            self._outcomes[test] = report.outcome

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Count what a full run would have run."""
        self._deselected += len(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count what could not be collected."""
        self._broken += report.failed

    def _records(self, key: str) -> list[dict[str, Any]]:
        """Return what arrived under ``key``, in the order of arrival."""
        from gaudi_validate.core import travel

        return [record for properties in self._sent.values() for record in travel.sent(properties, key)]

    def evidence(self) -> list[Evidence]:
        """Return the evidence that arrived."""
        from gaudi_validate.core import travel

        return [travel.evidence_from(record) for record in self._records(travel.EVIDENCE_KEY)]

    def proposals(self) -> list[dict[str, Any]]:
        """Return what tests would have recorded as goldens and baselines."""
        from gaudi_validate.core import travel

        return self._records(travel.PROPOSAL_KEY)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the evidence file and the goldens, as far as they were asked for; what cannot be done fails the run."""
        try:
            self._write_evidence()
            refused = self._apply_proposals(session)
        except UserError as error:
            self._notes.append(str(error))
            refused = True
        if refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_evidence(self) -> None:
        if self._settings.evidence is None:
            return
        from gaudi_validate.report import evidence_file

        content = evidence_file.EvidenceFile(
            provenance=self._provenance(),
            settings=evidence_file.settings_that_matter(self._settings),
            evidence=tuple(self.evidence()),
            proposals=tuple(self.proposals()),
        )
        evidence_file.write(self._config.invocation_params.dir / self._settings.evidence, content)
        self._notes.append(f"evidence: {self._settings.evidence}")

    def _provenance(self) -> Provenance:
        from gaudi_validate.core import travel
        from gaudi_validate.core.provenance import collect

        device = next(iter(self._records(travel.DEVICE_KEY)), {})
        return collect(
            self._settings.hardware, self._config.rootpath, device=device.get("name"), driver=device.get("driver")
        )

    def _apply_proposals(self, session: pytest.Session) -> bool:
        """Update and prune goldens; return whether anything that was asked for was refused."""
        settings, proposals = self._settings, self.proposals()
        if not (settings.update_golden or settings.prune_golden):
            return False
        from gaudi_validate.core.golden_rules import Outcome
        from gaudi_validate.golden import messages

        if settings.ci:
            evidence = None if settings.evidence is None else str(settings.evidence)
            self._notes.append(messages.not_written_in_ci(len(proposals), evidence))
            return evidence is None
        decisions = self._decide(session, proposals)
        self._notes += messages.decisions_summary(decisions)
        return any(one.outcome is Outcome.REFUSED for one in decisions)

    def _decide(self, session: pytest.Session, proposals: list[dict[str, Any]]) -> list[Decision]:
        from gaudi_validate.core.evidence import to_json
        from gaudi_validate.golden.store import GoldenStore
        from gaudi_validate.golden.update import Run, apply

        settings, not_full = self._settings, self._why_not_full(session)
        if not settings.update_golden:
            # Pruning alone records nothing: what passed counts as used, and all else that has a golden must be judged.
            undecided = [one for one in proposals if one.get("status") not in (None, "PASS", "NO_BASELINE")]
            not_full = not_full or (f"{len(undecided)} goldens were not judged" if undecided else None)
            proposals = [one for one in proposals if one.get("status") == "PASS"]
        evidence = [to_json(one) for one in self.evidence()]
        run = Run(evidence=evidence, provenance=self._provenance(), reason=settings.golden_reason)
        store = GoldenStore(settings.golden_dir)
        return apply(proposals, run, store, prune=settings.prune_golden, not_full=not_full)

    def _why_not_full(self, session: pytest.Session) -> str | None:
        from gaudi_validate.core.golden_rules import why_not_full

        outcomes = list(self._outcomes.values())
        return why_not_full(
            narrowed_by=options.selection(self._config),
            deselected=self._deselected,
            not_run=outcomes.count("skipped") + session.testscollected - len(outcomes),
            failed=outcomes.count("failed") + self._broken,
        )

    def _notes_of_summary(self) -> list[str]:
        """Return the notes, and that tests failed for other reasons than a verdict, which no count shows."""
        other = [test for test, outcome in self._outcomes.items() if outcome == "failed" and not self._judged(test)]
        tests = "1 test" if len(other) == 1 else f"{len(other)} tests"
        return [*self._notes, f"{tests} failed without a verdict, see above"] if other else self._notes

    def _judged(self, test: tuple[str, str]) -> bool:
        """Return whether a verdict fails the test."""
        from gaudi_validate.core import travel
        from gaudi_validate.core.verdicts import Status, fails

        sent = travel.sent(self._sent.get(test, []), travel.EVIDENCE_KEY)
        return any(fails(Status(one["status"]), strict=self._settings.strict_verdicts) for one in sent)

    def _record_command(self) -> str | None:
        from gaudi_validate.golden.messages import update_command

        settings, run = self._settings, options.invocation(self._config.invocation_params.args)
        if settings.update_golden and not settings.ci:
            return None
        evidence = None if settings.evidence is None else str(settings.evidence)
        return update_command(run, changes=False, ci=settings.ci, evidence=evidence)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary of all evidence."""
        evidence = self.evidence()
        if not evidence and not self._notes:
            return
        from gaudi_validate.report.terminal import summary

        writer = terminalreporter._tw
        terminalreporter.write_sep("=", "gaudi-validate")
        for line in summary(
            evidence,
            strict=self._settings.strict_verdicts,
            record=self._record_command(),
            # Without a terminal pytest assumes 80 columns; files and CI logs have no width.
            width=writer.fullwidth if terminalreporter.isatty else 160,
            colour=writer.hasmarkup,
            notes=self._notes_of_summary(),
        ):
            terminalreporter.write_line(line)


def register(config: pytest.Config) -> None:
    """Register the recorder, in the controller only."""
    if not options.is_worker(config):
        config.pluginmanager.register(Recorder(config), NAME)


def unregister(config: pytest.Config) -> None:
    """Take the recorder out again."""
    if config.pluginmanager.has_plugin(NAME):
        config.pluginmanager.unregister(name=NAME)
