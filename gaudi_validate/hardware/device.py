"""One interface over the kinds of devices: who it is, wait for it, how much memory it uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from gaudi_validate.core.hardware_table import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Who the device is. ``device`` is torch's name for it ("hpu:0"), ``count`` how many of them the process sees."""

    hardware: str
    device: str
    name: str
    count: int
    memory_bytes: int | None = None
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """Memory in bytes: in use now, the peak since the last reset, what a program can have. ``of`` says of what."""

    in_use_bytes: int
    peak_bytes: int
    limit_bytes: int | None
    of: str


class Device(Protocol):
    """What the checks may ask of a device."""

    def identify(self) -> DeviceFacts:
        """Return who the device is."""
        ...

    def torch_device(self) -> torch.device:
        """Return torch's device."""
        ...

    def synchronise(self) -> None:
        """Return when everything that was queued on the device has run."""
        ...

    def memory(self) -> MemoryStats:
        """Return the memory in use, its peak and its limit."""
        ...

    def reset_peak(self) -> None:
        """Start a new peak at what is in use now."""
        ...


def open_device(hardware: Hardware, environ: Mapping[str, str]) -> Device:
    """Open this process's device of ``hardware``; under pytest-xdist each worker has its own.

    Raises UserError when there are fewer devices than workers.
    """
    worker = worker_index(environ)
    if hardware.device == "hpu":
        from gaudi_validate.hardware.hpu import HpuDevice

        return HpuDevice(hardware, worker)
    if hardware.device == "cuda":
        from gaudi_validate.hardware.cuda import CudaDevice

        return CudaDevice(hardware, worker)
    from gaudi_validate.hardware.cpu import CpuDevice

    return CpuDevice(hardware)


def worker_index(environ: Mapping[str, str]) -> int:
    """Return the number of this pytest-xdist worker, 0 outside of one."""
    match = re.fullmatch(r"gw(\d+)", environ.get("PYTEST_XDIST_WORKER", ""))
    return int(match.group(1)) if match else 0


def device_for_worker(worker: int, count: int, name: str) -> int:
    """Return the index of the device that belongs to ``worker``: one device a worker, never shared."""
    if worker >= count:
        raise UserError(f"{worker + 1} or more pytest-xdist workers and {count} {name} devices", do=f"pass -n {count}")
    return worker
