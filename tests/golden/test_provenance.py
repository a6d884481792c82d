"""Provenance: commit, versions, date and machine, without torch and without who measured."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from gaudi_validate import __version__
from gaudi_validate.core.provenance import collect, commit_of, cpu_summary

if TYPE_CHECKING:
    from pathlib import Path

CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2.00GHz
flags\t\t: fpu sse2 avx2 avx512f amx_bf16
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "file").write_text("1")
    git(folder, "init", "-q")
    git(folder, "add", "file")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false", "commit", "-qm", "m")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_and_whether_files_changed(checkout: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == head
    (checkout / "untracked").write_text("1")
    assert commit_of(checkout) == head
    (checkout / "file").write_text("2")
    assert commit_of(checkout) == f"{head}-dirty"


def test_no_commit_outside_a_checkout_or_before_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert commit_of(tmp_path) is None


def test_a_run_s_provenance(checkout: Path) -> None:
    now = datetime(2025, 1, 2, 4, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    found = collect("gaudi2", checkout, device="HL-225H", driver="1.21.0", now=now)
    assert (found.date, found.hardware, found.device, found.driver) == (
        "2025-01-02T03:04:05Z",
        "gaudi2",
        "HL-225H",
        "1.21.0",
    )
    assert found.commit == git(checkout, "rev-parse", "HEAD")
    assert found.versions["gaudi-validate"] == __version__
    assert {"torch", "transformers"} <= found.versions.keys()
    assert found.samples == 1
    assert found.reason is None


def test_the_cpu_is_named_for_runs_on_it_only(checkout: Path) -> None:
    assert collect("cpu", checkout).device == cpu_summary()
    assert collect("gaudi2", checkout).device is None


def test_the_cpu_s_name_and_its_instruction_sets(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    assert cpu_summary(tmp_path / "cpuinfo") == "Some CPU @ 2.00GHz (avx2, avx512f, amx_bf16)"
    assert cpu_summary(tmp_path / "missing")


def test_provenance_needs_no_torch(checkout: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gaudi_validate.core.provenance import collect; "
        "collect('cpu', Path('.')); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
