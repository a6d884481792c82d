"""A CUDA device, through torch.cuda."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError
from gaudi_validate.hardware.device import DeviceFacts, MemoryStats, device_for_worker

if TYPE_CHECKING:
    import torch

    from gaudi_validate.core.hardware_table import Hardware

DRIVER_VERSION = Path("/sys/module/nvidia/version")


class CudaDevice:
    """The CUDA device of this worker."""

    def __init__(self, hardware: Hardware, worker: int) -> None:
        import torch

        if not torch.cuda.is_available():
            raise UserError("torch cannot use CUDA", where=f"torch {torch.__version__}", do="pass --hardware cpu")
        self._hardware = hardware
        self._index = device_for_worker(worker, torch.cuda.device_count(), "CUDA")
        torch.cuda.set_device(self._index)

    def identify(self) -> DeviceFacts:
        """Return the card's name and memory in bytes."""
        import torch

        properties = torch.cuda.get_device_properties(self._index)
        driver = DRIVER_VERSION.read_text(encoding="ascii").strip() if DRIVER_VERSION.is_file() else None
        return DeviceFacts(
            hardware=self._hardware.key,
            device=f"cuda:{self._index}",
            name=properties.name,
            count=torch.cuda.device_count(),
            memory_bytes=properties.total_memory,
            driver=driver,
        )

    def torch_device(self) -> torch.device:
        """Return torch's device."""
        import torch

        return torch.device("cuda", self._index)

    def synchronise(self) -> None:
        """Wait for the device's streams."""
        import torch

        torch.cuda.synchronize(self._index)

    def memory(self) -> MemoryStats:
        """Return what torch's allocator has handed out: not its cache, and not other processes."""
        import torch

        return MemoryStats(
            in_use_bytes=torch.cuda.memory_allocated(self._index),
            peak_bytes=torch.cuda.max_memory_allocated(self._index),
            limit_bytes=torch.cuda.get_device_properties(self._index).total_memory,
            of="memory allocated by torch",
        )

    def reset_peak(self) -> None:
        """Start a new peak."""
        import torch

        torch.cuda.reset_peak_memory_stats(self._index)
