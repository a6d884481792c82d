"""Golden files: names that stay inside, links refused, disks that are full or read-only, two writers at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gaudi_validate.core import atomic
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.lint import copied_numbers, misplaced
from gaudi_validate.golden.names import case_of_test, model_folder, model_of_folder
from gaudi_validate.golden.records import BaselineFile, Metric, SessionRecord
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import apply

from .builders import golden, metric_proposal, run, stamp

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
NAMES = "use up to 120 letters, digits and _.+=@-, first a letter or digit, last no dot"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return GoldenStore(tmp_path / "golden")


def baselines(hardware: str, value: float, *, kind: str = "speed", recorded: str | None = None) -> BaselineFile:
    metric = Metric(
        value=value,
        unit="tok/s" if kind == "speed" else "graphs",
        kind=kind,  # type: ignore[arg-type]
        better="higher" if kind == "speed" else "lower",
        tolerance=0.0,
        sessions=(SessionRecord(date="2025-01-02T03:04:05Z", value=value),),
        provenance=(stamp(hardware=recorded or hardware),),
    )
    return BaselineFile(hardware=hardware, metrics={"decode": metric})


def test_what_is_written_is_read(store: GoldenStore) -> None:
    path = store.write_text("gaudi2", "meta-llama/Llama-3.1-8B", "he-has-a", golden())
    assert path == store.root / "text" / "gaudi2" / "meta-llama--Llama-3.1-8B" / "he-has-a.json"
    assert store.text("gaudi2", "meta-llama/Llama-3.1-8B", "he-has-a") == golden()
    assert store.texts("gaudi2") == [("meta-llama/Llama-3.1-8B", "he-has-a")]
    store.write_baselines(baselines("gaudi2", 35.5))
    assert store.baselines("gaudi2") == baselines("gaudi2", 35.5)
    assert store.hardware_keys() == ["gaudi2"]


def test_no_other_hardware_s_golden_is_ever_returned(store: GoldenStore) -> None:
    store.write_text("gaudi2", "m", "c", golden())
    store.write_baselines(baselines("gaudi2", 35.5))
    assert store.text("gaudi3", "m", "c") is None
    assert store.baselines("gaudi3") is None
    assert store.texts("gaudi3") == []


def test_a_baseline_file_copied_to_another_key_is_refused(store: GoldenStore) -> None:
    path = store.write_baselines(baselines("gaudi2", 35.5))
    path.rename(path.with_name("gaudi3.json"))
    with pytest.raises(UserError) as caught:
        store.baselines("gaudi3")
    assert str(caught.value) == (
        f"baselines of gaudi2, not of gaudi3: {path.with_name('gaudi3.json')}; "
        "never copy another hardware's numbers: delete the file and record it with --update-golden"
    )


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "",
        "../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "x.",
        ".x",
        "-x",
        "a\0b",
        "a b",
        "ä",
        "a\n",
        "x" * 121,
        "c:d",
        "~",
    ],
)
def test_a_case_never_becomes_another_path(store: GoldenStore, name: str) -> None:
    with pytest.raises(UserError) as caught:
        store.text_path("cpu", "m", name)
    assert str(caught.value) == f"case cannot be a file name: {name!r}; {NAMES}".replace("\n", " ")
    with pytest.raises(UserError):
        store.baseline_path(name)


@pytest.mark.parametrize("name", ["..", "../..", "/models/x", "a/b/c", "a/..", "./a", "a/", "a--b", "a/b--c", ""])
def test_a_model_never_becomes_another_path(store: GoldenStore, name: str) -> None:
    with pytest.raises(UserError):
        store.text_path("cpu", name, "c")


def test_model_folders_differ_for_different_models() -> None:
    names = ["a/b", "a", "a-b", "a-/b", "a/-b", "b/a"]
    folders = [model_folder(name) for name in names if name != "a/-b"]
    assert len(set(folders)) == len(folders)
    assert [model_of_folder(folder) for folder in folders if folder != "a---b"] == ["a/b", "a", "a-b", "b/a"]


def test_a_test_s_own_name_makes_a_case_that_no_other_test_has() -> None:
    names = [
        "test_text",
        "test_text[a b]",
        "test_text[a-b]",
        "test_text[a/b]",
        "test_text[é]",
        "x" * 500,
        "x" * 501,
        "[]",
    ]
    cases = [case_of_test(name) for name in names]
    assert cases[:2] == ["test_text", "test_text-a-b-fefdc055"]
    assert len(set(cases)) == len(cases)
    assert all(GoldenStore(Path("golden")).text_path("cpu", "m", case).name == f"{case}.json" for case in cases)


@pytest.mark.parametrize("part", ["text", "text/cpu", "text/cpu/m", "text/cpu/m/c.json"])
def test_a_link_in_the_golden_folder_is_refused(store: GoldenStore, tmp_path: Path, part: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = store.root / part
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    for action in (lambda: store.text("cpu", "m", "c"), lambda: store.write_text("cpu", "m", "c", golden())):
        with pytest.raises(UserError) as caught:
            action()
        assert str(caught.value) == (f"a symlink in the golden folder: {link}; replace it by the file or folder itself")
    assert list(outside.iterdir()) == []


def test_a_link_to_another_hardware_s_baselines_is_refused(store: GoldenStore) -> None:
    path = store.write_baselines(baselines("gaudi2", 35.5))
    path.with_name("gaudi3.json").symlink_to(path)
    with pytest.raises(UserError, match="a symlink in the golden folder"):
        store.baselines("gaudi3")


def test_the_golden_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "golden").symlink_to(tmp_path / "shared")
    GoldenStore(tmp_path / "golden").write_text("cpu", "m", "c", golden())
    assert GoldenStore(tmp_path / "shared").text("cpu", "m", "c") == golden()


def test_a_folder_in_the_place_of_a_golden_is_one_line(store: GoldenStore) -> None:
    path = store.text_path("cpu", "m", "c")
    path.mkdir(parents=True)
    with pytest.raises(UserError) as caught:
        store.text("cpu", "m", "c")
    assert str(caught.value) == f"cannot read (Is a directory): {path}; make it a readable file"
    with pytest.raises(UserError, match=r"^cannot write \(Is a directory\)"):
        store.write_text("cpu", "m", "c", golden())
    assert list(path.parent.iterdir()) == [path]


def test_a_golden_gets_the_mode_that_the_umask_leaves(store: GoldenStore) -> None:
    before = os.umask(0o022)
    try:
        path = store.write_text("cpu", "m", "c", golden())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


CANNOT = "; what was there is as it was: make room or make the folder writable, and run again"


@contextmanager
def without_privileges() -> Iterator[Path]:
    """Yield a folder that this process may read and not write; root would write anyway, so be nobody meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        folder, was_root = Path(name), os.geteuid() == 0
        folder.chmod(0o755)
        (folder / "golden").mkdir()
        GoldenStore(folder / "golden").write_text("cpu", "m", "c", golden())
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if was_root:
            os.seteuid(65534)
        try:
            yield folder / "golden"
        finally:
            if was_root:
                os.seteuid(0)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o755)


def test_a_read_only_folder_is_one_line_and_keeps_the_old_golden() -> None:
    with without_privileges() as folder:
        store = GoldenStore(folder)
        with pytest.raises(UserError) as caught:
            store.write_text("cpu", "m", "c", golden(2))
        path = store.text_path("cpu", "m", "c")
        assert str(caught.value) == f"cannot write (Permission denied): {path}{CANNOT}"
        with pytest.raises(UserError) as caught, store.locked():
            pass
        assert str(caught.value) == f"cannot write (Permission denied): {folder / '.lock'}{CANNOT}"
        assert store.text("cpu", "m", "c") == golden()
        assert [one.name for one in path.parent.iterdir()] == ["c.json"]


LIMITED = """
import resource, signal, sys
from pathlib import Path
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.store import GoldenStore
from golden.builders import golden
store = GoldenStore(Path(sys.argv[1]))
store.write_text("cpu", "m", "c", golden())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    store.write_text("cpu", "m", "c", golden(1, length=5000))
except UserError as error:
    print(error)
"""


def test_a_file_over_the_limit_is_one_line_and_keeps_the_old_golden(store: GoldenStore) -> None:
    command = [sys.executable, "-c", LIMITED, str(store.root)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    path = store.text_path("cpu", "m", "c")
    assert done.stdout == f"cannot write (File too large): {path}{CANNOT}\n"
    assert store.text("cpu", "m", "c") == golden()
    assert [one.name for one in path.parent.iterdir()] == ["c.json"]


def test_a_full_disk_is_one_line_and_keeps_the_old_golden(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs takes root on Linux")
    try:
        store = GoldenStore(mount / "golden")
        store.write_text("cpu", "m", "c", golden())
        path = store.text_path("cpu", "m", "c")
        with pytest.raises(UserError) as caught:
            store.write_text("cpu", "m", "c", golden(1, length=20_000))
        assert str(caught.value) == f"cannot write (No space left on device): {path}{CANNOT}"
        assert store.text("cpu", "m", "c") == golden()
        assert [one.name for one in path.parent.iterdir()] == ["c.json"]
        store.write_text("cpu", "m", "c", golden(2))
        assert store.text("cpu", "m", "c") == golden(2)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_what_a_killed_writer_left_is_ignored_and_cleaned(store: GoldenStore) -> None:
    path = store.write_text("cpu", "m", "c", golden())
    store.write_baselines(baselines("cpu", 2.5))
    left = [path.with_name(".c.json.123-0a1b2c3d.tmp"), store.root / "baselines" / ".cpu.json.123-0a1b2c3d.tmp"]
    kept = path.with_name(".notes.tmp")
    for one in (*left, kept):
        one.write_text('{"text": "ha')
    assert store.texts("cpu") == [("m", "c")]
    assert store.hardware_keys() == ["cpu"]
    with store.locked():
        store.remove_leftovers()
    assert [one.exists() for one in (*left, kept)] == [False, False, True]


MANY = """
import sys, time
from contextlib import nullcontext
from pathlib import Path
from gaudi_validate.core import atomic
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import apply
from golden.builders import metric_proposal, run
folder, name, planted = sys.argv[1:]
if planted == "planted":
    atomic.locked = lambda folder: nullcontext()
    write = atomic.write
    atomic.write = lambda path, data: (time.sleep(0.01), write(path, data))
store = GoldenStore(Path(folder))
print("ready", flush=True)
input()
for number in range(15):
    apply([metric_proposal(number, metric=f"{name}-{number}")], run(), store, not_full="part")
"""


def two_writers(root: Path, kind: str) -> int:
    """Let two processes record 15 baselines each in one file, at once; return how many are in it.

    A process that fails has lost what it had still to record.
    """
    commands = [[sys.executable, "-c", MANY, str(root), name, kind] for name in ("a", "b")]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen(command, cwd=TESTS, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        for command in commands
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
    for process in both:
        assert process.stdout is not None
        process.stdout.close()
        process.wait()
    recorded = GoldenStore(root).baselines("cpu")
    return len(recorded.metrics) if recorded else 0


def test_two_processes_lose_nothing_of_each_other(store: GoldenStore) -> None:
    assert two_writers(store.root, "locked") == 30
    assert sorted(path.name for path in store.root.iterdir()) == ["baselines"]


def test_two_processes_without_the_lock_do_lose(store: GoldenStore) -> None:
    assert two_writers(store.root, "planted") < 30


def test_a_writer_that_waits_too_long_says_who_is_in_the_way(store: GoldenStore) -> None:
    with store.locked(), pytest.raises(UserError) as caught, atomic.locked(store.root, timeout_s=0.05):
        pass
    assert str(caught.value) == f"another process is writing here: {store.root}; wait for it and run again"


def test_the_lock_survives_an_error_in_the_update(store: GoldenStore) -> None:
    with pytest.raises(RuntimeError), store.locked():
        raise RuntimeError
    with store.locked():
        assert (store.root / ".lock").exists()
    assert not (store.root / ".lock").exists()


def test_identical_numbers_of_two_hardware_keys_are_flagged(store: GoldenStore) -> None:
    for key, value in (("gaudi2", 35.25), ("gaudi3", 35.25), ("cpu", 1.5)):
        store.write_baselines(baselines(key, value))
    for key, margins in (("gaudi2", (0.5, 1.0)), ("gaudi3", (0.5, 1.0)), ("cpu", (0.5, 1.25))):
        store.write_text(key, "m", "c", golden(length=2, margins=margins, provenance=(stamp(hardware=key),)))
    assert copied_numbers(store) == [
        "baseline decode: gaudi2 and gaudi3 hold identical numbers; record each on its own hardware",
        "margins of m/c: gaudi2 and gaudi3 hold identical numbers; record each on its own hardware",
    ]


def test_identical_counts_and_missing_margins_are_not_flagged(store: GoldenStore) -> None:
    for key in ("gaudi2", "gaudi3"):
        store.write_baselines(baselines(key, 32, kind="count"))
        store.write_text(key, "m", "c", golden(margins=(), provenance=(stamp(hardware=key),)))
    assert copied_numbers(store) == []
    assert misplaced(store) == []


def test_goldens_moved_to_another_key_are_flagged(store: GoldenStore) -> None:
    store.write_text("gaudi3", "m", "c", golden(provenance=(stamp(hardware="gaudi2"),)))
    store.write_baselines(baselines("gaudi3", 2.5, recorded="gaudi2"))
    assert misplaced(store) == [
        "text/gaudi3/m/c: recorded on gaudi2, kept as gaudi3; record it on gaudi3",
        "baselines/gaudi3: decode: recorded on gaudi2, kept as gaudi3; record it on gaudi3",
    ]


def test_the_project_s_own_goldens_are_whole() -> None:
    store = GoldenStore(ROOT / "golden")
    assert copied_numbers(store) == []
    assert misplaced(store) == []


def test_an_update_leaves_other_metrics_as_they_are(store: GoldenStore) -> None:
    apply([metric_proposal(1, metric="a"), metric_proposal(2, metric="b")], run(), store, not_full="part")
    before = store.baselines("cpu")
    apply([metric_proposal(3, metric="b")], run(reason="why"), store, not_full="part")
    after = store.baselines("cpu")
    assert before is not None
    assert after is not None
    assert after.metrics["a"] == before.metrics["a"]
    assert after.metrics["b"].provenance == (
        *before.metrics["b"].provenance,
        msgspec.structs.replace(before.metrics["b"].provenance[0], reason="why"),
    )
