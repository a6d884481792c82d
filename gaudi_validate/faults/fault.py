"""What a planted fault is, and the port that carries one."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from gaudi_validate.ports.base import Port

    Plant = Callable[[PreTrainedModel, Port], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A bug that a public project shipped, as a context that plants it into a model under a port.

    ``id`` and ``cls`` are those of the fault catalogue; a letter after the id tells variants apart. ``model`` is a
    tiny model that it can be seen on; ``shows`` are scenarios of the matrix that bring it out there, ``silent`` ones in
    which it cannot be seen. ``check`` is what catches it: "logic parity", or "memory" for faults that change no number.
    ``plant(model, port)`` patches one thing while the port is active, and puts it back.
    """

    id: str
    cls: str
    title: str
    origin: str
    model: str
    shows: tuple[str, ...]
    silent: tuple[str, ...]
    plant: Plant
    check: str = "logic parity"


@dataclass(frozen=True, slots=True)
class FaultyPort:
    """``port`` with ``fault`` planted while it is active. The reference, which shares the model, never sees it."""

    port: Port
    fault: Fault

    @property
    def name(self) -> str:
        """The port's name and the fault's id."""
        return f"{self.port.name}+{self.fault.id}"

    @property
    def attention(self) -> str | None:
        """The port's."""
        return self.port.attention

    @property
    def load_key(self) -> str:
        """The port's: the fault is planted into the same loaded model."""
        return self.port.load_key

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Load what the port loads."""
        return self.port.load(checkpoint, dtype=dtype, device=device)

    @contextmanager
    def active(self, model: PreTrainedModel) -> Iterator[None]:
        """Switch the port on, and the fault."""
        with self.port.active(model), self.fault.plant(model, self.port):
            yield
