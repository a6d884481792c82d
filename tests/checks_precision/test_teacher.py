from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from gaudi_validate.checks import forward, teacher
from gaudi_validate.checks.exact import exact_mode
from gaudi_validate.checks.prompts import PROMPTS, inputs_of, left_padded, prompt_inputs
from gaudi_validate.checks.run import NAIVE, Run
from gaudi_validate.core.messages import UserError
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.transformers_port import TransformersPort

if TYPE_CHECKING:
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

PROMPT_IDS = [[3, 1, 4, 1], [5, 9]]
TEXTS = [[2, 6, 5], [3, 5, 8, 9, 7]]


def run(pool: ModelPool, spec: ModelSpec, forced: teacher.Forced, dtype: torch.dtype = torch.bfloat16) -> Run:
    return Run(pool=pool, port=TransformersPort("sdpa"), spec=spec, inputs=forced.inputs, dtype=dtype)


def test_the_eight_prompts() -> None:
    assert len(PROMPTS) == 8
    assert PROMPTS[6] == "In the far far distance from our galaxy,"


def test_left_padding() -> None:
    ids, mask = left_padded(PROMPT_IDS, 99)
    assert ids.tolist() == [[3, 1, 4, 1], [99, 99, 5, 9]]
    assert mask.tolist() == [[1, 1, 1, 1], [0, 0, 1, 1]]


def test_inputs_of_prompts_and_what_follows() -> None:
    inputs = inputs_of(PROMPT_IDS, [[7, 7, 7], [8, 8, 8]], pad=0, chunks=(2, 1))
    assert [one.columns for one in inputs.calls[0]] == [4, 2, 1]
    last = inputs.calls[0][-1]
    assert last.position_ids is not None
    assert last.attention_mask is not None
    assert last.position_ids.tolist() == [[6], [4]]
    assert last.attention_mask.tolist() == [[1] * 7, [0, 0, 1, 1, 1, 1, 1]]
    assert inputs.real.tolist() == [[True] * 7, [False, False, True, True, True, True, True]]


def test_prompts_are_followed_by_each_other(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    inputs = prompt_inputs(precision_pool, tiny, PROMPT_IDS, chunks=(3, 1))
    chunk, step = inputs.calls[0][1:]
    assert torch.cat([chunk.input_ids, step.input_ids], dim=1).tolist() == [[5, 9, 3, 1], [3, 1, 4, 1]]


def test_an_empty_prompt_is_a_user_error(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    with pytest.raises(UserError, match=r"a prompt has no tokens: \[\]; give it some text"):
        prompt_inputs(precision_pool, tiny, [[]])


def test_rows_and_places() -> None:
    forced = teacher.force(PROMPT_IDS, TEXTS, pad=0)
    assert forced.lengths == (3, 5)
    assert [forced.place(row) for row in (0, 2, 3, 7)] == [(0, 0), (0, 2), (1, 0), (1, 4)]
    assert forced.row(1, 4) == 7
    with pytest.raises(IndexError, match="text 0 has 3 tokens, not a token 3"):
        forced.row(0, 3)
    assert forced.inputs.real.sum() == 8
    assert [one.columns for one in forced.inputs.calls[0]] == [4, 1, 1, 1, 1]
    with pytest.raises(ValueError, match="every text needs a token"):
        teacher.force(PROMPT_IDS, [[1], []], pad=0)


def test_rows_predict_the_tokens_of_the_texts(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    """Row (prompt, step) is what the model says after the prompt and the text's first ``step`` tokens alone."""
    forced = teacher.force(PROMPT_IDS, TEXTS, pad=0)
    logits = teacher.port_logits(run(precision_pool, tiny, forced, torch.float32))
    model = precision_pool.get(tiny, NAIVE, torch.float32, torch.device("cpu"))
    for prompt, step in ((0, 0), (0, 2), (1, 1), (1, 4)):
        ids = torch.tensor([PROMPT_IDS[prompt] + TEXTS[prompt][:step]])
        with torch.no_grad():
            alone = model(ids).logits[0, -1]
        torch.testing.assert_close(logits[forced.row(prompt, step)], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", ["tiny-llama", "tiny-mistral", "tiny-llama-dynamic"])
def test_reference_in_one_pass_is_the_decode_path_in_fp64(precision_pool: ModelPool, model: str) -> None:
    spec = resolve(model)
    text = [[index % 60 for index in range(70)]]
    case = run(precision_pool, spec, teacher.force([[3, 1, 4, 1]], text, pad=0), torch.float32)
    reference = teacher.reference_logits(case, torch.float64)
    assert reference.dtype == torch.float64
    stock = precision_pool.get(spec, NAIVE, torch.float64, torch.device("cpu"))
    with exact_mode():
        stepwise = forward.run(stock, NAIVE, case.inputs)[case.inputs.real]
    torch.testing.assert_close(stepwise, reference, rtol=0, atol=1e-9)


def test_reference_is_read_from_disk_by_another_session(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    forced = teacher.force(PROMPT_IDS, TEXTS, pad=0)
    first = teacher.reference_logits(run(precision_pool, tiny, forced), torch.float32)
    again = type(precision_pool)(precision_pool.cache_dir)
    before = {path.name for path in (precision_pool.cache_dir / "references").iterdir()}
    second = teacher.reference_logits(run(again, tiny, forced), torch.float32)
    assert torch.equal(first, second)
    assert {path.name for path in (precision_pool.cache_dir / "references").iterdir()} == before


def test_naive_rows_are_computed_once(precision_pool: ModelPool, tiny: ModelSpec) -> None:
    case = run(precision_pool, tiny, teacher.force(PROMPT_IDS, TEXTS, pad=0))
    assert teacher.naive_logits(case) is teacher.naive_logits(case)
