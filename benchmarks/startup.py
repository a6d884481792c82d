"""What the plugin adds to ``pytest --help``: interleaved runs with and without it, medians and their difference.

Run: python benchmarks/startup.py [PAIRS]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HELP = [sys.executable, "-m", "pytest", "--help"]
WITHOUT = [*HELP, "-p", "no:gaudi_validate"]
LIMIT_MS = 60.0


def run_ms(command: list[str], folder: str) -> tuple[float, float]:
    """Run the command in ``folder`` and return its wall time and its processor time in milliseconds.

    Bytecode is kept, in ``folder``, as pip keeps it for an installed package.
    """
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (time.perf_counter() - started) * 1e3, cpu * 1e3


def main() -> None:
    """Print the medians."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for command in (HELP, WITHOUT):
            run_ms(command, folder)  # fill the caches of files and bytecode
        for index in range(pairs):
            order = [("with", HELP), ("without", WITHOUT)]
            for name, command in order if index % 2 else reversed(order):
                times[name].append(run_ms(command, folder))
    print(f"pytest --help, {pairs} interleaved pairs, Python {sys.version.split()[0]}")
    print("                            wall        processor")
    for name, measured in times.items():
        print(f"  {name:<20}", *(f"{statistics.median(column):9.1f} ms" for column in zip(*measured, strict=True)))
    both = zip(times["with"], times["without"], strict=True)
    differences = zip(*([a - b for a, b in zip(*pair, strict=True)] for pair in both), strict=True)
    print("  median difference   ", *(f"{statistics.median(column):9.1f} ms" for column in differences))
    print(f"  limit {LIMIT_MS:.0f} ms; on a busy machine the processor time is the steadier of the two")


if __name__ == "__main__":
    main()
