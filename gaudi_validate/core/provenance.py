"""Where a number or a text comes from: commit, driver, versions, date, hardware, sample count. Never who measured."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from gaudi_validate.core.versions import installed

PACKAGES = ("gaudi-validate", "torch", "transformers", "optimum-habana", "habana-torch-plugin")
CPUINFO = Path("/proc/cpuinfo")
# What decides which kernels torch picks on a CPU; the names are those of /proc/cpuinfo.
ISA = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16", "sve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The circumstances of one recording.

    ``hardware`` is the baseline key, ``device`` the machine in words, ``date`` UTC in ISO 8601, ``commit`` ends in
    "-dirty" when tracked files had changes, ``samples`` says how many measurements are behind the record.
    """

    commit: str | None
    driver: str | None
    versions: dict[str, str] = field(default_factory=dict)
    date: str
    hardware: str
    device: str | None = None
    samples: int = 1
    reason: str | None = None


def collect(
    hardware: str,
    folder: Path,
    *,
    device: str | None = None,
    driver: str | None = None,
    now: datetime | None = None,
) -> Provenance:
    """Return the provenance of a run on ``hardware`` whose project is in ``folder``.

    ``device`` and ``driver`` come from the device layer, which may import torch; the CPU's name is found here.
    """
    moment = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    return Provenance(
        commit=commit_of(folder),
        driver=driver,
        versions=installed(PACKAGES),
        date=moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        hardware=hardware,
        device=device or (cpu_summary() if hardware == "cpu" else None),
    )


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in ``folder``, "-dirty" appended for changed tracked files.

    ``None`` outside a checkout, before the first commit, and without git.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit if changes == "" else f"{commit}-dirty"


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def cpu_summary(cpuinfo: Path = CPUINFO) -> str:
    """Return the CPU's name and those of its instruction sets that decide on kernels: "Xeon 8480 (avx2, amx_bf16)"."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    name = values.get("model name") or platform.processor() or platform.machine()
    flags = f"{values.get('flags', '')} {values.get('Features', '')}".split()
    found = [one for one in ISA if one in flags]
    return f"{name} ({', '.join(found)})" if found else name
