"""Prompts that people use, and the inputs that checks make of prompts: left-padded batches, decoded with a cache.

Shapes: B prompts, P columns of the longest prompt, N columns after it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from gaudi_validate.core.messages import UserError
from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.inputs import Pass, ScenarioInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

    Prompt = str | Sequence[int]

# The default prompts of optimum-habana's examples/text-generation/run_generation.py, of which people compare outputs.
PROMPTS: tuple[str, ...] = (
    "DeepSpeed is a machine learning framework",
    "He is working on",
    "He has a",
    "He got all",
    "Everyone is happy and I can",
    "The new movie that got Oscar this year",
    "In the far far distance from our galaxy,",
    "Peace is the only way",
)
SOURCE = "optimum-habana, examples/text-generation/run_generation.py"

# After the prompts: one chunk of several columns, which sees the cache and itself, then single decode steps.
CHUNKS_AFTER = (3, 1, 1, 1)


def token_ids(pool: ModelPool, spec: ModelSpec, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return the ids of each prompt, as the model's tokenizer makes them; prompts that are ids already stay.

    Raises:
        UserError: a prompt is empty.
    """
    ids = [pool.tokenizer(spec)(one)["input_ids"] if isinstance(one, str) else list(one) for one in prompts]
    for prompt, found in zip(prompts, ids, strict=True):
        if not found:
            raise UserError("a prompt has no tokens", where=repr(prompt), do="give it some text")
    return ids


def pad_token(pool: ModelPool, spec: ModelSpec, prompts: Sequence[Prompt]) -> int:
    """Return the id that prompts are padded with: the tokenizer's, or 0 for prompts that are ids already."""
    if not any(isinstance(one, str) for one in prompts):
        return 0
    pad = pool.tokenizer(spec).pad_token_id
    if pad is None:
        raise UserError("the tokenizer has no padding token", where=spec.name)
    return int(pad)


def left_padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, both [B, P] int64, the padding on the left as generation wants it."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return ids, mask


def prompt_inputs(
    pool: ModelPool, spec: ModelSpec, prompts: Sequence[Prompt] = PROMPTS, *, chunks: tuple[int, ...] = CHUNKS_AFTER
) -> ScenarioInputs:
    """Return the prompts as one left-padded batch: prefill, then ``chunks`` columns a pass with the cache.

    The columns after the prompts hold the tokens of all prompts, each row starting after its own: text, and the same
    on every machine.
    """
    ids = token_ids(pool, spec, prompts)
    stream = [token for row in ids for token in row]
    starts = [sum(len(row) for row in ids[: index + 1]) for index in range(len(ids))]
    after = [[stream[(start + step) % len(stream)] for step in range(sum(chunks))] for start in starts]
    return inputs_of(ids, after, pad=pad_token(pool, spec, prompts), chunks=chunks)


def inputs_of(
    prompts: Sequence[Sequence[int]], after: Sequence[Sequence[int]], *, pad: int, chunks: tuple[int, ...]
) -> ScenarioInputs:
    """Return left-padded prompts followed by ``after``, N = sum(chunks) ids a row; real is all that is no padding."""
    ids_BP, mask_BP = left_padded(prompts, pad)
    following_BN = torch.tensor([list(row) for row in after], dtype=torch.int64).reshape(len(prompts), sum(chunks))
    ids = torch.cat([ids_BP, following_BN], dim=1)
    mask = torch.cat([mask_BP, torch.ones_like(following_BN)], dim=1)
    name = hashlib.sha256(repr(ids.tolist()).encode()).hexdigest()[:8]
    passes = (ids_BP.shape[1], *chunks)
    scenario = Scenario(
        id=f"prompts-{len(prompts)}x{ids.shape[1]}-{name}",
        lengths=(ids.shape[1],) * len(prompts),
        chunks=passes,
        cache="dynamic",
    )
    return ScenarioInputs(scenario=scenario, calls=(_passes(ids, mask, passes),), real=mask.bool())


def _passes(ids: torch.Tensor, mask: torch.Tensor, widths: tuple[int, ...]) -> tuple[Pass, ...]:
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    passes, start = [], 0
    for width in widths:
        end = start + width
        one = Pass(
            start=start,
            input_ids=ids[:, start:end],
            attention_mask=mask[:, :end],
            position_ids=positions[:, start:end],
        )
        passes.append(one)
        start = end
    return tuple(passes)
