"""Precision parity: rounding errors of a port in the deployed dtype against those of the naive path, call by call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gaudi_validate.checks import budgets, calls
from gaudi_validate.checks.diagnosis import phase
from gaudi_validate.checks.errors import Judged, judge
from gaudi_validate.checks.logits import judge_logits
from gaudi_validate.checks.run import chooses_experts, evidence_of, run_of
from gaudi_validate.core.evidence import Evidence, Location, Measurement
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from gaudi_validate.checks.run import Run, What
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

CHECK = "precision parity"
_JUDGED_BY = "judged by transformers' eager attention on the same rounded inputs, the truth in float64"


@dataclass(frozen=True, slots=True)
class JudgedCall:
    """One attention call: its place, and what :func:`gaudi_validate.checks.errors.judge` says of its real rows."""

    layer: int | None
    phase: str
    batch_row: int
    column: int
    head: int
    judged: Judged


def precision_parity(
    pool: ModelPool, port: Port, spec: ModelSpec, what: What, dtype: torch.dtype, *, hardware: str = "cpu"
) -> Evidence:
    """Return whether every attention call of ``port`` rounds no worse than the naive path on the same inputs.

    Args:
        pool: loads models, once a session.
        port: the port under test; naive is transformers' eager attention.
        spec: the model.
        what: a scenario, its inputs, or prompts (text or ids): see ``checks.prompts.prompt_inputs``.
        dtype: the deployed dtype: bf16, fp16 or fp32; any other is a ValueError.
        hardware: the key of the hardware that port and naive run on; references are computed on the CPU.

    Where the port does not route attention through transformers' interface, or not in the reference's shapes, its calls
    are NOT_MEASURED and whole-model logits stand beside that; beyond their limit it is a FAIL.
    """
    run = run_of(pool, port, spec, what, dtype, hardware=hardware)
    # What earlier calls leave behind is not looked at here: every call's inputs are the reference's.
    run = replace(run, inputs=replace(run.inputs, calls=run.inputs.calls[-1:]))
    measure = calls.yardstick(run)
    return evidence_of(CHECK, run, lambda evidence: _judge(replace(evidence, details=(_JUDGED_BY,)), run, measure))


def _judge(evidence: Evidence, run: Run, measure: calls.Yardstick) -> Evidence:
    try:
        outputs = calls.outputs(run)
        why = "" if outputs else "the port's attention does not go through transformers' interface"
    except calls.CallMismatch as error:
        outputs, why = [], str(error)
    except UserError as error:
        if run.port.attention is not None:
            raise
        outputs, why = [], str(error)
    if why:
        return _whole_model(evidence, run, why)
    found = [_judge_call(run, measure, index, output) for index, output in enumerate(outputs)]
    return _verdict(evidence, found)


def _judge_call(run: Run, measure: calls.Yardstick, index: int, output: torch.Tensor) -> JudgedCall:
    inputs = run.inputs
    passes = inputs.calls[-1]
    which = index * len(passes) // len(measure.truth)  # every pass calls each layer once
    one = passes[which]
    real = inputs.real[:, one.start : one.start + one.columns]
    truth, naive = measure.truth[index], measure.naive[index]
    if output.shape != truth.shape:
        shape = tuple(output.shape)
        raise UserError(f"attention returned the shape {shape}, not [B, T, H, D] {tuple(truth.shape)}")
    judged = judge(output[real], naive[real], truth[real], run.format)
    row, head = divmod(judged.row, truth.shape[2])
    batch_row, column = real.nonzero()[row].tolist() if bool(real.any()) else (0, 0)
    return JudgedCall(
        layer=measure.layers[index],
        phase=phase(passes, which),
        batch_row=batch_row,
        column=one.start + column,
        head=head,
        judged=judged,
    )


def _verdict(evidence: Evidence, found: Sequence[JudgedCall]) -> Evidence:
    limit = budgets.CALLS[evidence.dtype]
    pattern = sum(one.judged.pattern for one in found)
    by_g = max(found, key=lambda one: one.judged.g)
    by_w = max(found, key=lambda one: one.judged.w)
    over = [one for one in found if _excess(one, limit) > 1]
    measurements = (
        Measurement(name="worst G of a call", value=by_g.judged.g, unit="naive's error", limit=limit.g),
        Measurement(name="worst W of a call", value=by_w.judged.w, unit="naive's error", limit=limit.w),
        Measurement(name="NaN or infinite where naive is not", value=pattern, unit="values", limit=0),
        Measurement(name="attention calls judged", value=len(found), unit="calls"),
        Measurement(name="attention calls over a limit", value=len(over), unit="calls", limit=0),
    )
    figures = (
        f"G {by_g.judged.g:.3g}, limit {limit.g:g}; W {by_w.judged.w:.3g}, limit {limit.w:g}, "
        f"worst of {len(found)} calls"
    )
    evidence = replace(evidence, measurements=measurements)
    if not over:
        return replace(evidence, reason=figures)
    worst = max(found, key=lambda one: _excess(one, limit))
    if pattern:
        figures = f"{pattern} values of real rows are NaN or infinite where the naive path's are not"
    location = Location(
        layer=worst.layer,
        phase=worst.phase,
        batch_row=worst.batch_row,
        head=worst.head,
        query_row=worst.column,
        note=f"the worst of {len(over)} of {len(found)} attention calls over a limit",
    )
    return replace(evidence, status=Status.FAIL, reason=figures, location=location)


def _excess(one: JudgedCall, limit: budgets.CallBudget) -> float:
    return max(one.judged.g / limit.g, one.judged.w / limit.w)


def _whole_model(evidence: Evidence, run: Run, why: str) -> Evidence:
    judged = judge_logits(run)
    excused = chooses_experts(run.model()) and not judged.pattern
    figure = f"whole-model logits: G {judged.g:.3g}, limit {budgets.LOGITS_G:g}"
    measurement = Measurement(
        name="G of whole-model logits", value=judged.g, unit="naive's error", limit=budgets.LOGITS_G
    )
    return replace(
        evidence,
        status=Status.NOT_MEASURED if measurement.within or excused else Status.FAIL,
        reason=f"attention calls not measured: {why}; {figure}",
        measurements=(measurement, Measurement(name="attention calls judged", value=0, unit="calls")),
    )
