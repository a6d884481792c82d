"""What the machine has, without importing torch: device nodes, sysfs and installed packages only.

An HPU counts as found when its driver's device is there *and* habana_frameworks is installed. The habanalabs driver
lists its cards under /sys/class/accel (kernel documentation, ABI/testing/sysfs-driver-habanalabs); other vendors'
accelerators live there too, so the PCI vendor decides.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

from gaudi_validate.core.settings import Found

SYS_ACCEL = Path("/sys/class/accel")
NVIDIA_CONTROL = Path("/dev/nvidiactl")
HABANA_VENDOR = "0x1da3"
# device_type as the driver words it; the PCI id where a driver does not offer that file.
_TYPES = {"GAUDI": "gaudi", "GAUDI2": "gaudi2", "GAUDI3": "gaudi3"}
_PCI_IDS = {"0x1000": "gaudi", "0x1010": "gaudi", "0x1020": "gaudi2", "0x1060": "gaudi3"}


def find(sys_accel: Path = SYS_ACCEL, nvidia_control: Path = NVIDIA_CONTROL) -> Found:
    """Return what this machine has, and for what it has not, why."""
    hpu, no_hpu = find_hpu(sys_accel)
    no_cuda = missing_cuda(nvidia_control)
    return Found(hpu=hpu, no_hpu=no_hpu, cuda=not no_cuda, no_cuda=no_cuda)


def find_hpu(sys_accel: Path = SYS_ACCEL) -> tuple[str | None, str]:
    """Return (hardware key, "") or (None, the reason)."""
    cards = [card for card in (_card(path) for path in sorted(sys_accel.glob("accel[0-9]*"))) if card]
    if not cards:
        tool = ", though hl-smi is installed" if shutil.which("hl-smi") else ""
        return None, f"no Habana device under {sys_accel}{tool}"
    if importlib.util.find_spec("habana_frameworks") is None:
        return None, "a Habana device is there, but the package habana_frameworks is not installed"
    if cards[0] not in _TYPES.values():
        return None, f"an unknown Habana device: {cards[0]}"
    return cards[0], ""


def count_hpus(sys_accel: Path = SYS_ACCEL) -> int:
    """Return the number of Habana cards that the driver lists."""
    return sum(_card(path) is not None for path in sys_accel.glob("accel[0-9]*"))


def _card(path: Path) -> str | None:
    """Return the hardware key of one sysfs entry, the raw name of an unknown Habana card, ``None`` for others."""
    if _read(path / "device" / "vendor") != HABANA_VENDOR:
        return None
    kind, pci = _read(path / "device" / "device_type"), _read(path / "device" / "device")
    match = re.match(r"GAUDI[23]?", kind.upper())
    if match:
        return _TYPES[match.group()]
    return _PCI_IDS.get(pci, kind or pci or "unnamed")


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip() if path.is_file() else ""


def missing_cuda(nvidia_control: Path = NVIDIA_CONTROL) -> str:
    """Return why CUDA cannot be used, or "". Reads torch's version file instead of importing torch (1.5 s)."""
    if not nvidia_control.exists():
        return f"no NVIDIA driver: {nvidia_control} is missing"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    version_file = Path(spec.origin).with_name("version.py")
    if not re.search(r"^cuda\b[^=]*=\s*['\"]", version_file.read_text(encoding="utf-8"), re.MULTILINE):
        return "this torch is built without CUDA"
    return ""
