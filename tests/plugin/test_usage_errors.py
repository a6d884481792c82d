"""What a user does wrong is one line on stderr, without a traceback, before any test runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.core.settings import Found
from gaudi_validate.hardware.detect import count_hpus

if TYPE_CHECKING:
    from pathlib import Path

UsageError = Callable[..., str]


@pytest.fixture
def usage_error(pytester: pytest.Pytester) -> UsageError:
    """Run pytest over a test that must not run; return the one line that it says."""

    def run(*arguments: str) -> str:
        pytester.makepyfile("def test_it(): raise AssertionError('must not run')")
        result = pytester.runpytest_inprocess(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        lines = [line for line in result.stderr.lines if line]
        assert len(lines) == 1, lines
        assert "Traceback" not in result.stdout.str()
        return lines[0].removeprefix("ERROR: ")

    return run


def test_gaudi2_ci_without_an_hpu(usage_error: UsageError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUDI2_CI", "1")
    assert usage_error("-m", "slow") == (
        "GAUDI2_CI=1 asks for a Gaudi2 and this machine has no HPU (no Habana device under /sys/class/accel); "
        "unset GAUDI2_CI or pass --hardware cpu (an emulated HPU, --hpu=emulated, is planned)"
    )


def test_help_is_shown_whatever_is_set(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUDI2_CI", "1")
    result = pytester.runpytest_inprocess("--help")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--attention=ATTENTION", "*--evidence=PATH*"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("--hardware", "gaudi9"),
            "unknown hardware: --hardware 'gaudi9'; use one of cpu, cuda, gaudi, gaudi2, gaudi3",
        ),
        (
            ("--hpu=emulated",),
            "--hpu=emulated is planned and not in this version; "
            "run without it: the checks that need no HPU run on the CPU (--hardware cpu)",
        ),
        (("--hpu=real",), "unknown hpu: --hpu 'real'; use one of emulated"),
        (("--dtype", "int4"), "unknown dtype: --dtype 'int4'; use one of bfloat16, float16, float32"),
    ],
)
def test_options(usage_error: UsageError, arguments: tuple[str, ...], text: str) -> None:
    assert usage_error(*arguments) == text


def test_evidence_in_a_missing_folder(usage_error: UsageError, pytester: pytest.Pytester) -> None:
    assert usage_error("--evidence", "nowhere/evidence.json") == (
        f"the folder of the evidence file does not exist: nowhere/evidence.json; mkdir -p {pytester.path / 'nowhere'}"
    )
    assert usage_error("--evidence", ".") == "the evidence file is a folder: .; name a file in it"


def test_a_wrong_table(usage_error: UsageError, pytester: pytest.Pytester) -> None:
    file = pytester.makepyprojecttoml('[tool.gaudi_validate]\nmodle = "x"\n')
    assert usage_error() == (
        f"unknown setting: {file} [tool.gaudi_validate] modle; known keys are hardware, hpu, port, attention, model, "
        "dtype, golden_dir, cache_dir, evidence, strict_verdicts, run_slow"
    )
    file.write_text("[tool]\ngaudi_validate = 3\n")
    assert usage_error() == f"must be a table: {file} [tool.gaudi_validate]; write its keys as name = value"


def test_a_corrupt_pyproject(usage_error: UsageError, pytester: pytest.Pytester) -> None:
    file = pytester.makepyprojecttoml("[tool.gaudi_validate\nmodel = \n")
    # pytest reads the file first and says the same in its words.
    assert usage_error() == f"{file}: Expected ']' at the end of a table declaration (at line 1, column 21)"
    own = pytester.makeini("[pytest]")
    assert usage_error("-c", str(own)) == (
        f"not valid TOML: {file}; Expected ']' at the end of a table declaration (at line 1, column 21)"
    )


def test_pruning_on_a_partial_run(
    usage_error: UsageError, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = "--prune-golden needs a full run and this one is partial: "
    end = "; run RUN_SLOW=1 pytest --prune-golden"
    assert usage_error("--prune-golden") == f"{start}slow tests are left out{end}"
    monkeypatch.setenv("RUN_SLOW", "1")
    assert usage_error("--prune-golden", "-k", "it", "--deselect", "a") == f"{start}-k 'it', --deselect 'a'{end}"
    assert usage_error("--prune-golden", "-m", "slow", "--lf") == f"{start}-m 'slow', --last-failed{end}"
    assert usage_error("--prune-golden", str(pytester.path)) == f"{start}paths are given{end}"


def test_more_workers_than_cards(usage_error: UsageError, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine is one with two Gaudi2 cards, as far as sysfs and the installed packages say."""
    for index in range(2):
        device = tmp_path / f"accel{index}" / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text("0x1da3\n")
        (device / "device_type").write_text("GAUDI2\n")
    monkeypatch.setattr("gaudi_validate.hardware.detect.find", lambda: Found(hpu="gaudi2"))
    monkeypatch.setattr("gaudi_validate.hardware.detect.count_hpus", lambda: count_hpus(tmp_path))
    assert usage_error("-n", "3") == "3 or more pytest-xdist workers and 2 HPU devices; pass -n 2"


def test_a_corrupt_baseline_is_one_line_before_anything_runs(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("golden") / "baselines"
    folder.mkdir()
    (folder / "cpu.json").write_text('{"hardware": 7}', encoding="utf-8")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("--hardware=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines if line]
    where = pytester.path / "golden" / "baselines" / "cpu.json"
    assert line.startswith("ERROR: not a ")
    assert str(where) in line
