"""Evidence onto the test's report, and the verdict into the test's outcome."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from gaudi_validate import options
from gaudi_validate.session import DEVICE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gaudi_validate.core.evidence import Evidence


class Judge:
    """Records evidence on the test, and fails the test when the verdict does; see the fixture ``judge``."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._node, self._config = request.node, request.config
        self._settings = options.settings_of(request.config)

    def record(self, evidence: Evidence) -> Evidence:
        """Put the evidence on the test's report, with the test's name and the command that reproduces it."""
        from gaudi_validate.core import travel
        from gaudi_validate.core.evidence import to_json

        known = replace(
            evidence,
            test=options.name_of(self._node),
            reproduce=evidence.reproduce or options.reproduce_command(self._node),
            hardware=evidence.hardware or self._settings.hardware,
        )
        self._send(travel.EVIDENCE_KEY, to_json(known))
        if (device := self._config.stash.get(DEVICE, None)) is not None:
            self._send(travel.DEVICE_KEY, asdict(device.identify()))
        return known

    def propose(self, proposal: Mapping[str, Any]) -> None:
        """Put a golden's or a baseline's proposal on the test's report; the controller decides and writes."""
        from gaudi_validate.core import travel

        self._send(travel.PROPOSAL_KEY, proposal)

    def _send(self, key: str, record: Mapping[str, Any]) -> None:
        from gaudi_validate.core import travel

        self._node.user_properties.append((key, travel.primitives(record)))

    def __call__(self, *evidence: Evidence) -> None:
        """Record all of it, then fail once if any of it fails."""
        from gaudi_validate.core.verdicts import fails

        known = [self.record(one) for one in evidence]
        failed = [one for one in known if fails(one.status, strict=self._settings.strict_verdicts)]
        if failed:
            pytest.fail(failure_text(failed), pytrace=False)


def failure_text(failed: Sequence[Evidence]) -> str:
    """Return the message of a failed test: the first failure explained, of the others the number and one reason."""
    from gaudi_validate.core.explain import explain, headline

    first, others = failed[0], failed[1:]
    if others:
        verdicts = "1 more verdict of this test fails" if len(others) == 1 else f"{len(others)} more verdicts fail"
        first = replace(first, details=(f"{verdicts}: {headline(others[0])}", *first.details))
    return explain(first)
