"""Evidence: what a check measured, where the worst of it lies, and the verdict that follows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gaudi_validate.core.verdicts import Status  # noqa: TC001 - the file reader resolves the annotation at run time

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One number with its unit, and the limit that it was held against (``None``: reported only).

    ``better`` says on which side of ``limit`` a value is good: "lower" or "higher".
    """

    name: str
    value: float | int | None
    unit: str
    limit: float | int | None = None
    better: str = "lower"

    @property
    def within(self) -> bool | None:
        """Whether the value keeps to its limit; ``None`` without a limit. NaN and a missing value do not."""
        if self.limit is None:
            return None
        if self.value is None or self.value != self.value:
            return False
        return self.value <= self.limit if self.better == "lower" else self.value >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where the worst error lies. Indices are zero-based; key ranges are half open: [key_start, key_end)."""

    layer: int | None = None
    module: str | None = None
    phase: str | None = None
    batch_row: int | None = None
    head: int | None = None
    query_row: int | None = None
    key_start: int | None = None
    key_end: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The record of one check on one port, model and scenario.

    ``reason`` is one line and enough to act on. ``reproduce`` is the shell command that runs this check alone; the
    plugin fills it in, since only it knows the test's id and the command line. ``details`` are further lines for a
    reader who wants more. All fields are JSON primitives once :func:`to_json` has been applied.
    """

    check: str
    status: Status
    reason: str
    model: str = ""
    scenario: str = ""
    port: str = ""
    hardware: str = ""
    dtype: str = ""
    measurements: tuple[Measurement, ...] = ()
    location: Location | None = None
    details: tuple[str, ...] = ()
    reproduce: str | None = None
    test: str | None = None
    duration_s: float | None = None


def to_json(evidence: Evidence) -> dict[str, Any]:
    """Return ``evidence`` as JSON primitives, for a test report's ``user_properties``."""
    data = asdict(evidence)
    data["status"] = evidence.status.value
    return data
