"""The main job on a real model (--model): precision call by call, logits, text against goldens, peak memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from gaudi_validate.checks.text import GeneratedText
    from gaudi_validate.fixture_objects import AssertParity, Golden, MemoryGate, RunHardware

# Named after their prompts, which checks/prompts.py holds: names are needed when tests are collected, torch is not.
CASES = (
    "deepspeed-is-a-machine-learning-framework",
    "he-is-working-on",
    "he-has-a",
    "he-got-all",
    "everyone-is-happy-and-i-can",
    "the-new-movie-that-got-oscar-this-year",
    "in-the-far-far-distance-from-our-galaxy",
    "peace-is-the-only-way",
)

pytestmark = pytest.mark.slow


def prompt_of(case: str) -> str:
    """Return the prompt that ``case`` is named after."""
    from gaudi_validate.checks.prompts import PROMPTS

    return next(prompt for prompt in PROMPTS if re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-") == case)


@pytest.mark.parity
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_precision_of_every_call(assert_parity: AssertParity, saving_attention: str | None, dtype: str) -> None:
    """Every attention call of a padded batch of the eight prompts: prefill, a chunk, decode steps."""
    from gaudi_validate.checks.prompts import PROMPTS

    assert_parity(prompts=PROMPTS, rule="precision", dtype=dtype, port=saving_attention)


@pytest.mark.text
@pytest.mark.parametrize("case", CASES)
def test_text(
    generate: Callable[..., list[GeneratedText]],
    golden: Golden,
    hardware: RunHardware,
    default_attention: str | None,
    case: str,
) -> None:
    """The text of each prompt, written in one batch, is the golden's, or differs by ties only.

    On a CPU it is written in float32: in bfloat16 the texts of correct paths part by several ties, and which kernels a
    processor has would decide them.
    """
    from gaudi_validate.checks.prompts import PROMPTS

    dtype = "float32" if hardware.facts.device == "cpu" else None
    texts = {text.prompt: text for text in generate(PROMPTS, port=default_attention, dtype=dtype)}
    assert texts[prompt_of(case)] == golden(name=case, port=default_attention)


@pytest.mark.parity
def test_logits_on_the_golden_text(
    assert_parity: AssertParity,
    generate: Callable[..., list[GeneratedText]],
    golden: Golden,
    saving_attention: str | None,
) -> None:
    """Log-probabilities at every step of the goldens' tokens; where no golden is, of what naive attention writes."""
    from gaudi_validate.checks.prompts import PROMPTS

    recorded = [text for case in CASES if (text := golden.recorded(case)) is not None]
    texts = recorded if len(recorded) == len(CASES) else generate(PROMPTS, port="naive")
    assert_parity(texts=texts, rule="logits", port=saving_attention)


@pytest.mark.memory
@pytest.mark.parametrize(
    ("phase", "lengths"), [("prefill", (1024, 1280, 1536)), ("decode", (512,))], ids=["prefill", "decode"]
)
def test_peak_memory(
    memory_gate: MemoryGate, saving_attention: str | None, phase: str, lengths: tuple[int, ...]
) -> None:
    """The peak above weights and inputs is not above the naive path's, and does not grow with the square of length."""
    memory_gate.model_peak(port=saving_attention, phase=phase, lengths=lengths, batch=1)
