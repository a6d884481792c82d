"""What rides on a test report from a pytest-xdist worker to the controller: keys, and values as JSON primitives.

``workeroutput`` is lost when a worker dies; a test report's ``user_properties`` have arrived by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gaudi_validate.core.evidence import Evidence, Location, Measurement
from gaudi_validate.core.verdicts import Status

EVIDENCE_KEY = "gaudi_validate.evidence"
PROPOSAL_KEY = "gaudi_validate.proposal"
DEVICE_KEY = "gaudi_validate.device"


def primitives(value: Any) -> Any:
    """Return ``value`` of dicts, sequences and scalars as plain dict, list, str, int, float, bool and ``None``.

    Subclasses (numpy's float64 is a float) become their base; anything else raises TypeError naming its type, since
    execnet would refuse it later and far from the cause.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): primitives(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [primitives(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot travel on a test report; use JSON primitives")


def sent(properties: Sequence[tuple[str, object]], key: str) -> list[dict[str, Any]]:
    """Return the records that were sent under ``key`` in a report's ``user_properties``."""
    return [value for name, value in properties if name == key and isinstance(value, dict)]


def evidence_from(data: Mapping[str, Any]) -> Evidence:
    """Return the evidence whose ``to_json`` is ``data``."""
    values = {field.name: data[field.name] for field in fields(Evidence) if field.name in data}
    values["status"] = Status(data["status"])
    values["measurements"] = tuple(Measurement(**one) for one in data.get("measurements", ()))
    values["details"] = tuple(data.get("details", ()))
    if data.get("location") is not None:
        values["location"] = Location(**data["location"])
    return Evidence(**values)
