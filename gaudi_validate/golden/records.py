"""What golden files hold, read strictly: an unknown field, a wrong type or a newer schema is one clear line."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gaudi_validate.core.baseline_rules import Baseline, Session, moment_of
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.layout import render

if TYPE_CHECKING:
    from gaudi_validate.core.provenance import Provenance

SCHEMA_VERSION = 1
TokenId = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0)]
NonEmpty = Annotated[str, Meta(min_length=1)]


class ProvenanceRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One recording; see :class:`gaudi_validate.core.provenance.Provenance`. Never who measured."""

    date: NonEmpty
    hardware: NonEmpty
    reason: NonEmpty
    commit: str | None = None
    driver: str | None = None
    device: str | None = None
    versions: dict[str, str] = {}
    samples: Annotated[int, Meta(ge=1)] = 1


class TextGolden(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A reviewed text. The fields stand in the file's order.

    ``ids`` are the generated tokens, ``margins`` the reference's top-2 logit margin at each of them (empty: not
    recorded), ``dtype`` the deployed dtype. ``provenance`` grows by one entry at each update, the newest last.
    """

    text: str
    prompt: str
    ids: tuple[TokenId, ...]
    prompt_ids: tuple[TokenId, ...]
    margins: tuple[float, ...]
    dtype: NonEmpty
    provenance: Annotated[tuple[ProvenanceRecord, ...], Meta(min_length=1)]
    schema_version: Literal[1] = 1

    def __post_init__(self) -> None:
        if len(self.margins) not in (0, len(self.ids)):
            raise ValueError(f"{len(self.margins)} margins for {len(self.ids)} ids")
        if not all(math.isfinite(margin) for margin in self.margins):
            raise ValueError("margins must be finite")

    @property
    def hardware(self) -> str:
        """The hardware that the text was last recorded on."""
        return self.provenance[-1].hardware

    @property
    def digest(self) -> str:
        """A name for exactly this golden."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


class SessionRecord(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one run measured. ``date`` is UTC in ISO 8601."""

    def __post_init__(self) -> None:
        moment_of(self.date)

    date: NonEmpty
    value: int | float
    samples: Annotated[int, Meta(ge=1)] = 1
    commit: str | None = None


class Metric(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A recorded number; see :class:`gaudi_validate.core.baseline_rules.Baseline` for the rules that read it."""

    value: int | float
    unit: str
    kind: Literal["count", "memory", "speed"]
    better: Literal["lower", "higher"]
    tolerance: Fraction
    anchor: int | float | None = None
    sessions: Annotated[tuple[SessionRecord, ...], Meta(min_length=1)]
    provenance: Annotated[tuple[ProvenanceRecord, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        numbers = [self.value, *(one.value for one in self.sessions)]
        if not all(math.isfinite(number) for number in numbers):
            raise ValueError("values must be finite")
        if self.kind != "speed" and not (self.better == "lower" and all(isinstance(one, int) for one in numbers)):
            raise ValueError(f"a {self.kind} is whole numbers, of which lower is better")

    def baseline(self, name: str) -> Baseline:
        """Return what the rules judge by."""
        newest = self.provenance[-1]
        return Baseline(
            name=name,
            value=self.value,
            unit=self.unit,
            kind=self.kind,
            better=self.better,
            tolerance=self.tolerance,
            anchor=self.anchor,
            sessions=tuple(Session(date=one.date, value=one.value) for one in self.sessions),
            hardware=newest.hardware,
            device=newest.device,
        )


class BaselineFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The baselines of one hardware key, by metric name."""

    hardware: NonEmpty
    metrics: dict[NonEmpty, Metric]
    schema_version: Literal[1] = 1


class _Versioned(Struct):
    schema_version: int = SCHEMA_VERSION


Record = TypeVar("Record", TextGolden, BaselineFile)


def provenance_record(provenance: Provenance, *, reason: str | None, samples: int | None = None) -> ProvenanceRecord:
    """Return ``provenance`` as it is stored; without a reason the record was created by its first run."""
    values = asdict(provenance) | {"reason": reason or "create", "samples": samples or provenance.samples}
    return msgspec.convert(values, ProvenanceRecord)


def encode(record: TextGolden | BaselineFile) -> bytes:
    """Return the file's content: pretty, stable, and decoded again to the same record.

    Raises:
        UserError: the text holds half of a surrogate pair, or a number is not finite.
    """
    fields: dict[str, Any] = msgspec.to_builtins(record)
    if isinstance(record, BaselineFile):
        fields["metrics"] = dict(sorted(fields["metrics"].items()))
    try:
        return render(fields).encode("utf-8")
    except ValueError as error:  # UnicodeEncodeError is one
        raise UserError("cannot be stored as JSON", where=str(error), do="keep it out of the goldens") from None


def decode(data: bytes, kind: type[Record], where: str) -> Record:
    """Return the record in ``data``; ``where`` is the file's name, for the error.

    Raises:
        UserError: one line with the file, the JSON path of the first mistake, and what to do.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise UserError(
                f"written by a newer gaudi-validate (schema_version {version}, this one reads {SCHEMA_VERSION})",
                where=where,
                do="upgrade gaudi-validate",
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise unreadable(kind, where, error) from None


def unreadable(kind: type[Record], where: str, error: Exception) -> UserError:
    """Return the one line for a file that is not what it should be."""
    noun = "golden" if kind is TextGolden else "baseline file"
    detail = str(error).replace(" - at ", " at ").replace("`", "")
    return UserError(
        f"not a {noun} ({detail})",
        where=where,
        do=f"restore it with git checkout -- {where}, or delete it and record it again with --update-golden",
    )
