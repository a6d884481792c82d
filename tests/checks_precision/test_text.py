from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GenerationConfig

from gaudi_validate.checks import teacher, text
from gaudi_validate.checks.run import NAIVE, run_of
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.text_verdict import Difference, decide
from gaudi_validate.core.verdicts import Status
from gaudi_validate.ports.transformers_port import TransformersPort

from . import planted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.checks.text import GeneratedText
    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
SDPA = TransformersPort("sdpa")
CPU = torch.device("cpu")


def generate(pool: ModelPool, spec: ModelSpec, port: TransformersPort = NAIVE, **kwargs: Any) -> list[GeneratedText]:
    return text.generate(pool, port, spec, PROMPTS, **{"new_tokens": 40, "dtype": torch.float32, **kwargs})


def compare(
    pool: ModelPool,
    spec: ModelSpec,
    generated: Sequence[GeneratedText],
    goldens: Sequence[Sequence[int]],
    port: TransformersPort = NAIVE,
    **kwargs: Any,
) -> Evidence:
    return text.compare(pool, port, spec, generated, goldens, **{"dtype": torch.float32, **kwargs})


def ids(generated: Sequence[GeneratedText]) -> list[list[int]]:
    return [list(one.ids) for one in generated]


def flags(**kwargs: Any) -> GenerationConfig:
    return GenerationConfig(**kwargs)  # type: ignore[no-untyped-call]


def test_generated_text_is_greedy_and_made_of_json_primitives(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    generated = generate(precision_pool, tiny)
    assert json.loads(json.dumps(asdict(generated[0]))) == asdict(generated[0])
    assert [one.prompt_ids for one in generated] == PROMPTS
    assert {len(one.ids) for one in generated} == {40}
    assert all(margin > 0 for one in generated for margin in one.margins)
    model = precision_pool.get(tiny, NAIVE, torch.float32, CPU)
    for one in generated:
        with torch.no_grad():
            logits = model(torch.tensor([one.prompt_ids + one.ids[:-1]])).logits[0, len(one.prompt_ids) - 1 :]
        assert logits.argmax(-1).tolist() == one.ids


def test_generation_is_done_once_a_session(
    precision_pool: ModelPool, tiny: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ids(generate(precision_pool, tiny))
    monkeypatch.setattr(text, "_greedy", None)
    assert ids(generate(precision_pool, tiny)) == first


def test_the_checkpoint_s_generation_flags_do_not_leak(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    model = precision_pool.get(tiny, NAIVE, torch.float32, CPU)
    before = model.generation_config
    leaking = flags(do_sample=True, repetition_penalty=9.0, num_beams=3, no_repeat_ngram_size=1)
    model.generation_config = leaking
    try:
        leaked = text.written(precision_pool, NAIVE, tiny, PROMPTS, new_tokens=39, dtype=torch.float32)
        assert model.generation_config is leaking
    finally:
        model.generation_config = before
    assert leaked == [one.ids[:39] for one in generate(precision_pool, tiny)]


@pytest.mark.parametrize("as_list", [False, True])
def test_rows_end_at_their_own_end_token(precision_pool: ModelPool, tiny: ModelSpec, as_list: bool) -> None:
    whole = ids(generate(precision_pool, tiny))
    end = whole[1][7]
    model = precision_pool.get(tiny, NAIVE, torch.float32, CPU)
    before, length = model.generation_config, 30 if as_list else 31
    model.generation_config = flags(eos_token_id=[end] if as_list else end)
    try:
        ended = text.written(precision_pool, NAIVE, tiny, PROMPTS, new_tokens=length, dtype=torch.float32)
    finally:
        model.generation_config = before
    for cut, full in zip(ended, whole, strict=True):
        stop = full.index(end) + 1 if end in full[:length] else length
        assert cut == full[:stop]
    assert len(ended[1]) <= 8


@pytest.mark.parametrize("attention", ["naive", "sdpa", "hpu_sliced", "hpu_fused"])
def test_correct_ports_write_the_same(precision_pool: ModelPool, tiny: ModelSpec, attention: str) -> None:
    port = TransformersPort(attention)
    goldens = ids(generate(precision_pool, tiny))
    evidence = compare(precision_pool, tiny, generate(precision_pool, tiny, port), goldens, port)
    assert (evidence.status, evidence.reason) == (Status.PASS, "IDENTICAL: 3 texts, 120 tokens")


@pytest.mark.parametrize("strict", [False, True])
def test_a_fault_diverges_and_is_located(precision_pool: ModelPool, tiny: ModelSpec, strict: bool) -> None:
    port = TransformersPort(planted.drops_a_key())
    goldens = ids(generate(precision_pool, tiny))
    generated = generate(precision_pool, tiny, port)
    evidence = compare(precision_pool, tiny, generated, goldens, port, strict=strict)
    assert evidence.status is Status.FAIL
    assert evidence.reason.startswith("DIVERGED: prompt ")
    assert "; the reference prefers the golden's by " in evidence.reason
    assert evidence.location is not None
    prompt, step = evidence.location.batch_row, evidence.location.query_row
    assert prompt is not None
    assert step is not None
    assert f"({goldens[prompt][step]}), the port" in evidence.reason
    assert any(line.startswith("  up to there: ") for line in evidence.details)


def words(pool: ModelPool, spec: ModelSpec, token: int) -> str:
    return f"{pool.tokenizer(spec).decode([token])!r} ({token})"


def tied(pool: ModelPool, spec: ModelSpec, dtype: torch.dtype) -> tuple[list[list[int]], int, int]:
    """Return goldens whose text 0 has the reference's second best token at the step of the least margin."""
    generated = generate(pool, spec)
    margins = generated[0].margins
    step = margins.index(min(margins))
    forced = teacher.force(PROMPTS, ids(generated), pad=0)
    run = run_of(pool, NAIVE, spec, forced.inputs, dtype, hardware="cpu")
    second = int(teacher.reference_logits(run, torch.float32)[forced.row(0, step)].topk(2).indices[1])
    goldens = [one.ids[: step + 1] for one in generated]
    goldens[0][step] = second
    return goldens, step, second


def test_a_tie_passes_is_shown_and_fails_when_strict(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    """The port writes the reference's own best token: a golden that holds another one can only have been a tie."""
    goldens, step, second = tied(precision_pool, tiny, torch.bfloat16)
    generated = [replace(one, ids=one.ids[: step + 1]) for one in generate(precision_pool, tiny)]
    evidence = compare(precision_pool, tiny, generated, goldens)
    assert evidence.status is Status.PASS
    assert evidence.reason == "TIE: 2 of 3 texts identical, 1 tokens of the others tied"
    assert f"token {step}: the golden has {words(precision_pool, tiny, second)}, the port " in evidence.details[-1]
    strict = compare(precision_pool, tiny, generated, goldens, strict=True)
    assert strict.status is Status.FAIL
    assert strict.reason.endswith("; --strict-verdicts wants equal texts")


def test_the_same_margin_the_other_way_is_a_defect_in_fp32(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    """What bf16 could excuse, fp32 does not: the text says the second best token where the golden has the best."""
    goldens, step, second = tied(precision_pool, tiny, torch.float32)
    wrote = [list(golden) for golden in goldens]
    goldens = [one.ids[: step + 1] for one in generate(precision_pool, tiny)]
    generated = [
        replace(one, ids=text_ids) for one, text_ids in zip(generate(precision_pool, tiny), wrote, strict=True)
    ]
    evidence = compare(precision_pool, tiny, generated, goldens)
    assert evidence.status is Status.FAIL
    assert f"the port {words(precision_pool, tiny, second)}; the reference prefers the golden's by " in evidence.reason


def test_a_text_that_stops_early_or_goes_on_diverges(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    generated = generate(precision_pool, tiny)
    goldens = ids(generated)
    short = [replace(generated[0], ids=generated[0].ids[:10]), *generated[1:]]
    evidence = compare(precision_pool, tiny, short, goldens)
    assert evidence.status is Status.FAIL
    token = words(precision_pool, tiny, goldens[0][10])
    where = f"DIVERGED: prompt 0 {generated[0].prompt!r}, token 10"
    assert evidence.reason == f"{where}: the golden has {token}, the port ended"
    evidence = compare(precision_pool, tiny, generated, [goldens[0][:10], *goldens[1:]])
    assert evidence.reason == f"{where}: the golden has ended, the port {token}"


def test_wrong_goldens_are_user_errors(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    generated = generate(precision_pool, tiny)
    with pytest.raises(UserError, match="3 texts and 1 goldens: tiny-llama"):
        compare(precision_pool, tiny, generated, [[1]])
    with pytest.raises(UserError, match="a golden has no tokens: tiny-llama; update the golden"):
        compare(precision_pool, tiny, generated, [[], [1], [1]])
    with pytest.raises(ValueError, match="no error budget for float64"):
        generate(precision_pool, tiny, dtype=torch.float64)


def test_too_many_ties_are_named_as_such() -> None:
    ties = [Difference(step=step, golden=1, port=2, margin=0.1, allowed=0.2) for step in range(6)]
    assert text._too_many(decide(100, ties[:5], share=0.05)) == ""
    assert text._too_many(decide(100, ties, share=0.05)) == "6 tied tokens, 5 may be; the first too many is "
    defect = Difference(step=9, golden=1, port=2, margin=0.3, allowed=0.2)
    assert text._too_many(decide(100, [*ties, defect], share=0.05)) == ""
