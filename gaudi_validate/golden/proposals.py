"""Proposals: what a run would record, as JSON primitives on a test's report. Tests propose, the controller writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.records import NonEmpty, TokenId  # noqa: TC001 - msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gaudi_validate.core.verdicts import Status
    from gaudi_validate.golden.generated import Generated
    from gaudi_validate.golden.records import TextGolden


class TextProposal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="text", tag_field="kind"):
    """A text that a port wrote. ``status``: how it compared with the golden that was there; ``golden``: its digest.

    Without the digest a tie with one golden could pass for a tie with another, when ``accept`` runs on a later commit.
    """

    hardware: NonEmpty
    model: NonEmpty
    port: NonEmpty
    case: NonEmpty
    status: str
    text: str
    prompt: str
    ids: tuple[TokenId, ...]
    prompt_ids: tuple[TokenId, ...]
    margins: tuple[float, ...]
    dtype: NonEmpty
    golden: str | None = None
    test: str | None = None


class MetricProposal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="baseline", tag_field="kind"):
    """A number that was measured. ``metric`` names it in the baseline file; see ``core.baseline_rules.Baseline``."""

    hardware: NonEmpty
    model: NonEmpty
    port: NonEmpty
    metric: NonEmpty
    value: int | float
    unit: str
    rule: Literal["count", "memory", "speed"]
    better: Literal["lower", "higher"] = "lower"
    tolerance: Annotated[float, Meta(ge=0)] = 0.0
    samples: Annotated[int, Meta(ge=1)] = 1
    test: str | None = None


Proposal = TextProposal | MetricProposal


def propose_text(
    generated: Generated,
    golden: TextGolden | None,
    *,
    hardware: str,
    model: str,
    port: str,
    case: str,
    status: Status,
    test: str | None = None,
) -> dict[str, Any]:
    """Return the proposal of a text, to be put on the test's report; ``golden`` is what it was compared with."""
    return _primitives(
        TextProposal(
            hardware=hardware,
            model=model,
            port=port,
            case=case,
            status=status.value,
            text=generated.text,
            prompt=generated.prompt,
            ids=generated.ids,
            prompt_ids=generated.prompt_ids,
            margins=generated.margins,
            dtype=generated.dtype,
            golden=None if golden is None else golden.digest,
            test=test,
        )
    )


def propose_metric(
    metric: str,
    value: float,
    unit: str,
    *,
    hardware: str,
    model: str,
    port: str,
    rule: Literal["count", "memory", "speed"],
    better: Literal["lower", "higher"] = "lower",
    tolerance: float = 0.0,
    samples: int = 1,
    test: str | None = None,
) -> dict[str, Any]:
    """Return the proposal of a number, to be put on the test's report.

    Args:
        metric: its name in the baseline file, such as "peak/tiny-llama/hpu_sliced/S8192".
        value: what was measured; whole for counts and peaks.
        unit: of the value.
        hardware: the key that it was measured on.
        model: the model whose logic parity must have passed.
        port: the port whose logic parity must have passed.
        rule: "count" (exact), "memory" (a device's peak, bytes) or "speed".
        better: which way is better.
        tolerance: declared, relative.
        samples: how many measurements are behind the value.
        test: the test's id.
    """
    return _primitives(
        MetricProposal(
            hardware=hardware,
            model=model,
            port=port,
            metric=metric,
            value=value,
            unit=unit,
            rule=rule,
            better=better,
            tolerance=tolerance,
            samples=samples,
            test=test,
        )
    )


def parse(data: Mapping[str, Any]) -> Proposal:
    """Return the proposal in ``data``. Raises UserError with the JSON path of the first mistake."""
    try:
        if data.get("kind") == "text":
            return msgspec.convert(data, TextProposal)
        return msgspec.convert(data, MetricProposal)
    except msgspec.ValidationError as error:
        where = str(data.get("test") or data.get("case") or data.get("metric") or "")
        raise UserError(f"not a golden proposal ({error})", where=where, do="record it with this version") from None


def _primitives(proposal: Proposal) -> dict[str, Any]:
    """Lists, not tuples: execnet keeps them apart, and JSON does not."""
    fields: dict[str, Any] = msgspec.to_builtins(proposal)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
