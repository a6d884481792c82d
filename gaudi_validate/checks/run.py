"""One run of a port on a model and inputs, in the deployed dtype: what every check of this kind is told."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gaudi_validate.attention.arguments import UnsupportedArgument
from gaudi_validate.checks import budgets
from gaudi_validate.checks.prompts import prompt_inputs
from gaudi_validate.checks.reference import reference_key
from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.models.checkpoints import fingerprint
from gaudi_validate.models.loading import first_line
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.inputs import ScenarioInputs, make

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from gaudi_validate.checks.prompts import Prompt
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

    What = Scenario | ScenarioInputs | Sequence[Prompt]

# The naive path that ports are judged by: stock eager attention, independent of this project's own implementations.
NAIVE = TransformersPort("eager")
CPU = torch.device("cpu")
EXPERTS = "near ties between experts fall either way when rounded, so this is no proof of a defect: see logic parity"
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A port, the model that it runs, the inputs, the deployed dtype, and the key of the hardware it runs on."""

    pool: ModelPool
    port: Port
    spec: ModelSpec
    inputs: ScenarioInputs
    dtype: torch.dtype
    hardware: str = "cpu"

    @property
    def device(self) -> torch.device:
        """The device that the port runs on."""
        return torch.device(lookup(self.hardware).device)

    @property
    def format(self) -> budgets.Format:
        """The format of the deployed dtype; a ValueError for one without a budget."""
        return budgets.format_of(dtype_name(self.dtype))

    def model(self) -> PreTrainedModel:
        """Return the port's model."""
        return self.pool.get(self.spec, self.port, self.dtype, self.device)

    def naive(self) -> Run:
        """Return the same run through the naive path."""
        return replace(self, port=NAIVE)

    def key(self, inputs: ScenarioInputs | None = None, dtype: torch.dtype | None = None, *, cpu: bool = False) -> str:
        """Return the hash of weights, inputs, dtype, device and versions: of all that is not the port."""
        found = fingerprint(self.pool.checkpoint(self.spec))
        device = CPU if cpu else self.device
        return reference_key(found, inputs or self.inputs, dtype=dtype or self.dtype, device=device)


def run_of(pool: ModelPool, port: Port, spec: ModelSpec, what: What, dtype: torch.dtype, *, hardware: str) -> Run:
    """Return the run that ``what`` stands for; prompts (text or ids) become ``checks.prompts.prompt_inputs``."""
    budgets.format_of(dtype_name(dtype))
    if isinstance(what, ScenarioInputs):
        inputs = what
    elif isinstance(what, Scenario):
        model = pool.get(spec, NAIVE, torch.float32, CPU)
        inputs = make(what, model.config.get_text_config().vocab_size)
    else:
        inputs = prompt_inputs(pool, spec, what)
    return Run(pool=pool, port=port, spec=spec, inputs=inputs, dtype=dtype, hardware=hardware)


def evidence_of(check: str, run: Run, judge: Callable[[Evidence], Evidence]) -> Evidence:
    """Return what ``judge`` makes of a blank PASS for ``run``, with its duration.

    What a port raises is its failure and not the session's: a FAIL with the error and the place. An argument that it
    rejects by name is INCONCLUSIVE: nothing is done wrong, and nothing is there to judge. Any other
    :class:`UserError` passes.
    """
    started = time.perf_counter()
    evidence = Evidence(
        check=check,
        status=Status.PASS,
        reason="",
        model=run.spec.name,
        scenario=run.inputs.scenario.id,
        port=run.port.name,
        hardware=run.hardware,
        dtype=dtype_name(run.dtype),
    )
    try:
        evidence = judge(evidence)
    except UnsupportedArgument as error:
        evidence = replace(evidence, status=Status.INCONCLUSIVE, reason=f"rejected by name: {error}")
    except UserError:
        raise
    except Exception as error:
        reason = f"the port raised {first_line(error)}"
        evidence = replace(evidence, status=Status.FAIL, reason=reason, details=innermost_frames(error))
    return replace(evidence, duration_s=time.perf_counter() - started)


def chooses_experts(model: PreTrainedModel) -> bool:
    """Return whether tokens are routed: one that goes to another expert has an error that no rounding budget knows."""
    config = model.config.get_text_config()
    return any((getattr(config, name, None) or 0) > 1 for name in _EXPERT_COUNTS)


def dtype_name(dtype: torch.dtype) -> str:
    """Return "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def innermost_frames(error: Exception) -> tuple[str, ...]:
    """Return the three innermost frames of ``error``, the place first."""
    found = traceback.extract_tb(error.__traceback__)[-3:]
    return tuple(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in reversed(found))
