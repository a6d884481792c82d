"""A real HPU: the one module that talks to habana_frameworks.

Written to the public PyTorch API documentation of Intel Gaudi (docs.habana.ai, "Intel Gaudi PyTorch Python API"):
``hpu.device_count``, ``get_device_name``, ``synchronize``, ``reset_peak_memory_stats``, ``memory_stats`` with Limit,
InUse and MaxInUse in bytes, and the variable HABANA_VISIBLE_MODULES that limits a process to some of the cards.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.messages import UserError
from gaudi_validate.hardware.detect import count_hpus
from gaudi_validate.hardware.device import DeviceFacts, MemoryStats, device_for_worker

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import torch

    from gaudi_validate.core.hardware_table import Hardware

DRIVER_VERSION = Path("/sys/module/habanalabs/version")
VISIBLE = "HABANA_VISIBLE_MODULES"


def claim(worker: int, count: int, environ: MutableMapping[str, str]) -> None:
    """Leave this worker one of the cards it may see. A process takes its card when habana_frameworks is imported."""
    modules = [part.strip() for part in environ.get(VISIBLE, "").split(",") if part.strip()]
    modules = modules or [str(index) for index in range(count)]
    environ[VISIBLE] = modules[device_for_worker(worker, len(modules), "HPU")]


class HpuDevice:
    """The HPU of this worker; index 0, since the worker sees no other."""

    def __init__(self, hardware: Hardware, worker: int) -> None:
        self._hardware = hardware
        if "PYTEST_XDIST_WORKER" in os.environ:
            claim(worker, count_hpus(), os.environ)
        try:
            self._core: Any = importlib.import_module("habana_frameworks.torch.core")
            self._hpu: Any = importlib.import_module("habana_frameworks.torch.hpu")
        except ImportError as error:
            raise UserError(
                "habana_frameworks cannot be imported", where=str(error), do="run gaudi-validate doctor"
            ) from None
        self._refuse_another_card()

    def _refuse_another_card(self) -> None:
        """Raise when the card is not the one whose goldens and baselines would be used."""
        name = str(self._hpu.get_device_name()).upper()
        if not name.startswith(self._hardware.key.upper()) or name[len(self._hardware.key) :][:1].isdigit():
            raise UserError(
                f"the run is for {self._hardware.key} and the device calls itself {name}", do="choose with --hardware"
            )

    def identify(self) -> DeviceFacts:
        """Return the card's name and the memory available to a program in bytes."""
        driver = DRIVER_VERSION.read_text(encoding="ascii").strip() if DRIVER_VERSION.is_file() else None
        return DeviceFacts(
            hardware=self._hardware.key,
            device="hpu:0",
            name=str(self._hpu.get_device_name()),
            count=int(self._hpu.device_count()),
            memory_bytes=int(self._hpu.memory_stats()["Limit"]),
            driver=driver,
        )

    def torch_device(self) -> torch.device:
        """Return torch's device."""
        import torch

        return torch.device("hpu", 0)

    def synchronise(self) -> None:
        """Send what the lazy mode has gathered to the card, and wait for it."""
        self._core.mark_step()
        self._hpu.synchronize()

    def memory(self) -> MemoryStats:
        """Return the card's InUse, MaxInUse and Limit."""
        stats = self._hpu.memory_stats()
        return MemoryStats(
            in_use_bytes=int(stats["InUse"]),
            peak_bytes=int(stats["MaxInUse"]),
            limit_bytes=int(stats["Limit"]),
            of="memory of the card",
        )

    def reset_peak(self) -> None:
        """Start a new peak."""
        self._hpu.reset_peak_memory_stats()
