"""What went on inside a model during one scenario: attention calls and module outputs, by forward pass.

Shapes: B batch rows, T columns of the pass, S keys, H and K heads, D head_dim.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.checks import forward
from gaudi_validate.checks.capture import AttentionFunction, AttentionResult, Call, attention_calls
from gaudi_validate.checks.exact import exact_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from gaudi_validate.ports.base import Port
    from gaudi_validate.scenarios.inputs import ScenarioInputs

OUTPUT, ATTENTION = "output", "attention"
Place = tuple[int, str]
"""A forward pass of the last call, and a module's path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A port with the model that it runs; ``model`` loads it when it is needed. ``exact``: run in exact mode."""

    model: Callable[[], PreTrainedModel]
    port: Port
    exact: bool
    device: torch.device

    def mode(self) -> AbstractContextManager[None]:
        """Return exact mode, or a context that does nothing."""
        return exact_mode() if self.exact else nullcontext()


@dataclass(slots=True, eq=False)
class Trace:
    """Outputs of the modules that were watched, attention calls, and the order in which both were finished."""

    outputs: dict[Place, torch.Tensor] = field(default_factory=dict)
    calls: dict[Place, Call] = field(default_factory=dict)
    order: list[tuple[str, Place]] = field(default_factory=list)


def record(side: Side, inputs: ScenarioInputs, watched: Callable[[str], bool]) -> tuple[Trace, torch.Tensor]:
    """Run ``inputs`` and return a trace of the last call, and its logits.

    Attention calls are traced where the port's attention function is known by name, and of modules whose path is
    ``watched`` the output, or the first tensor of it.
    """
    trace, model = Trace(), side.model()
    inputs = inputs.to(side.device)

    def watch() -> AbstractContextManager[None]:
        return _hooks(model, trace, watched, side.port.attention, [len(one) for one in inputs.calls])

    with side.mode():
        logits = forward.run(model, side.port, inputs, watch=watch)
    return trace, logits


@contextmanager
def _hooks(
    model: PreTrainedModel, trace: Trace, watched: Callable[[str], bool], name: str | None, passes: list[int]
) -> Iterator[None]:
    paths = {module: path for path, module in model.named_modules()}
    calls: list[Call] = []
    before_last = sum(passes[:-1])
    begun = 0

    def place(module: torch.nn.Module) -> Place:
        return begun - 1 - before_last, paths.get(module, type(module).__name__)

    def begin(*_: Any) -> None:
        nonlocal begun
        if begun == before_last:  # the last call of the scenario begins: only that one is kept
            trace.outputs.clear()
            trace.order.clear()
            calls.clear()
        begun += 1

    def keep_output(module: torch.nn.Module, _: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if isinstance(tensor, torch.Tensor):
            trace.outputs[place(module)] = tensor.detach().clone()
            trace.order.append((OUTPUT, place(module)))

    def note_call(call: Call, original: AttentionFunction) -> AttentionResult:
        result = call.run(original)
        trace.order.append((ATTENTION, place(call.module)))
        return result

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(begin).remove)
        for module, path in paths.items():
            if path and watched(path):
                stack.callback(module.register_forward_hook(keep_output).remove)
        if name is not None:
            stack.enter_context(attention_calls(name, model, around=note_call, into=calls))
        yield
    places = [place for kind, place in trace.order if kind == ATTENTION]
    trace.calls.update(zip(places, calls, strict=True))
