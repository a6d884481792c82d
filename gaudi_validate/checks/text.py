"""Text: what a port writes with the model's own ``generate``, greedily, and whether that is its golden.

Shapes: B prompts, V vocabulary; R rows, one for each token of each golden.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig

from gaudi_validate.checks import budgets, teacher
from gaudi_validate.checks.kept import MIB, Kept
from gaudi_validate.checks.logits import three_rows
from gaudi_validate.checks.prompts import left_padded, pad_token, token_ids
from gaudi_validate.checks.run import dtype_name, evidence_of, run_of
from gaudi_validate.core.evidence import Location, Measurement
from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.text_verdict import (
    Difference,
    TextDecision,
    TextVerdict,
    decide,
    first_difference,
    tie_allowance,
    worst_verdict,
)
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.checkpoints import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from transformers import PreTrainedModel

    from gaudi_validate.checks.prompts import Prompt
    from gaudi_validate.checks.run import Run
    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

CHECK = "text"
NEW_TOKENS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """A text and what a golden keeps of it, all JSON primitives.

    ``ids`` are the new tokens up to and with the end token; ``text`` is what they say, special tokens left out.
    ``margins``: the fp32 reference's best logit minus its second best, at each of them. ``dtype``: that of the port.
    """

    prompt: str
    text: str
    prompt_ids: list[int]
    ids: list[int]
    margins: list[float]
    dtype: str


_GENERATED: Kept[list[list[int]]] = Kept(16 * MIB, lambda texts: sum(map(len, texts)) * 8)


def generate(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    prompts: Sequence[Prompt],
    *,
    new_tokens: int = NEW_TOKENS,
    dtype: torch.dtype,
    hardware: str = "cpu",
) -> list[GeneratedText]:
    """Return what ``port`` writes after each prompt: greedy, one left-padded batch, cached for the session."""
    ids = written(pool, port, spec, prompts, new_tokens=new_tokens, dtype=dtype, hardware=hardware)
    prompt_ids = token_ids(pool, spec, prompts)
    forced = teacher.force(prompt_ids, ids, pad=pad_token(pool, spec, prompts))
    run = run_of(pool, port, spec, forced.inputs, dtype, hardware=hardware)
    best = teacher.reference_logits(run, torch.float32).topk(2, dim=-1).values
    margins = torch.split(best[:, 0] - best[:, 1], list(forced.lengths))
    return [
        GeneratedText(
            prompt=prompt if isinstance(prompt, str) else _words(pool, spec, prompt),
            text=_words(pool, spec, text),
            prompt_ids=prompt_ids[index],
            ids=text,
            margins=[float(margin) for margin in margins[index]],
            dtype=dtype_name(dtype),
        )
        for index, (prompt, text) in enumerate(zip(prompts, ids, strict=True))
    ]


def written(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    prompts: Sequence[Prompt],
    *,
    new_tokens: int = NEW_TOKENS,
    dtype: torch.dtype,
    hardware: str = "cpu",
) -> list[list[int]]:
    """Return the ids that ``port`` writes after each prompt; :func:`generate` adds the reference's margins."""
    budgets.format_of(dtype_name(dtype))
    device = torch.device(lookup(hardware).device)
    rows = token_ids(pool, spec, prompts)
    pad = pad_token(pool, spec, prompts)

    def compute() -> list[list[int]]:
        return _greedy(pool.get(spec, port, dtype, device), port, rows, pad, new_tokens)

    key = (fingerprint(pool.checkpoint(spec)), port, str(rows), new_tokens, dtype, hardware)
    return [list(text) for text in _GENERATED.get(pool, key, compute)]


def compare(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    generated: Sequence[GeneratedText],
    golden_ids: Sequence[Sequence[int]],
    *,
    dtype: torch.dtype,
    strict: bool = False,
    hardware: str = "cpu",
) -> Evidence:
    """Return whether the texts that ``port`` wrote are their goldens: IDENTICAL and TIE pass, DIVERGED fails.

    Where ids differ, the port decodes the golden's own tokens; wherever it would write another, and where the generated
    text first differs, the reference must hardly prefer the golden's: see ``core.text_verdict``. With ``strict`` a TIE
    fails too.
    """
    if len(generated) != len(golden_ids):
        raise UserError(f"{len(generated)} texts and {len(golden_ids)} goldens", where=spec.name)
    if any(not golden for golden in golden_ids):
        raise UserError("a golden has no tokens", where=spec.name, do="update the golden")
    # What follows a shorter text is seen by nothing that is judged, so that any id will do there.
    forced = teacher.force([one.prompt_ids for one in generated], golden_ids, pad=0)
    run = run_of(pool, port, spec, forced.inputs, dtype, hardware=hardware)
    case = _Case(run=run, forced=forced, generated=generated, golden_ids=golden_ids)
    return evidence_of(CHECK, run, lambda evidence: _judge(evidence, case, strict=strict))


def _judge(evidence: Evidence, case: _Case, *, strict: bool) -> Evidence:
    count = len(case.generated)
    differing = [
        index
        for index, one in enumerate(case.generated)
        if first_difference(case.golden_ids[index], one.ids) is not None
    ]
    evidence = replace(evidence, scenario="greedy text")
    if not differing:
        tokens = sum(map(len, case.golden_ids))
        reason = f"{TextVerdict.IDENTICAL}: {count} texts, {tokens} tokens"
        return replace(evidence, reason=reason, measurements=_measurements([], count))
    found = _differences(case, differing)
    decisions = [
        (index, decide(len(case.golden_ids[index]), found[index], share=budgets.TIE_SHARE)) for index in differing
    ]
    return _verdict(evidence, case, decisions, strict=strict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Case:
    run: Run
    forced: teacher.Forced
    generated: Sequence[GeneratedText]
    golden_ids: Sequence[Sequence[int]]

    def words(self, ids: Sequence[int]) -> str:
        return _words(self.run.pool, self.run.spec, ids)


def _greedy(
    model: PreTrainedModel, port: Port, rows: Sequence[Sequence[int]], pad: int, new_tokens: int
) -> list[list[int]]:
    ids_BP, mask_BP = left_padded(rows, pad)
    ends = _end_tokens(model)
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=new_tokens,
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
        return_dict_in_generate=False,
        pad_token_id=pad,
        eos_token_id=ends or None,
        bos_token_id=model.generation_config.bos_token_id,
    )
    with torch.no_grad(), port.active(model), _generation_config(model, config):
        result: torch.Tensor = model.generate(  # type: ignore[operator]
            ids_BP.to(model.device), attention_mask=mask_BP.to(model.device), generation_config=config
        )
    return [_until_end(row, ends) for row in result[:, ids_BP.shape[1] :].tolist()]


def _end_tokens(model: PreTrainedModel) -> list[int]:
    end = model.generation_config.eos_token_id
    return [] if end is None else [end] if isinstance(end, int) else list(end)


def _until_end(ids: list[int], ends: Sequence[int]) -> list[int]:
    """Cut what follows the first end token: padding."""
    stop = next((step for step, token in enumerate(ids) if token in ends), len(ids) - 1)
    return ids[: stop + 1]


@contextmanager
def _generation_config(model: PreTrainedModel, config: GenerationConfig) -> Iterator[None]:
    """Make ``config`` the model's own: transformers fills what it takes for unset from there, and versions differ."""
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def _differences(case: _Case, differing: Sequence[int]) -> dict[int, list[Difference]]:
    """Return, for each text that differs, where the port would not write the golden's token, the golden's before it."""
    rows = three_rows(case.run)
    best = rows[0].argmax(-1)
    found: dict[int, list[Difference]] = {}
    for index in differing:
        golden, wrote = case.golden_ids[index], case.generated[index].ids
        start = first_difference(golden, wrote) or 0
        tokens = {step: int(best[case.forced.row(index, step)]) for step in range(len(golden))}
        other: dict[int, int | None] = {step: token for step, token in tokens.items() if token != golden[step]}
        other[start] = wrote[start] if start < len(wrote) else None
        found[index] = [_difference(case, rows, (index, step), token) for step, token in other.items()]
    return found


def _difference(
    case: _Case, rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor], place: tuple[int, int], token: int | None
) -> Difference:
    index, step = place
    golden = case.golden_ids[index]
    if token is None or step >= len(golden):
        ended = golden[step] if step < len(golden) else None
        return Difference(step=step, golden=ended, port=token, margin=torch.inf, allowed=0.0)
    row = case.forced.row(index, step)
    _, naive, reference = (one[row, [golden[step], token]].double() for one in rows)
    logits, errors = reference.tolist(), (naive - reference).tolist()
    return Difference(
        step=step,
        golden=golden[step],
        port=token,
        margin=logits[0] - logits[1],
        allowed=tie_allowance(logits, errors, bits=case.run.format.bits, factor=budgets.TIE_FACTOR),
    )


def _verdict(
    evidence: Evidence, case: _Case, decisions: Sequence[tuple[int, TextDecision]], *, strict: bool
) -> Evidence:
    verdict = worst_verdict([decision.verdict for _, decision in decisions])
    failing = next(((index, one) for index, one in decisions if one.verdict is verdict), decisions[0])
    index, decision = failing
    named = decision.culprit or decision.differences[0]
    same = len(case.generated) - len(decisions)
    evidence = replace(
        evidence,
        reason=f"{verdict}: {_too_many(decision)}{_named(case, index, named)}",
        measurements=_measurements([one for _, one in decisions], len(case.generated)),
        details=(f"{same} of {len(case.generated)} texts are identical", *_details(case, decisions)),
    )
    if verdict is TextVerdict.TIE:
        ties = sum(len(one.differences) for _, one in decisions)
        reason = f"{verdict}: {same} of {len(case.generated)} texts identical, {ties} tokens of the others tied"
        evidence = replace(evidence, reason=reason)
        if not strict:
            return evidence
        evidence = replace(evidence, reason=f"{reason}; --strict-verdicts wants equal texts")
    location = Location(batch_row=index, query_row=named.step, note="prompt and token of the text, counted from 0")
    return replace(evidence, status=Status.FAIL, location=location)


def _too_many(decision: TextDecision) -> str:
    """Return, where nothing but the number of ties makes a text diverge, what that is."""
    if decision.culprit is None or not decision.culprit.tie:
        return ""
    return f"{len(decision.differences)} tied tokens, {decision.most} may be; the first too many is "


def _measurements(decisions: Sequence[TextDecision], texts: int) -> tuple[Measurement, ...]:
    diverged = sum(one.verdict is TextVerdict.DIVERGED for one in decisions)
    return (
        Measurement(name="texts diverged", value=diverged, unit="texts", limit=0),
        Measurement(name="texts identical", value=texts - len(decisions), unit="texts"),
        Measurement(name="tied tokens", value=sum(d.tie for o in decisions for d in o.differences), unit="tokens"),
    )


def _named(case: _Case, index: int, difference: Difference) -> str:
    where = f"prompt {index} {case.generated[index].prompt!r}, token {difference.step}"
    golden, port = (_token(case, one) for one in (difference.golden, difference.port))
    if difference.golden is None or difference.port is None:
        return f"{where}: the golden has {golden}, the port {port}"
    return (
        f"{where}: the golden has {golden}, the port {port}; the reference prefers the golden's by "
        f"{difference.margin:.3g}, a tie is at most {difference.allowed:.3g}"
    )


def _token(case: _Case, token: int | None) -> str:
    return "ended" if token is None else f"{case.words([token])!r} ({token})"


def _details(case: _Case, decisions: Sequence[tuple[int, TextDecision]]) -> tuple[str, ...]:
    lines: list[str] = []
    for index, decision in decisions:
        golden, wrote = case.golden_ids[index], case.generated[index].ids
        start = decision.differences[0].step
        count = f"{len(decision.differences)} tokens differ, {decision.most} may"
        lines.append(f"prompt {index}: {decision.verdict}, {count}")
        lines.append(f"  up to there: {case.generated[index].prompt}{case.words(golden[:start])}")
        lines.append(f"  golden: {case.words(golden[start:])}")
        lines.append(f"  port: {case.words(wrote[start:])}")
        lines += [f"  {_named(case, index, difference)}" for difference in decision.differences]
    return tuple(lines)


def _words(pool: ModelPool, spec: ModelSpec, ids: Sequence[int]) -> str:
    return str(pool.tokenizer(spec).decode(list(ids), skip_special_tokens=True))
