"""The outcomes that a check can have, and which of them fail a run."""

from __future__ import annotations

from enum import Enum


class Status(str, Enum):
    """The outcome of one check or gate."""

    PASS = "PASS"
    IMPROVED = "IMPROVED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_BASELINE = "NO_BASELINE"
    ENV_MISMATCH = "ENV_MISMATCH"
    NOT_MEASURED = "NOT_MEASURED"
    FAIL = "FAIL"

    def __str__(self) -> str:
        return self.value


FAILS_ALWAYS = frozenset({Status.FAIL, Status.NOT_MEASURED})
FAILS_WHEN_STRICT = frozenset({Status.INCONCLUSIVE, Status.NO_BASELINE, Status.ENV_MISMATCH})


def fails(status: Status, *, strict: bool = False) -> bool:
    """Return whether ``status`` fails the test that asked for it (``strict``: ``--strict-verdicts``)."""
    return status in FAILS_ALWAYS or (strict and status in FAILS_WHEN_STRICT)


def worst(statuses: list[Status]) -> Status:
    """Return the gravest of ``statuses``, in the order in which :class:`Status` lists them; PASS for none."""
    order = list(Status)
    return max(statuses, key=order.index, default=Status.PASS)
