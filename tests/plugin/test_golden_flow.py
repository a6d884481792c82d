"""Goldens end to end: propose in tests, decide and write in the controller, accept from a CI run's evidence file."""

from __future__ import annotations

import json
import shlex

import pytest

from gaudi_validate import cli

IN_HOUSE = "def load(checkpoint, *, dtype, device): raise AssertionError('no model is needed')\n"
TESTS = """
import os
import pytest
from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.golden_rules import LOGIC
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.generated import Generated, exact

def test_logic(judge):
    judge(Evidence(check=LOGIC, status=Status.PASS, reason="r", model="tiny-llama", port="in_house:load"))

@pytest.mark.parametrize("case", ["one", "two"])
def test_text(golden, case):
    word = os.environ.get("WORD", "first")
    ids = tuple(ord(letter) for letter in word)
    text = Generated(text=word, prompt=case, ids=ids, prompt_ids=(1, 2), dtype="bfloat16")
    assert text == golden(name=case, compare=exact)
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyprojecttoml(
        """
        [tool.pytest.ini_options]
        testpaths = ["test_it.py"]
        pythonpath = ["."]

        [tool.gaudi_validate]
        port = "in_house:load"
        model = "tiny-llama"
        """
    )
    pytester.makepyfile(in_house=IN_HOUSE, test_it=TESTS)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


def texts(project: pytest.Pytester) -> dict[str, str]:
    files = (project.path / "golden" / "text" / "cpu" / "tiny-llama").glob("*.json")
    return {file.stem: json.loads(file.read_text())["text"] for file in files}


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_create_then_pass(project: pytest.Pytester, workers: tuple[str, ...]) -> None:
    first = run(project, *workers)
    first.assert_outcomes(passed=3)
    assert texts(project) == {}
    first.stdout.fnmatch_lines(
        [
            "next (record what has no golden or baseline yet):",
            f"  pytest -p no:cacheprovider {' '.join(workers)}{' ' if workers else ''}--update-golden",
        ]
    )

    created = run(project, *workers, "--update-golden")
    created.assert_outcomes(passed=3)
    assert created.ret == 0
    created.stdout.no_fnmatch_line("next *")
    created.stdout.fnmatch_lines(["goldens: 2 created, 0 updated, 0 unchanged, 0 pruned, 0 refused"])
    assert texts(project) == {"one": "first", "two": "first"}

    again = run(project, *workers)
    again.stdout.fnmatch_lines(["0 FAIL, 0 NOT_MEASURED, 0 ENV_MISMATCH, 0 NO_BASELINE, *, 3 PASS"])


def test_a_change_needs_its_reason(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    run(project, "--update-golden")
    monkeypatch.setenv("WORD", "second")
    failed = run(project)
    failed.assert_outcomes(passed=1, failed=2)

    refused = run(project, "--update-golden")
    assert refused.ret == pytest.ExitCode.TESTS_FAILED
    assert texts(project) == {"one": "first", "two": "first"}
    refused.stdout.fnmatch_lines(["goldens: 0 created, 0 updated, 0 unchanged, 0 pruned, 2 refused"])

    run(project, "--update-golden", "--golden-reason", "new weights").assert_outcomes(passed=3)
    assert texts(project) == {"one": "second", "two": "second"}


def test_a_refusal_fails_a_run_whose_tests_pass(project: pytest.Pytester) -> None:
    result = run(project, "--update-golden", "-k", "text")
    result.assert_outcomes(passed=2, deselected=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["goldens: 0 created, 0 updated, 0 unchanged, 0 pruned, 2 refused"])
    assert texts(project) == {}


def test_under_ci_an_artifact_is_left_and_accepted(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(project, "--update-golden", "--evidence", "evidence.json")
    assert result.ret == 0
    assert texts(project) == {}
    result.stdout.fnmatch_lines(["evidence: evidence.json", "under CI no golden is written; evidence.json carries *"])
    result.stdout.fnmatch_lines(["  gaudi-validate accept evidence.json"])
    capsys.readouterr()
    assert cli.main(["accept", "evidence.json"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "goldens: 2 created, 0 updated, 0 unchanged, 0 pruned, 0 refused"
    )
    assert texts(project) == {"one": "first", "two": "first"}


def test_under_ci_without_an_artifact_the_run_fails(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    assert run(project, "--update-golden").ret == pytest.ExitCode.TESTS_FAILED
    assert texts(project) == {}


def test_pruning_takes_what_a_full_run_did_not_use(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_SLOW", "1")
    run(project, "--update-golden")
    (project.path / "test_it.py").write_text(TESTS.replace('["one", "two"]', '["two"]'))
    kept = run(project)
    kept.assert_outcomes(passed=2)
    assert set(texts(project)) == {"one", "two"}
    pruned = run(project, "--prune-golden")
    pruned.stdout.fnmatch_lines(["pruned text/cpu/tiny-llama/one: unused"])
    assert pruned.ret == 0
    assert set(texts(project)) == {"two"}


def test_a_skip_stops_the_pruning(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_SLOW", "1")
    run(project, "--update-golden")
    skipping = TESTS.replace("def test_text(golden, case):", "def test_text(golden, case):\n    pytest.skip('today')")
    (project.path / "test_it.py").write_text(skipping)
    result = run(project, "--prune-golden")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*--prune-golden needs a full run: 2 tests skipped or lost"])
    assert set(texts(project)) == {"one", "two"}


def test_the_evidence_file_is_the_same_with_workers(project: pytest.Pytester) -> None:
    def verdicts(*arguments: str) -> list[tuple[str, str, str]]:
        run(project, "--evidence", "evidence.json", *arguments)
        content = json.loads((project.path / "evidence.json").read_text())
        return [(one["test"], one["check"], one["status"]) for one in content["evidence"]]

    alone = verdicts()
    assert len(alone) == 3
    assert verdicts("-n", "2") == alone


def test_a_fault_never_becomes_a_golden(project: pytest.Pytester) -> None:
    result = run(project, "--update-golden", "--plant-fault", "A1")
    assert [line for line in result.stderr.lines if line] == [
        "ERROR: --update-golden with --plant-fault would record the fault; leave one of them out"
    ]


def test_a_corrupt_golden_is_one_line(project: pytest.Pytester) -> None:
    run(project, "--update-golden")
    file = project.path / "golden" / "text" / "cpu" / "tiny-llama" / "one.json"
    file.write_text("{")
    result = run(project)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.no_fnmatch_line("*Traceback*")
    assert sum(str(file) in line or "text/cpu/tiny-llama/one.json" in line for line in result.stdout.lines) >= 1


def test_goldens_that_cannot_be_written_fail_the_run(project: pytest.Pytester) -> None:
    (project.path / "golden").write_text("a file where the folder should be")
    result = run(project, "--update-golden", "-k", "logic")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.no_fnmatch_line("*Traceback*")


def test_accept_says_what_is_wrong(project: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["accept", "nowhere.json"]) == 2
    captured = capsys.readouterr()
    assert captured.err == (
        "gaudi-validate: cannot read (No such file or directory): nowhere.json; give the file that --evidence wrote\n"
    )
    assert captured.out == ""
    assert shlex.split("gaudi-validate accept nowhere.json")[1:] == ["accept", "nowhere.json"]


def test_comparisons_without_a_name_are_cases_of_their_own(project: pytest.Pytester) -> None:
    twice = """
def test_twice(golden):
    for word in ("one", "two"):
        text = Generated(text=word, prompt="p", ids=(len(word), ord(word[0])), prompt_ids=(1,), dtype="bfloat16")
        assert text == golden(compare=exact)
"""
    project.makepyfile(test_it=TESTS + twice)
    run(project, "--update-golden").assert_outcomes(passed=4)
    assert sorted(texts(project).values()) == ["first", "first", "one", "two"]


def test_a_snapshot_folder_that_holds_goldens_is_refused(project: pytest.Pytester) -> None:
    result = project.runpytest("--snapshot-dirname=golden")
    result.stderr.fnmatch_lines(
        ["ERROR: --snapshot-dirname golden is a folder that holds goldens, and syrupy deletes*"]
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
