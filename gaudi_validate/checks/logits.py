"""Whole-model logits against the reference: G over all rows, and log-probabilities of the tokens that matter.

Shapes: R rows, V vocabulary, K the reference's top tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gaudi_validate.checks import budgets, teacher
from gaudi_validate.checks.errors import judge
from gaudi_validate.checks.run import EXPERTS, chooses_experts, dtype_name, evidence_of, run_of
from gaudi_validate.core.evidence import Location, Measurement
from gaudi_validate.core.text_verdict import ulp
from gaudi_validate.core.verdicts import Status

if TYPE_CHECKING:
    from gaudi_validate.checks.errors import Judged
    from gaudi_validate.checks.run import Run, What
    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

CHECK = "logits"


@dataclass(frozen=True, slots=True)
class LogprobBudget:
    """|Δlogprob| over the reference's top tokens, of port and naive, the port's limits, and the row of its worst."""

    quantile: float
    quantile_naive: float
    quantile_limit: float
    worst: float
    worst_naive: float
    worst_limit: float
    row: int


def logits_parity(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    what: What | teacher.Forced,
    dtype: torch.dtype,
    *,
    hardware: str = "cpu",
) -> Evidence:
    """Return whether the model's logits in ``dtype`` are no further from the reference than the naive path's.

    ``what``: a scenario, inputs or prompts, as for precision parity, judged by G over its real tokens; or texts to
    force (``checks.teacher.force``), where the log-probabilities of the reference's top tokens are judged as well,
    given the 8 x 64 rows that their rule was set for. Port and naive take the decode path, the reference is eager in
    fp32 (fp64 where fp32 is judged). Beyond a limit a model with experts is INCONCLUSIVE: see ``checks.run.EXPERTS``.
    """
    forced = isinstance(what, teacher.Forced)
    run = run_of(pool, port, spec, what.inputs if isinstance(what, teacher.Forced) else what, dtype, hardware=hardware)
    by_others = naive_and_reference(run)  # what these raise is not the port's failure

    def judge_run(evidence: Evidence) -> Evidence:
        rows = (teacher.port_logits(run), *by_others)
        budget = logprob_budget(*rows, run.format.bits) if forced else None
        precise = dtype_name(teacher.precise(dtype))
        evidence = replace(evidence, details=(f"reference: transformers' eager attention in {precise} on the CPU",))
        return _verdict(evidence, run, judge(*rows, run.format), budget, rows=len(rows[0]))

    return evidence_of(CHECK, run, judge_run)


def judge_logits(run: Run) -> Judged:
    """Judge the rows that the inputs mark as real; only G and the pattern mean anything for whole-model logits."""
    return judge(*three_rows(run), run.format)


def three_rows(run: Run) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the logits [R, V] of port, naive path and reference, in the rows that the inputs mark as real."""
    return (teacher.port_logits(run), *naive_and_reference(run))


def naive_and_reference(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits [R, V] of naive path and reference in the same rows."""
    return teacher.naive_logits(run), teacher.reference_logits(run, teacher.precise(run.dtype))


def logprob_budget(port: torch.Tensor, naive: torch.Tensor, reference: torch.Tensor, bits: int) -> LogprobBudget:
    """Compare log-probabilities [R, V] at the reference's top tokens; ``bits`` of significand of the port's dtype.

    The quantile may exceed naive's by the factor and one ulp of the median |logit| of these tokens, the maximum by its
    factor and one ulp of the largest. Port values that are NaN count as infinitely far off.
    """
    top = reference.topk(min(budgets.TOP_TOKENS, reference.shape[-1]), dim=-1)
    truth = _logprobs(reference, top.indices)
    off = (_logprobs(port, top.indices) - truth).abs().nan_to_num(nan=torch.inf)
    off_naive = (_logprobs(naive, top.indices) - truth).abs()
    quantile, quantile_naive = (float(_quantile(one)) for one in (off, off_naive))
    worst, worst_naive = float(off.max()), float(off_naive.max())
    typical, largest = float(top.values.abs().median()), float(top.values.abs().max())
    return LogprobBudget(
        quantile=quantile,
        quantile_naive=quantile_naive,
        quantile_limit=budgets.LOGPROB_QUANTILE_FACTOR * quantile_naive + ulp(typical, bits),
        worst=worst,
        worst_naive=worst_naive,
        worst_limit=budgets.LOGPROB_MAX_FACTOR * worst_naive + ulp(largest, bits),
        row=int(off.amax(-1).argmax()),
    )


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities [R, K] of ``tokens`` in fp64, a few rows at a time: R x V in fp64 would be large."""
    parts = [
        rows.double().log_softmax(-1).gather(-1, index)
        for rows, index in zip(torch.split(logits, 64), torch.split(tokens, 64), strict=True)
    ]
    return torch.cat(parts)


def _quantile(values: torch.Tensor) -> torch.Tensor:
    """Return the nearest-rank quantile: an infinite value elsewhere must not turn it into NaN by interpolation."""
    ordered = values.flatten().sort().values
    return ordered[int(budgets.LOGPROB_QUANTILE * (len(ordered) - 1))]


def _verdict(evidence: Evidence, run: Run, judged: Judged, budget: LogprobBudget | None, *, rows: int) -> Evidence:
    measurements = [
        Measurement(name="G of logits", value=judged.g, unit="naive's error", limit=budgets.LOGITS_G),
        Measurement(name="NaN or infinite where naive is not", value=judged.pattern, unit="logits", limit=0),
        Measurement(name="rows judged", value=rows, unit="tokens"),
    ]
    if budget is not None:
        measurements += _logprob_measurements(budget, enough=rows >= budgets.LOGPROB_ROWS)
    broken = [one for one in measurements if one.within is False]
    evidence = replace(evidence, measurements=tuple(measurements))
    shown = broken or [one for one in measurements if one.limit is not None and one.unit != "logits"]
    reason = "; ".join(f"{one.name} {one.value:.3g}, limit {one.limit:.3g}" for one in shown)
    if not broken:
        return replace(evidence, reason=f"{reason}; {rows} rows")
    if not judged.pattern and chooses_experts(run.model()):
        return replace(evidence, status=Status.INCONCLUSIVE, reason=f"{reason}; {EXPERTS}")
    row = judged.row if budget is None or judged.pattern else budget.row
    batch_row, column = run.inputs.real.nonzero()[row].tolist()
    location = Location(batch_row=batch_row, query_row=column, note="the row with the worst error")
    return replace(evidence, status=Status.FAIL, reason=reason, location=location)


def _logprob_measurements(budget: LogprobBudget, *, enough: bool) -> list[Measurement]:
    unit, percent = "nat", f"{budgets.LOGPROB_QUANTILE:.0%}"
    return [
        Measurement(
            name=f"|Δlogprob| at {percent}",
            value=budget.quantile,
            unit=unit,
            limit=budget.quantile_limit if enough else None,
        ),
        Measurement(
            name="worst |Δlogprob|", value=budget.worst, unit=unit, limit=budget.worst_limit if enough else None
        ),
        Measurement(name=f"naive's |Δlogprob| at {percent}", value=budget.quantile_naive, unit=unit),
        Measurement(name="naive's worst |Δlogprob|", value=budget.worst_naive, unit=unit),
    ]
