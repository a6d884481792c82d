"""Records, proposals and evidence for these tests."""

from __future__ import annotations

from typing import Any

from gaudi_validate.core.evidence import Evidence, to_json
from gaudi_validate.core.provenance import Provenance
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.generated import Generated
from gaudi_validate.golden.proposals import propose_metric, propose_text
from gaudi_validate.golden.records import ProvenanceRecord, TextGolden
from gaudi_validate.golden.update import Run

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def generated(version: int = 0, *, length: int = 4, **changes: Any) -> Generated:
    values: dict[str, Any] = {
        "text": f"text {version} " + " ".join(WORDS[index % 8] for index in range(length)),
        "prompt": "He has a",
        "ids": tuple(version + index for index in range(length)),
        "prompt_ids": (7, 8, 9),
        "margins": tuple(0.5 + index for index in range(length)),
        "dtype": "bfloat16",
    }
    return Generated(**{**values, **changes})


def stamp(**changes: Any) -> ProvenanceRecord:
    values: dict[str, Any] = {"date": "2025-01-02T03:04:05Z", "hardware": "cpu", "reason": "create", "commit": "abc123"}
    return ProvenanceRecord(**{**values, **changes})


def golden(version: int = 0, *, length: int = 4, **changes: Any) -> TextGolden:
    wrote = generated(version, length=length)
    names = ("text", "prompt", "ids", "prompt_ids", "margins", "dtype")
    values: dict[str, Any] = {name: getattr(wrote, name) for name in names} | {"provenance": (stamp(),)}
    return TextGolden(**{**values, **changes})


def provenance(**changes: Any) -> Provenance:
    values: dict[str, Any] = {
        "commit": "def456",
        "driver": None,
        "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
        "date": "2025-02-03T04:05:06Z",
        "hardware": "cpu",
    }
    return Provenance(**{**values, **changes})


def evidence(check: str = "logic parity", status: Status = Status.PASS, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"reason": "as it should be", "model": "m", "port": "p"}
    return to_json(Evidence(check=check, status=status, **{**values, **changes}))


def run(*records: dict[str, Any], reason: str | None = None, **changes: Any) -> Run:
    return Run(evidence=records or (evidence(),), provenance=provenance(**changes), reason=reason)


def text_proposal(
    version: int = 0,
    *,
    against: TextGolden | None = None,
    status: Status = Status.NO_BASELINE,
    length: int = 4,
    **changes: Any,
) -> dict[str, Any]:
    values: dict[str, Any] = {"hardware": "cpu", "model": "m", "port": "p", "case": "c", "status": status}
    return propose_text(generated(version, length=length), against, **{**values, **changes})


def metric_proposal(value: float, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"metric": "graphs", "unit": "graphs", "rule": "count"}
    values |= {"hardware": "cpu", "model": "m", "port": "p"} | changes
    return propose_metric(values.pop("metric"), value, values.pop("unit"), **values)
