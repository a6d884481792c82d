"""State that a forward pass leaves in a model, and how to put it back."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_FREQUENCIES = "inv_freq"


@contextmanager
def as_found(model: torch.nn.Module) -> Iterator[None]:
    """Put RoPE modules back, in the end, into the state in which they were found.

    Dynamic and long RoPE keep the frequencies and the longest length of the last call, in buffers that are replaced
    (transformers 4.55) or overwritten (5.x) and in plain attributes.
    """
    found = [(module, *_state(module)) for module in model.modules() if _FREQUENCIES in module._buffers]
    try:
        yield
    finally:
        for module, buffers, attributes in found:
            _restore(module, buffers, attributes)


def _state(module: torch.nn.Module) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], dict[str, Any]]:
    """Return the buffers with a copy of what they hold, and the plain attributes."""
    buffers = {name: (buffer, buffer.clone()) for name, buffer in module._buffers.items() if buffer is not None}
    return buffers, {name: value for name, value in vars(module).items() if not name.startswith("_")}


def _restore(
    module: torch.nn.Module, buffers: dict[str, tuple[torch.Tensor, torch.Tensor]], attributes: dict[str, Any]
) -> None:
    for name, (buffer, content) in buffers.items():
        buffer.copy_(content)
        module._buffers[name] = buffer
    for name in [name for name in vars(module) if not name.startswith("_") and name not in attributes]:
        delattr(module, name)
    vars(module).update(attributes)
