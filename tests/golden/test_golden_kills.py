"""kill -9 at random moments of an update: the old file or the new one is there, never a torn or lost one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.core import atomic
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.store import GoldenStore

from . import writers
from .builders import generated

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
KILLS = 50

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no kill -9 on Windows")


@contextmanager
def writer_process(folder: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "golden.writers", str(folder), kind]
    with subprocess.Popen(command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.stdin.close()  # type: ignore[union-attr]


def start(process: subprocess.Popen[str]) -> int:
    process.stdin.write("start\n")  # type: ignore[union-attr]
    process.stdin.flush()  # type: ignore[union-attr]
    return int(process.stdout.readline())  # type: ignore[union-attr]


def wrong(store: GoldenStore, before: dict[str, int]) -> list[str]:
    """Return what a kill broke: a file that is gone, torn, or shorter in history than it was."""
    found = []
    for case in writers.CASES:
        try:
            golden = store.text("cpu", "m", case)
        except UserError as error:
            found.append(str(error))
            continue
        if golden is None:
            found.append(f"{case} is lost")
            continue
        wrote = generated(golden.ids[0], length=writers.LENGTH)
        if (golden.text, golden.ids) != (wrote.text, wrote.ids):
            found.append(f"{case} is mixed")
        if len(golden.provenance) < before.get(case, 0):
            found.append(f"{case} lost history")
        before[case] = len(golden.provenance)
    try:
        if writers.newest(store) < before.get("version", 0):
            found.append("baselines are older")
        before["version"] = writers.newest(store)
    except UserError as error:
        found.append(str(error))
    return found


def kill_often(folder: Path, kind: str, kills: int, *, stop_at_first: bool = False) -> tuple[list[str], set[str]]:
    """Kill a writer ``kills`` times; return what was wrong, and the names of temporary files that were left."""
    store, chance, before = GoldenStore(folder), random.Random(9), dict[str, int]()
    found: list[str] = []
    leftovers: set[str] = set()
    with writer_process(folder, kind) as process:
        for _ in range(kills):
            child = start(process)
            time.sleep(chance.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
            found += wrong(store, before)
            leftovers |= {path.name for path in folder.rglob(".*.tmp")}
            if found and stop_at_first:
                break
    return found, leftovers


def test_50_kills_leave_whole_goldens(tmp_path: Path) -> None:
    found, leftovers = kill_often(tmp_path / "golden", "atomic", KILLS)
    assert found == []
    # The kills did hit the writing itself: they left temporary files, which the next update cleans.
    assert leftovers
    assert all(atomic.is_temporary(name) for name in leftovers)
    store = GoldenStore(tmp_path / "golden")
    writers.update(store, writers.newest(store) + 1)
    assert [path.name for path in (tmp_path / "golden").rglob(".*")] == []
    assert store.texts("cpu") == [("m", "one"), ("m", "two")]


def test_the_kills_catch_a_writer_that_is_not_atomic(tmp_path: Path) -> None:
    found, _ = kill_often(tmp_path / "golden", "planted", KILLS, stop_at_first=True)
    assert found
    assert "not a golden (" in found[0] or "not a baseline file (" in found[0] or "lost" in found[0]


def test_the_writers_import_no_torch() -> None:
    code = "import sys, golden.writers; print({'torch', 'pytest', 'syrupy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
