"""Processes that update goldens over and over until they are killed. No torch, no pytest: they start at once.

Run in tests/ as ``python -m golden.writers GOLDEN_DIR (atomic|planted)``: reads one line a command from stdin. "start"
forks a child that updates without end, and prints its process id once it has written; "quit" ends.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gaudi_validate.core import atomic
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import apply

from .builders import metric_proposal, run, text_proposal

CASES = ("one", "two")
LENGTH = 200


def torn_write(path: Path, data: bytes) -> None:
    """The planted fault: write in place, in two halves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        file.write(data[: len(data) // 2])
        time.sleep(0.002)
        file.write(data[len(data) // 2 :])


def update(store: GoldenStore, version: int) -> None:
    """One --update-golden: two texts and a baseline change, which takes a reason."""
    proposals = [text_proposal(version, case=case, length=LENGTH) for case in CASES]
    apply([*proposals, metric_proposal(version)], run(reason=f"version {version}"), store, not_full="part")


def newest(store: GoldenStore) -> int:
    """Return the last version that reached the disk whole."""
    baselines = store.baselines("cpu")
    return int(baselines.metrics["graphs"].value) if baselines else 0


def keep_updating(store: GoldenStore, ready: int) -> None:
    version = newest(store)
    while True:
        version += 1
        update(store, version)
        os.write(ready, b".")


def start(store: GoldenStore) -> int:
    """Fork a writer and return its process id after its first update."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        try:
            keep_updating(store, tell)
        finally:
            os._exit(1)
    os.close(tell)
    os.read(ready, 1)
    KEPT.append(ready)  # a closed reader would end the writer by SIGPIPE
    return child


KEPT: list[int] = []


def main(folder: str, kind: str) -> None:
    """Serve commands."""
    if kind == "planted":
        atomic.write = torn_write
    store = GoldenStore(Path(folder))
    for line in sys.stdin:
        if line.strip() == "quit":
            return
        sys.stdout.write(f"{start(store)}\n")
        sys.stdout.flush()
        os.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
