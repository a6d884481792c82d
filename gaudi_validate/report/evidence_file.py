"""The evidence file: everything that a run measured and would record, as schema-versioned JSON in a stable order."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from gaudi_validate.core import atomic
from gaudi_validate.core.evidence import SCHEMA_VERSION, Evidence
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.provenance import Provenance  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from pathlib import Path

    from gaudi_validate.core.settings import Settings

# The settings that decide what is measured; paths of this machine are left out.
SETTINGS = (
    *("hardware", "hardware_source", "model", "dtype", "port", "attention"),
    *("strict_verdicts", "run_slow", "plant_fault", "ci"),
)
# JSON has no such numbers, and a NaN is evidence.
_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_DO = "give the file that --evidence wrote"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceFile:
    """What the file holds. ``proposals`` are JSON primitives; ``gaudi_validate.golden.proposals`` reads them."""

    provenance: Provenance
    settings: dict[str, str | bool | None] = field(default_factory=dict)
    evidence: tuple[Evidence, ...] = ()
    proposals: tuple[dict[str, Any], ...] = ()
    schema_version: int = SCHEMA_VERSION


def settings_that_matter(settings: Settings) -> dict[str, str | bool | None]:
    """Return the settings that decide what a run measures."""
    return {name: getattr(settings, name) for name in SETTINGS}


def write(path: Path, content: EvidenceFile) -> None:
    """Write the file atomically. Raises UserError if it cannot be written; an older file is then as it was."""
    atomic.write(path, encode(content))


def encode(content: EvidenceFile) -> bytes:
    """Return the file's bytes: the same for the same evidence, in whatever order the tests finished."""
    data: dict[str, Any] = {name: getattr(content, name) for name in ("schema_version", "settings")}
    data["provenance"] = msgspec.to_builtins(content.provenance)
    data["evidence"] = _in_order([_finite(msgspec.to_builtins(one)) for one in content.evidence])
    data["proposals"] = _in_order(list(content.proposals))
    order = ("schema_version", "provenance", "settings", "evidence", "proposals")
    return (json.dumps({key: data[key] for key in order}, indent=1, allow_nan=False) + "\n").encode("ascii")


def read(path: Path) -> EvidenceFile:
    """Read the file. Raises UserError, one line with the file and the JSON path, for anything that is not one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read ({error.strerror or error})", where=str(path), do=_DO) from None
    return decode(data, str(path))


def decode(data: bytes, where: str) -> EvidenceFile:
    """Return what ``data`` holds; ``where`` names it in an error, see :func:`read`."""
    try:
        raw = msgspec.json.decode(data)
        _check_version(raw, where)
        content = msgspec.convert(_numbers(raw), EvidenceFile)
        if (unknown := _unknown(raw, msgspec.to_builtins(content), "$")) is not None:
            raise UserError(f"not an evidence file (unknown field {unknown})", where=where, do=_DO)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError) as error:
        detail = str(error).replace(" - at ", " at ").replace("`", "")
        raise UserError(f"not an evidence file ({detail})", where=where, do=_DO) from None
    return content


def _check_version(raw: Any, where: str) -> None:
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise UserError(
            f"written by a newer gaudi-validate (schema_version {version}, this one reads {SCHEMA_VERSION})",
            where=where,
            do="upgrade gaudi-validate",
        )
    if version != SCHEMA_VERSION:
        raise UserError(f"not an evidence file (schema_version must be {SCHEMA_VERSION})", where=where, do=_DO)


def _in_order(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by everything but how long it took."""
    return sorted(records, key=lambda one: json.dumps({**one, "duration_s": None}, sort_keys=True))


def _finite(evidence: dict[str, Any]) -> dict[str, Any]:
    """Return the record with NaN and infinities by name."""
    measured = [
        {name: _name(value) if name in ("value", "limit") else value for name, value in one.items()}
        for one in evidence["measurements"]
    ]
    return {**evidence, "measurements": measured, "duration_s": _name(evidence["duration_s"])}


def _name(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _numbers(raw: dict[str, Any]) -> dict[str, Any]:
    """Return ``raw`` with the numbers for the names that :func:`_finite` wrote; whatever else is wrong stays."""
    records = raw.get("evidence")
    if not isinstance(records, list):
        return raw
    return {**raw, "evidence": [_numbers_of(one) if isinstance(one, dict) else one for one in records]}


def _numbers_of(evidence: dict[str, Any]) -> dict[str, Any]:
    measured = evidence.get("measurements")
    if not isinstance(measured, list):
        return evidence
    return {**evidence, "measurements": [_number(one) if isinstance(one, dict) else one for one in measured]}


def _number(measurement: dict[str, Any]) -> dict[str, Any]:
    named = {
        name: _NAMES[value]
        for name in ("value", "limit")
        if isinstance(value := measurement.get(name), str) and value in _NAMES
    }
    return {**measurement, **named}


def _unknown(raw: Any, known: Any, path: str) -> str | None:
    """Return the JSON path of the first field that the schema does not have. Free-form values have all of theirs."""
    if isinstance(raw, dict) and isinstance(known, dict):
        pairs = [(f"{path}.{key}", value, known.get(key, _MISSING)) for key, value in raw.items()]
    elif isinstance(raw, list) and isinstance(known, (list, tuple)):
        pairs = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(raw, known, strict=True))]
    else:
        return None
    for inner, value, counterpart in pairs:
        if counterpart is _MISSING:
            return inner
        if (found := _unknown(value, counterpart, inner)) is not None:
            return found
    return None


_MISSING = object()
