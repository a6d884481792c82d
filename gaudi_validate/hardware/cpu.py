"""The CPU as a device: memory is the resident memory of the process, as Linux reports it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError
from gaudi_validate.core.provenance import cpu_summary
from gaudi_validate.hardware.device import DeviceFacts, MemoryStats

if TYPE_CHECKING:
    import torch

    from gaudi_validate.core.hardware_table import Hardware

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")


class CpuDevice:
    """The CPU. Nothing is queued, so there is nothing to wait for."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    def identify(self) -> DeviceFacts:
        """Return the processor and the machine's memory in bytes."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return DeviceFacts(
            hardware=self._hardware.key, device="cpu", name=cpu_summary(), count=os.cpu_count() or 1, memory_bytes=total
        )

    def torch_device(self) -> torch.device:
        """Return torch's CPU device."""
        import torch

        return torch.device("cpu")

    def synchronise(self) -> None:
        """Return at once: CPU operators have run when they return."""

    def memory(self) -> MemoryStats:
        """Return the resident memory of the process (VmRSS) and its peak (VmHWM), see proc(5)."""
        if not STATUS.is_file():
            raise UserError("resident memory is read from /proc", where=f"no {STATUS}", do="measure it on Linux")
        fields = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines() if ":" in line)
        in_use, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
        limit = self.identify().memory_bytes
        return MemoryStats(in_use_bytes=in_use, peak_bytes=peak, limit_bytes=limit, of="resident memory of the process")

    def reset_peak(self) -> None:
        """Set VmHWM back to VmRSS: 5 written to clear_refs does that, see proc(5)."""
        CLEAR_REFS.write_text("5", encoding="ascii")
