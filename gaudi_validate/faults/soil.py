"""Where faults are planted: the port's attention function, its mask function, a model's functions and attributes."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from transformers import AttentionMaskInterface

from gaudi_validate.checks.capture import attention_replaced, replaced
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    import torch
    from transformers import PreTrainedModel

    from gaudi_validate.checks.capture import AttentionFunction
    from gaudi_validate.ports.base import Port

    MaskFunction = Callable[..., torch.Tensor | None]
    Plant = Callable[[PreTrainedModel, Port], AbstractContextManager[None]]


def attention_name(port: Port) -> str:
    """Return the name of the port's attention function; :class:`UserError` for a port that does not tell it."""
    if port.attention is None:
        raise UserError("this fault is planted into a named attention function", where=port.name, do="give --attention")
    return port.attention


def in_attention(make: Callable[[AttentionFunction], AttentionFunction]) -> Plant:
    """Return a plant that puts ``make(original)`` in the place of the port's attention function."""

    def plant(model: PreTrainedModel, port: Port) -> AbstractContextManager[None]:
        return attention_replaced(attention_name(port), model, make)

    return plant


def in_mask(make: Callable[[MaskFunction], MaskFunction]) -> Plant:
    """Return a plant that puts ``make(original)`` in the place of the port's mask function."""

    def plant(model: PreTrainedModel, port: Port) -> AbstractContextManager[None]:
        name = attention_name(port)
        registry: dict[str, Any] = AttentionMaskInterface._global_mapping
        if name not in registry:
            raise UserError("the attention implementation has no registered mask function", where=repr(name))
        return replaced(registry, name, make(registry[name]))

    return plant


def both(*plants: Plant) -> Plant:
    """Return a plant of several, for faults that one patch alone does not make."""

    @contextmanager
    def plant(model: PreTrainedModel, port: Port) -> Iterator[None]:
        with ExitStack() as stack:
            for one in plants:
                stack.enter_context(one(model, port))
            yield

    return plant


def in_modeling_file(function: str, make: Callable[[Any], Any]) -> Plant:
    """Return a plant that replaces the global ``function`` of the files that the model's modules come from."""

    @contextmanager
    def plant(model: PreTrainedModel, _: Port) -> Iterator[None]:
        files = [vars(sys.modules[name]) for name in sorted({type(module).__module__ for module in model.modules()})]
        files = [file for file in files if function in file]
        if not files:
            raise UserError(f"no function {function} to plant a fault into", where=type(model).__name__)
        with ExitStack() as stack:
            for file in files:
                stack.enter_context(replaced(file, function, make(file[function])))
            yield

    return plant


def in_forward(of: Callable[[str, torch.nn.Module], bool], make: Callable[[Any, Any], Any]) -> Plant:
    """Return a plant that puts ``make(module, original)`` in the place of ``forward`` of the modules chosen by ``of``.

    ``of(path, module)`` chooses; the whole model has the path "".
    """

    @contextmanager
    def plant(model: PreTrainedModel, _: Port) -> Iterator[None]:
        chosen = [module for path, module in model.named_modules() if of(path, module)]
        if not chosen:
            raise UserError("no module to plant a fault into", where=type(model).__name__)
        with ExitStack() as stack:
            for module in chosen:
                stack.enter_context(replaced(vars(module), "forward", make(module, module.forward)))
            yield

    return plant


@contextmanager
def attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` for the time of the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
