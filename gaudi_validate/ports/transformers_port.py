"""The port of an attention implementation: transformers' own model with another attention function."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gaudi_validate.models.loading import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

_STORED = "_attn_implementation_internal"


@dataclass(frozen=True, slots=True)
class TransformersPort:
    """transformers' model with the registered implementation ``attention``. All such ports share one loaded model."""

    attention: str

    @property
    def name(self) -> str:
        """The attention implementation's name."""
        return self.attention

    @property
    def load_key(self) -> str:
        """The same for every attention implementation: the model is loaded once and switched by :meth:`active`."""
        return "transformers"

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Load with eager attention; see :func:`gaudi_validate.models.loading.load`."""
        return load(checkpoint, dtype=dtype, device=device)

    def active(self, model: PreTrainedModel) -> contextlib.AbstractContextManager[None]:
        """Return a context in which ``model`` computes attention with this port's implementation."""
        return attention_set(model, self.attention)


@contextlib.contextmanager
def attention_set(model: PreTrainedModel, attention: str) -> Iterator[None]:
    """Set the attention implementation of ``model`` and every configuration inside it, and restore each.

    The stored attribute is written, not transformers' ``set_attn_implementation``: that one takes names with a slash
    for kernels to download, and in 4.55 it logs a failure and carries on with the old implementation.
    """
    before = [(config, getattr(config, _STORED)) for config in _configurations(model)]
    try:
        for config, _ in before:
            setattr(config, _STORED, attention)
        yield
    finally:
        for config, value in before:
            setattr(config, _STORED, value)


def _configurations(model: PreTrainedModel) -> list[Any]:
    """Return each configuration that a module of ``model`` reads, or that one of those contains, once."""
    waiting: list[Any] = [module.config for module in model.modules() if hasattr(module, "config")]
    found: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if id(config) in found or not hasattr(config, _STORED):
            continue
        found[id(config)] = config
        waiting.extend(getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
    return list(found.values())
