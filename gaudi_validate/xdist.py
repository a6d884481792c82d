"""What test reports carry to the controller, and what the controller does with it: the same with and without xdist."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gaudi_validate import options
from gaudi_validate.core import travel

if TYPE_CHECKING:
    import pytest

    from gaudi_validate.core.evidence import Evidence

NAME = "gaudi_validate-recorder"


class Recorder:
    """Gathers evidence and golden proposals from the test reports; writes files and the summary at the end.

    Registered in the controller only, so that workers cannot write.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._sent: dict[str, list[tuple[str, object]]] = {}
        self._notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the report carries: the properties of a test pile up over its phases, so the last has them all."""
        if report.user_properties:
            self._sent[report.nodeid] = list(report.user_properties)

    def records(self, key: str) -> list[dict[str, Any]]:
        """Return what arrived under ``key``, in the order of arrival."""
        return [record for properties in self._sent.values() for record in travel.sent(properties, key)]

    def evidence(self) -> list[Evidence]:
        """Return the evidence that arrived."""
        return [travel.evidence_from(record) for record in self.records(travel.EVIDENCE_KEY)]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary of all evidence."""
        evidence = self.evidence()
        if not evidence and not self._notes:
            return
        from gaudi_validate.report.terminal import summary

        writer = terminalreporter._tw
        terminalreporter.section("gaudi-validate")
        for line in summary(
            evidence,
            strict=options.settings_of(self._config).strict_verdicts,
            invocation=options.invocation(self._config.invocation_params.args),
            # Without a terminal pytest assumes 80 columns; files and CI logs have no width.
            width=writer.fullwidth if terminalreporter.isatty else 140,
            colour=writer.hasmarkup,
            notes=self._notes,
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
