"""Peak memory of a callable as the device's own allocator reports it; see live_bytes for the exact count.

The two answer different questions: the allocator sees workspace inside kernels and its own rounding and fragments, on
that device only; the count sees neither, and is the same everywhere.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from gaudi_validate.hardware.device import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePeak:
    """Bytes of one callable on one device: the highest of ``peaks_bytes``, each above what was in use before it."""

    above_bytes: int
    before_bytes: int
    peaks_bytes: tuple[int, ...]
    of: str


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that a device or the machine has no memory left: an outcome, not a crash."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # torch's CPU allocator and the HPU's raise a plain RuntimeError.
    words = ("can't allocate memory", "out of memory", "allocation failed")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def device_peak(device: Device, fn: Callable[..., Any], *args: Any, runs: int = 2, **kwargs: Any) -> DevicePeak:
    """Run ``fn`` ``runs`` times and return the highest peak above what the device had in use.

    Whoever compares two implementations calls this in a fresh process each, since an allocator keeps what earlier
    work made it take. ``before_bytes`` belongs to the run with the highest peak.
    """
    measured = [_one_run(device, fn, args, kwargs) for _ in range(runs)]
    above, before = max(measured)
    return DevicePeak(
        above_bytes=above,
        before_bytes=before,
        peaks_bytes=tuple(peak for peak, _ in measured),
        of=device.memory().of,
    )


def _one_run(device: Device, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    gc.collect()
    device.synchronise()
    device.reset_peak()
    before = device.memory().in_use_bytes
    result = fn(*args, **kwargs)
    device.synchronise()
    peak = device.memory().peak_bytes
    del result
    return max(peak - before, 0), before
