"""Teacher forcing: logits at every step of a given text, through a port's decode path, and the reference's.

Shapes: B prompts, P columns of the longest prompt, N tokens of the longest text, V vocabulary; R rows, one for each
token of each text, prompt after prompt.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gaudi_validate.checks import forward
from gaudi_validate.checks.exact import exact_mode
from gaudi_validate.checks.kept import MIB, Kept
from gaudi_validate.checks.prompts import inputs_of
from gaudi_validate.checks.reference import Reference, ReferenceStore
from gaudi_validate.checks.run import CPU, NAIVE
from gaudi_validate.scenarios.data import Scenario
from gaudi_validate.scenarios.inputs import Pass, ScenarioInputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from gaudi_validate.checks.run import Run

_NAIVE_ROWS: Kept[torch.Tensor] = Kept(256 * MIB, lambda rows: rows.numel() * rows.element_size())
_STORES: Kept[ReferenceStore] = Kept(0, lambda _: 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forced:
    """Texts to force: ``inputs.real`` marks the columns that predict a token of a text; ``lengths`` tokens of each."""

    inputs: ScenarioInputs
    lengths: tuple[int, ...]

    def row(self, prompt: int, step: int) -> int:
        """Return the row that predicts token ``step`` of text ``prompt``."""
        if not 0 <= step < self.lengths[prompt]:
            raise IndexError(f"text {prompt} has {self.lengths[prompt]} tokens, not a token {step}")
        return sum(self.lengths[:prompt]) + step

    def place(self, row: int) -> tuple[int, int]:
        """Return the prompt and the step of a row."""
        for prompt, length in enumerate(self.lengths):
            if row < length:
                return prompt, row
            row -= length
        raise IndexError("no such row")


def force(prompt_ids: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], *, pad: int) -> Forced:
    """Return inputs that prefill the prompts and then decode ``texts``, one token a step.

    Texts that end before the longest one are followed by ``pad``; what follows is not judged and, being later, is seen
    by nothing that is.
    """
    lengths = tuple(len(text) for text in texts)
    if not lengths or min(lengths) == 0:
        raise ValueError("every text needs a token")
    steps = max(lengths) - 1  # the last token is predicted, and fed to nothing
    following = [[*text, *[pad] * steps][:steps] for text in texts]
    inputs = inputs_of(prompt_ids, following, pad=pad, chunks=(1,) * steps)
    step = torch.arange(inputs.scenario.width) - (max(map(len, prompt_ids)) - 1)
    judged = (step[None, :] >= 0) & (step[None, :] < torch.tensor(lengths)[:, None])
    return Forced(inputs=replace(inputs, real=judged), lengths=lengths)


def port_logits(run: Run) -> torch.Tensor:
    """Return the logits [R, V] of the rows that the inputs mark as real, on the CPU and in the run's dtype."""
    logits = forward.run(run.model(), run.port, run.inputs.to(run.device))
    return logits[run.inputs.real.to(logits.device)].cpu()


def naive_logits(run: Run) -> torch.Tensor:
    """Return what stock eager attention makes of the same, in the same dtype and on the same device; kept in memory."""
    return _NAIVE_ROWS.get(run.pool, run.key(), lambda: port_logits(run.naive()))


def reference_logits(run: Run, wide: torch.dtype) -> torch.Tensor:
    """Return the logits [R, V] of stock eager attention on the CPU, in ``wide`` (fp32, or fp64 in exact mode).

    One pass without a cache where that means the same. Kept on disk under the hash of what they depend on.
    """
    model = run.pool.get(run.spec, NAIVE, wide, CPU)
    whole = run.inputs if _depends_on_length(model) else in_one_pass(run.inputs)

    def compute() -> Reference:
        with exact_mode() if wide == torch.float64 else nullcontext():
            logits = forward.run(model, NAIVE, whole)
        return Reference(logits=logits[whole.real], attention_calls=0)

    store = _STORES.get(run.pool, "store", lambda: ReferenceStore(run.pool.cache_dir / "references"))
    return store.get(run.key(whole, wide, cpu=True), compute)[0].logits


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which results in ``dtype`` have their reference."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def in_one_pass(inputs: ScenarioInputs) -> ScenarioInputs:
    """Return ``inputs`` with its passes joined and no cache, where these are one call with a dynamic cache.

    What a static cache or several calls change is part of such a scenario; these are returned as they are.
    """
    scenario = inputs.scenario
    if len(inputs.calls) > 1 or scenario.cache != "dynamic":
        return inputs
    passes = inputs.calls[0]
    positions = [one.position_ids for one in passes if one.position_ids is not None]
    joined = Pass(
        start=0,
        input_ids=torch.cat([one.input_ids for one in passes], dim=1),
        attention_mask=passes[-1].attention_mask,
        position_ids=torch.cat(positions, dim=1) if len(positions) == len(passes) else None,
    )
    plain = Scenario(id=f"{scenario.id}-in-one-pass", lengths=(joined.columns,) * len(scenario.lengths))
    return ScenarioInputs(scenario=plain, calls=((joined,),), real=inputs.real)


def _depends_on_length(model: PreTrainedModel) -> bool:
    """RoPE that scales with the length seen so far makes other keys in one pass than step by step."""
    kinds = (getattr(module, "rope_type", None) for module in model.modules())
    return any(isinstance(kind, str) and kind.startswith(("dynamic", "longrope")) for kind in kinds)
