"""What the plugin adds to ``pytest --help``: interleaved runs with and without it, medians and their difference.

Run: python benchmarks/startup.py [PAIRS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

HELP = [sys.executable, "-m", "pytest", "--help"]
WITHOUT = [*HELP, "-p", "no:gaudi_validate"]
LIMIT_MS = 60.0


def run_ms(command: list[str], folder: str) -> float:
    """Run the command in ``folder`` and return its wall time in milliseconds."""
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    """Print the medians."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with_ms: list[float] = []
    without_ms: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run_ms(HELP, folder), run_ms(WITHOUT, folder)  # warm the file cache
        for index in range(pairs):
            order = ((HELP, with_ms), (WITHOUT, without_ms))
            for command, times in order if index % 2 else reversed(order):
                times.append(run_ms(command, folder))
    differences = [a - b for a, b in zip(with_ms, without_ms, strict=True)]
    print(f"pytest --help, {pairs} interleaved pairs, Python {sys.version.split()[0]}")
    print(f"  with the plugin     {statistics.median(with_ms):7.1f} ms")
    print(f"  without             {statistics.median(without_ms):7.1f} ms")
    print(f"  median difference   {statistics.median(differences):7.1f} ms (limit {LIMIT_MS:.0f} ms)")


if __name__ == "__main__":
    main()
