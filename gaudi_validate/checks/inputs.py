"""What a check may be asked to run: a scenario, its inputs, or prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from gaudi_validate.checks.prompts import prompt_inputs
from gaudi_validate.checks.teacher import NAIVE
from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.inputs import ScenarioInputs, make

if TYPE_CHECKING:
    from gaudi_validate.checks.prompts import Prompt
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.pool import ModelPool

    What = Scenario | ScenarioInputs | Sequence[Prompt]


def inputs_for(pool: ModelPool, spec: ModelSpec, what: What) -> ScenarioInputs:
    """Return the inputs that ``what`` stands for; prompts (text or ids) become ``checks.prompts.prompt_inputs``."""
    if isinstance(what, ScenarioInputs):
        return what
    if not isinstance(what, Scenario):
        return prompt_inputs(pool, spec, what)
    model = pool.get(spec, NAIVE, torch.float32, torch.device("cpu"))
    return make(what, model.config.get_text_config().vocab_size)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")
