"""What can and cannot be measured on this machine, and why: for the report header and ``gaudi-validate doctor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gaudi_validate.core.hardware_table import Hardware
    from gaudi_validate.core.settings import Found


def measurable(hardware: Hardware) -> tuple[str, ...]:
    """Return what this machine measures."""
    parity = "logic parity in " + ("float64" if hardware.fp64 else "float32")
    return (
        parity,
        "precision parity in bfloat16, float16 and float32",
        "generated text against goldens",
        "live memory of tensors, counted exactly",
        f"speed on the {hardware.name}, as a paired ratio",
    )


def not_measurable(hardware: Hardware, found: Found) -> tuple[tuple[str, str], ...]:
    """Return (what, why) for all that this machine does not measure."""
    missing = []
    if hardware.device != "hpu":
        why = found.no_hpu if found.hpu is None else f"the run is on {hardware.key}"
        missing.append(("speed, memory and graphs of an HPU", why))
    if hardware.device not in {"cuda", "hpu"}:
        why = f"the run is on {hardware.key}" if found.cuda else found.no_cuda
        missing.append(("speed and memory of a CUDA device", why))
    if not hardware.fp64:
        missing.append(("parity in float64", f"{hardware.name} has none; float32 is used"))
    return tuple(missing)
