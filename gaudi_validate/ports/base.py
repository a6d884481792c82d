"""The Port protocol: how an implementation under test is loaded and switched on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel


@runtime_checkable
class Port(Protocol):
    """An implementation under test.

    ``name`` stands in reports and commands. ``attention`` is the name that the port's attention function has in
    transformers' AttentionInterface, or ``None`` when the port does not route attention through it. ``load_key``
    names what ``load`` returns: ports with the same key share one loaded model.
    """

    @property
    def name(self) -> str:
        """What reports and commands call the port."""
        ...

    @property
    def attention(self) -> str | None:
        """The registered attention implementation that the port runs through, if it does."""
        ...

    @property
    def load_key(self) -> str:
        """What :meth:`load` returns, by name: the same for ports that can share one loaded model."""
        ...

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Return the model of the checkpoint folder (config.json, safetensors) in eval mode on ``device``."""
        ...

    def active(self, model: PreTrainedModel) -> AbstractContextManager[None]:
        """Return a context in which ``model``'s forward runs through this port."""
        ...
