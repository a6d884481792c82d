"""The command that reproduces a verdict is one that a shell takes and pytest runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from gaudi_validate.core.settings import Settings
from gaudi_validate.options import reproduce_options

BASE = {
    "hardware": "cpu",
    "hardware_source": "found",
    "model": "smollm2-135m",
    "dtype": "bfloat16",
    "golden_dir": Path("golden"),
    "cache_dir": Path("cache"),
}


@pytest.mark.parametrize(
    ("changes", "slow", "expected"),
    [
        ({}, False, []),
        ({}, True, ["-m", "slow"]),
        ({"hardware_source": "--hardware"}, False, ["--hardware", "cpu"]),
        (
            {
                "attention": "hpu_sliced[q_block_size=8]",
                "port": "a:b",
                "model": "./my model",
                "dtype": "float16",
                "plant_fault": "A4",
                "strict_verdicts": True,
            },
            False,
            [
                "--attention",
                "hpu_sliced[q_block_size=8]",
                "--port",
                "a:b",
                "--model",
                "./my model",
                "--dtype",
                "float16",
                "--plant-fault",
                "A4",
                "--strict-verdicts",
            ],
        ),
    ],
)
def test_the_options_that_matter(changes: dict[str, object], slow: bool, expected: list[str]) -> None:
    settings = Settings(**{**BASE, **changes})  # type: ignore[arg-type]
    assert reproduce_options(settings, slow=slow) == expected


TESTS = """
import pytest
from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.verdicts import Status

@pytest.mark.slow
@pytest.mark.parametrize("case", ["it's [odd]", "b c"])
def test_port(judge, case):
    judge(Evidence(check="own", status=Status.FAIL, reason=case))
"""


def test_the_command_runs_the_one_test_again(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makeini("[pytest]")
    folder = pytester.mkdir("sub folder")
    (folder / "test_port.py").write_text(TESTS)
    monkeypatch.chdir(folder)
    first = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-m", "slow", "--model", "tiny-llama")
    first.assert_outcomes(failed=2)
    command = next(line for line in first.stdout.lines if "reproduce:" in line and "odd" in line).partition(": ")[2]
    assert command == """pytest 'test_port.py::test_port[it'"'"'s [odd]]' -m slow --model tiny-llama"""
    again = pytester.runpytest_inprocess("-p", "no:cacheprovider", *shlex.split(command)[1:])
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["  it's [[]odd]"])


def test_a_skip_for_other_hardware_is_at_run_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

@pytest.mark.hardware("gaudi2", "gaudi3")
@pytest.mark.parametrize("case", [1, 2])
def test_card(case): raise AssertionError

@pytest.mark.hardware("cpu")
def test_here(): pass
"""
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rs", "--hardware", "cpu")
    result.assert_outcomes(skipped=2, passed=1)
    result.stdout.fnmatch_lines(["SKIPPED * needs hardware gaudi2 or gaudi3; this run is for cpu"])
    collected = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--collect-only", "-q")
    assert [line for line in collected.stdout.lines if "::" in line] == [
        "test_a_skip_for_other_hardware_is_at_run_time.py::test_card[1]",
        "test_a_skip_for_other_hardware_is_at_run_time.py::test_card[2]",
        "test_a_skip_for_other_hardware_is_at_run_time.py::test_here",
    ]


def test_a_marker_for_hardware_that_does_not_exist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.hardware('gaudi9')\ndef test_card(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["unknown hardware: 'gaudi9'; use one of cpu, cuda, gaudi, gaudi2, gaudi3"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "a worker"])
def test_the_shipped_suite_runs_where_no_path_is_given(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    """The suite is stood in for, in this process and in workers, so that what runs takes no time."""
    shipped = pytester.mkdir("site") / "shipped"
    shipped.mkdir()
    (shipped / "test_shipped.py").write_text("def test_shipped(): pass")
    monkeypatch.setattr("gaudi_validate.options.SUITE", shipped)
    pytester.makepyfile(in_house="def load(checkpoint, *, dtype, device): raise AssertionError")
    pytester.syspathinsert()
    foreign = pytester.mkdir("foreign")
    (foreign / "conftest.py").write_text(
        f"from pathlib import Path\nfrom gaudi_validate import options\noptions.SUITE = Path({str(shipped)!r})"
    )
    monkeypatch.chdir(foreign)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-v", "--port", "in_house:load", *workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "suite: --port without a path runs the checks shipped in gaudi_validate.suite",
            "*test_shipped.py::test_shipped*",
        ]
    )
    (foreign / "test_own.py").write_text("def test_own(): pass")
    own = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-v", "--port", "in_house:load", "test_own.py")
    own.assert_outcomes(passed=1)
    own.stdout.no_fnmatch_line("suite: *")


def test_two_files_below_another_root_are_told_apart(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = pytester.mkdir("elsewhere")
    for name in ("test_a", "test_b"):
        (elsewhere / f"{name}.py").write_text(TESTS.replace("@pytest.mark.slow\n", ""))
    root = pytester.mkdir("root")
    monkeypatch.chdir(root)
    files = [str(elsewhere / f"{name}.py") for name in ("test_a", "test_b")]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--rootdir={root}", *files)
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["4 FAIL, *"])
