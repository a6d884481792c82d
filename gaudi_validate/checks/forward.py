"""Run a scenario through a model: every forward pass, with the scenario's cache, the logits of every column."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, StaticCache

from gaudi_validate.checks.state import as_found
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from gaudi_validate.ports.base import Port
    from gaudi_validate.scenarios.data import Scenario
    from gaudi_validate.scenarios.inputs import Pass, ScenarioInputs

_CACHE_NAMES = ("cache", "past_key_values")


def run(
    model: PreTrainedModel,
    port: Port,
    inputs: ScenarioInputs,
    *,
    watch: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> torch.Tensor:
    """Return the logits [B, W, V] of the last call of ``inputs``, all its passes side by side.

    The model's RoPE state is that of a fresh model at the first call, and is put back in the end: frequencies that
    grow with length would make a result depend on what ran before.

    Args:
        model: the model that the port loaded.
        port: switched on for the time of the run.
        inputs: what :func:`gaudi_validate.scenarios.inputs.make` made, on the model's device.
        watch: a context that is entered once the port is active, around all calls (see ``checks.capture``).
    """
    logits = []
    with torch.no_grad(), as_found(model), port.active(model), _experts_that_take(model), watch():
        for passes in inputs.calls:
            cache = make_cache(model, inputs.scenario)
            logits = [forward(model, one, cache) for one in passes]
    return torch.cat(logits, dim=1)


def forward(model: PreTrainedModel, one: Pass, cache: Any | None) -> torch.Tensor:
    """Return the logits [B, C, V] of one pass; ``cache`` is extended in place, or ``None`` for none."""
    kwargs = {
        "attention_mask": one.attention_mask,
        "position_ids": one.position_ids,
        "use_cache": cache is not None,
        cache_argument(model): cache,
    }
    logits: torch.Tensor = model(one.input_ids, **kwargs).logits
    if logits.shape[1] != one.columns:
        raise UserError(
            f"{logits.shape[1]} rows of logits for {one.columns} columns",
            where=type(model).__name__,
            do="turn the trimming of logits off",
        )
    return logits


@contextmanager
def _experts_that_take(model: PreTrainedModel) -> Iterator[None]:
    """Run the experts of a MoE model by transformers' plain loop when in fp64, which the grouped kernel refuses."""
    before = getattr(model.config, "_experts_implementation", None)
    if next(model.parameters()).dtype != torch.float64 or before in (None, "eager"):
        yield
        return
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def cache_argument(model: PreTrainedModel) -> str:
    """Return the name that ``model.forward`` gives the KV cache: "past_key_values", or "cache" in transformers 5."""
    # A port may have put a plain wrapper over its instance's forward: the class then tells.
    signatures = [inspect.signature(forward).parameters for forward in (model.forward, type(model).forward)]
    for parameters in signatures:
        for name in _CACHE_NAMES:
            if name in parameters:
                return name
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signatures[0].values()):
        return _CACHE_NAMES[-1]
    raise UserError("forward takes no KV cache", where=type(model).__name__, do=f"accept {_CACHE_NAMES[-1]}")


def make_cache(model: PreTrainedModel, scenario: Scenario) -> Any | None:
    """Return a fresh KV cache of the scenario's kind, made as generation makes it; ``None`` for no cache."""
    if scenario.cache == "none":
        return None
    if scenario.cache_length is None:
        # Newer versions take the config, and keep only the window in sliding layers.
        takes_config = "config" in inspect.signature(DynamicCache.__init__).parameters
        return DynamicCache(config=model.config) if takes_config else DynamicCache()
    weight = next(model.parameters())
    # transformers 5 ignores the batch size, device and dtype that 4.55 asks for.
    return StaticCache(
        config=model.config,
        max_cache_len=scenario.cache_length,
        max_batch_size=len(scenario.lengths),
        device=weight.device,
        dtype=weight.dtype,
    )
