from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.publish import folder_once

if TYPE_CHECKING:
    from pathlib import Path

FILES = 40
# Builds FILES files with the same text, and says when it starts; no torch, so that a process costs little.
BUILDER = f"""
import sys, time
from pathlib import Path
from gaudi_validate.models.publish import folder_once
target, log, pause = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def build(folder):
    with log.open("a") as stream:
        stream.write("built\\n")
    for number in range({FILES}):
        (folder / str(number)).write_text("whole" * 1000)
        print(number, flush=True)
        time.sleep(pause)
folder_once(target, build)
"""


def start(target: Path, log: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDER, str(target), str(log), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def assert_whole(target: Path) -> None:
    assert sorted(int(file.name) for file in target.iterdir()) == list(range(FILES))
    assert {file.read_text() for file in target.iterdir()} == {"whole" * 1000}


def fill(folder: Path) -> None:
    for number in range(FILES):
        (folder / str(number)).write_text("whole" * 1000)


@pytest.mark.parametrize("after", [0, 7, 23, FILES - 1])
def test_a_kill_in_mid_build_leaves_nothing_and_blocks_nobody(tmp_path: Path, after: int) -> None:
    target = tmp_path / "model"
    process = start(target, tmp_path / "log", 0.005)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == after:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    if target.exists():  # the kill came after the last file, when the rename was done
        assert after == FILES - 1
        assert_whole(target)
    else:
        assert list(tmp_path.glob("model.building-*"))
    folder_once(target, fill)
    assert_whole(target)
    assert not list(tmp_path.glob("model.building-*")) or after == FILES - 1


def test_processes_that_build_at_once_build_once(tmp_path: Path) -> None:
    target, log = tmp_path / "model", tmp_path / "log"
    processes = [start(target, log, 0.002) for _ in range(4)]
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert log.read_text() == "built\n"
    assert_whole(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "model", "model.lock"]


def test_a_builder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        folder_once(tmp_path / "model", build)
    assert [path.name for path in tmp_path.iterdir()] == ["model.lock"]


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    def never(_folder: Path) -> None:
        raise AssertionError("built twice")

    folder_once(tmp_path / "model", fill)
    assert folder_once(tmp_path / "model", never) == tmp_path / "model"


def test_files_are_readable_by_others(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "secretive").write_text("x")
        (folder / "secretive").chmod(0o600)

    made = folder_once(tmp_path / "model", build)
    assert oct((made / "secretive").stat().st_mode & 0o777) == "0o644"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    target = tmp_path / "file" / "models" / "model"
    with pytest.raises(UserError) as caught:
        folder_once(target, fill)
    assert str(caught.value) == f"cannot write the model cache (Not a directory): {target.parent}"
