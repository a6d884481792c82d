"""The golden fixture in real pytest runs: verdicts, whole messages, and what syrupy must leave alone."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gaudi_validate.golden.store import GoldenStore

from .builders import golden, stamp

CONFTEST = """
import json
from pathlib import Path
from typing import Any
import pytest
from gaudi_validate import options
from gaudi_validate.core import travel
from gaudi_validate.core.evidence import to_json
from gaudi_validate.golden.extension import GoldenContext, golden_assertion

@pytest.fixture
def golden(request):
    def put(key, value):
        request.node.user_properties.append((key, travel.primitives(value)))
    context = GoldenContext(
        settings=options.settings_of(request.config), model="tiny/llama", port="hpu_sliced",
        record=lambda evidence: put(travel.EVIDENCE_KEY, to_json(evidence)),
        propose=lambda proposal: put(travel.PROPOSAL_KEY, proposal),
        invocation="pytest test_text.py", test=request.node.nodeid,
    )
    return golden_assertion(request, context)

class Gather:
    def __init__(self, config):
        self.config, self.sent = config, {}
    def pytest_runtest_logreport(self, report):
        self.sent[report.nodeid] = report.user_properties
    def pytest_unconfigure(self, config):
        records = [pair for name in sorted(self.sent) for pair in self.sent[name]]
        Path("sent.json").write_text(json.dumps(records))

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Gather(config))
"""

TESTS = """
import sys
from builders import generated
VERSION, LENGTH = {version}, {length}
def test_text(golden):
    assert generated(VERSION, length=LENGTH) == golden(name="he-has-a")
"""

# hypothesis is imported anew, at 1.5 s, by each run that has its plugin.
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--hardware", "cpu", "-W", "error")
HERE = Path(__file__).parent


@pytest.fixture
def store(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> GoldenStore:
    for variable in (
        "CI",
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
        "RUN_SLOW",
        "GAUDI_CI",
        "GAUDI2_CI",
        "GAUDI3_CI",
        "GAUDI_VALIDATE_STRICT_VERDICTS",
    ):
        monkeypatch.delenv(variable, raising=False)
    # In the conftest, since xdist's workers do not take PYTHONPATH.
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(HERE)!r})\n{CONFTEST}")
    monkeypatch.syspath_prepend(str(HERE))  # puts sys.path back as it was
    pytester.makepyfile(test_text=TESTS.format(version=0, length=4))
    return GoldenStore(pytester.path / "golden")


def recorded(store: GoldenStore, case: str = "he-has-a", **changes: Any) -> Path:
    return store.write_text("cpu", "tiny/llama", case, golden(**changes))


def sent(pytester: pytest.Pytester, key: str) -> list[dict[str, object]]:
    records = json.loads((pytester.path / "sent.json").read_text())
    return [value for name, value in records if name == f"gaudi_validate.{key}"]


def verdicts(pytester: pytest.Pytester) -> list[tuple[object, object]]:
    return [(one["status"], one["reason"]) for one in sent(pytester, "evidence")]


def failure_of(result: pytest.RunResult) -> list[str]:
    """Return the lines of the failure that are the exception's."""
    return [line[8:] for line in result.stdout.lines if line.startswith("E       ")]


def snapshot_line(result: pytest.RunResult) -> str | None:
    """Return what syrupy's summary says."""
    lines = result.stdout.lines
    heads = [index for index, line in enumerate(lines) if "snapshot report summary" in line]
    return lines[heads[0] + 1] if heads else None


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_the_same_text_passes(pytester: pytest.Pytester, store: GoldenStore, workers: tuple[str, ...]) -> None:
    recorded(store)
    result = pytester.runpytest_inprocess(*OPTIONS, *workers)
    result.assert_outcomes(passed=1)
    assert verdicts(pytester) == [("PASS", "IDENTICAL: 4 of 4 tokens")]
    (evidence,) = sent(pytester, "evidence")
    named = {name: evidence[name] for name in ("check", "model", "port", "scenario", "hardware", "dtype")}
    assert named == {
        "check": "text",
        "model": "tiny/llama",
        "port": "hpu_sliced",
        "scenario": "he-has-a",
        "hardware": "cpu",
        "dtype": "bfloat16",
    }


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_missing_golden_has_no_baseline_and_is_proposed(
    pytester: pytest.Pytester, store: GoldenStore, workers: tuple[str, ...]
) -> None:
    result = pytester.runpytest_inprocess(*OPTIONS, *workers)
    result.assert_outcomes(passed=1)
    assert verdicts(pytester) == [
        (
            "NO_BASELINE",
            "no golden golden/text/cpu/tiny--llama/he-has-a.json; record it with: pytest test_text.py --update-golden",
        )
    ]
    (proposal,) = sent(pytester, "proposal")
    assert (proposal["kind"], proposal["case"], proposal["status"]) == ("text", "he-has-a", "NO_BASELINE")
    assert proposal["test"] == "test_text.py::test_text"
    assert not store.root.exists()
    assert snapshot_line(result) is None


def test_a_missing_golden_fails_with_strict_verdicts(pytester: pytest.Pytester, store: GoldenStore) -> None:
    result = pytester.runpytest_inprocess(*OPTIONS, "--strict-verdicts")
    result.assert_outcomes(failed=1)
    assert failure_of(result) == [
        "gaudi_validate.golden.extension.GoldenMismatch: "
        "NO_BASELINE text: hpu_sliced on tiny/llama, scenario he-has-a (cpu, bfloat16)",
        "no golden golden/text/cpu/tiny--llama/he-has-a.json; record it with: pytest test_text.py --update-golden",
        "next:",
        "  pytest test_text.py --update-golden",
    ]
    assert not store.root.exists()


MISMATCH = [
    "gaudi_validate.golden.extension.GoldenMismatch: "
    "FAIL text: hpu_sliced on tiny/llama, scenario he-has-a (cpu, bfloat16)",
    "DIVERGED at token 1 of 12: golden 1, this run 90",
    "golden recorded 2025-01-02T03:04:05Z on cpu at abc123: create",
    "--- golden/text/cpu/tiny--llama/he-has-a.json",
    "+++ this run",
    "@@ -1,3 +1,2 @@",
    " A first line that both have, and which is so long that it is wrapped before the diff is ",
    "-made.",
    "-the golden's own second line",
    "+made, with a bell \\x07 in it",
    "ids from 0: golden   0 1 2 3 4 5 6 ...",
    "ids from 0: this run 0 90",
    "next, if the new text is right:",
    "  pytest test_text.py --update-golden --golden-reason WHY",
]
LONG = "A first line that both have, and which is so long that it is wrapped before the diff is made"


def diverge(pytester: pytest.Pytester, store: GoldenStore) -> Path:
    path = recorded(store, length=12, text=f"{LONG}.\nthe golden's own second line")
    text = f"{LONG}, with a bell \x07 in it"
    pytester.makepyfile(
        test_text=f"""
from builders import generated
def test_text(golden):
    wrote = generated(ids=(0, 90), margins=(), text={text!r})
    assert wrote == golden(name="he-has-a")
"""
    )
    return path


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_another_text_fails_with_the_whole_message(
    pytester: pytest.Pytester, store: GoldenStore, workers: tuple[str, ...]
) -> None:
    path = diverge(pytester, store)
    before = path.read_bytes()
    result = pytester.runpytest_inprocess(*OPTIONS, *workers)
    result.assert_outcomes(failed=1)
    assert failure_of(result) == MISMATCH
    assert path.read_bytes() == before
    assert verdicts(pytester) == [("FAIL", "DIVERGED at token 1 of 12: golden 1, this run 90")]


def test_under_ci_the_message_names_accept(
    pytester: pytest.Pytester, store: GoldenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(pytester, store)
    monkeypatch.setenv("CI", "true")
    result = pytester.runpytest_inprocess(*OPTIONS, "--evidence", "run 1.json")
    assert failure_of(result)[-1] == "  gaudi-validate accept 'run 1.json' --golden-reason WHY"
    result = pytester.runpytest_inprocess(*OPTIONS)
    assert failure_of(result)[-1] == (
        "  pytest test_text.py --evidence evidence.json && gaudi-validate accept evidence.json --golden-reason WHY"
    )


def test_syrupy_s_update_writes_and_deletes_no_golden(pytester: pytest.Pytester, store: GoldenStore) -> None:
    path = diverge(pytester, store)
    unused = recorded(store, "unused")
    before = {one: one.read_bytes() for one in (path, unused)}
    result = pytester.runpytest_inprocess(*OPTIONS, "--snapshot-update")
    result.assert_outcomes(failed=1)
    assert failure_of(result)[-3:] == [
        "--snapshot-update does not write goldens; --update-golden does",
        "next, if the new text is right:",
        "  pytest test_text.py --update-golden --golden-reason WHY",
    ]
    assert {one: one.read_bytes() for one in (path, unused)} == before
    assert snapshot_line(result) == "1 snapshot failed."
    assert list(pytester.path.rglob("*.ambr")) == []


def test_syrupy_s_summary_counts_each_comparison_once_beside_its_own(
    pytester: pytest.Pytester, store: GoldenStore
) -> None:
    recorded(store)
    pytester.makepyfile(
        test_text="""
import pytest
from builders import generated
@pytest.mark.parametrize("number", [1, 2])
def test_text(golden, number):
    assert generated() == golden(name="he-has-a")
def test_missing(golden):
    assert generated() == golden(name="missing")
def test_snapshot(snapshot):
    assert 3 == snapshot
"""
    )
    result = pytester.runpytest_inprocess(*OPTIONS, "--snapshot-update")
    result.assert_outcomes(passed=4)
    assert snapshot_line(result) == "1 snapshot passed. 1 snapshot generated."
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=4)
    assert snapshot_line(result) == "2 snapshots passed."


def test_a_skipped_and_a_deselected_test_keep_their_goldens(pytester: pytest.Pytester, store: GoldenStore) -> None:
    paths = [recorded(store), recorded(store, "skipped"), recorded(store, "left-out")]
    pytester.makepyfile(
        test_text="""
import pytest
from builders import generated
def test_text(golden):
    assert generated() == golden(name="he-has-a")
@pytest.mark.skip
def test_skipped(golden):
    assert generated() == golden(name="skipped")
"""
    )
    pytester.runpytest_inprocess(*OPTIONS, "--snapshot-update").assert_outcomes(passed=1, skipped=1)
    assert all(path.exists() for path in paths)


@pytest.mark.skipif(int(version("syrupy").split(".")[0]) < 5, reason="syrupy 4 has no --snapshot-dirname")
def test_a_golden_folder_in_syrupy_s_is_refused(pytester: pytest.Pytester, store: GoldenStore) -> None:
    result = pytester.runpytest_inprocess(*OPTIONS, "--snapshot-dirname", "golden")
    assert (
        "--snapshot-dirname golden is a folder that holds goldens, and syrupy deletes what it does not know: "
        f"{store.root}; choose another --snapshot-dirname or --golden-dir"
    ) in "".join(result.outlines + result.errlines)
    assert result.ret != 0


def test_an_update_with_a_reason_goes_on_and_says_what_it_proposes(
    pytester: pytest.Pytester, store: GoldenStore
) -> None:
    diverge(pytester, store)
    result = pytester.runpytest_inprocess(*OPTIONS, "--update-golden", "--golden-reason", "new tokenizer")
    result.assert_outcomes(passed=1)
    assert verdicts(pytester) == [
        (
            "NO_BASELINE",
            "DIVERGED at token 1 of 12: golden 1, this run 90; --update-golden proposes the new "
            "golden/text/cpu/tiny--llama/he-has-a.json: new tokenizer",
        )
    ]
    assert sent(pytester, "proposal")[0]["status"] == "FAIL"
    assert snapshot_line(result) is None


def test_an_update_without_a_reason_fails_as_ever(pytester: pytest.Pytester, store: GoldenStore) -> None:
    diverge(pytester, store)
    result = pytester.runpytest_inprocess(*OPTIONS, "--update-golden")
    result.assert_outcomes(failed=1)
    assert failure_of(result)[-1] == "  pytest test_text.py --update-golden --golden-reason WHY"


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        (
            {"provenance": (stamp(hardware="gaudi2"),)},
            "ENV_MISMATCH",
            "the golden was recorded on gaudi2, this run is on cpu",
        ),
        ({"dtype": "float32"}, "ENV_MISMATCH", "the golden is of float32, this run is in bfloat16"),
        ({"prompt": "He is", "prompt_ids": (1,)}, "FAIL", "another prompt: golden 'He is', this run 'He has a'"),
        (
            {"prompt_ids": (7, 7, 8, 9)},
            "FAIL",
            "the prompt is the golden's, and its ids differ at 1: another tokenizer, or BOS twice",
        ),
    ],
)
def test_what_is_not_comparable_is_not_compared(
    pytester: pytest.Pytester, store: GoldenStore, changes: dict[str, Any], status: str, reason: str
) -> None:
    recorded(store, **changes)
    result = pytester.runpytest_inprocess(*OPTIONS)
    assert verdicts(pytester) == [(status, reason)]
    result.assert_outcomes(**{"failed" if status == "FAIL" else "passed": 1})


def test_a_corrupt_golden_is_one_line_and_not_measured(pytester: pytest.Pytester, store: GoldenStore) -> None:
    path = recorded(store)
    path.write_text("{")
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    line = (
        f"not a golden (Input data was truncated): {path}; "
        f"restore it with git checkout -- {path}, or delete it and record it again with --update-golden"
    )
    assert line in result.stdout.lines
    assert verdicts(pytester) == [("NOT_MEASURED", line)]


def test_names_models_ports_and_comparers_can_be_given_for_one_comparison(
    pytester: pytest.Pytester, store: GoldenStore
) -> None:
    store.write_text("cpu", "other", "a", golden())
    pytester.makepyfile(
        test_text="""
from builders import generated
from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.verdicts import Status
def tie(generated, golden):
    return Evidence(check="text", status=Status.PASS, reason=f"TIE: {golden.ids[0]} and {generated.ids[0]}")
def test_text(golden):
    assert generated(5) == golden(name="a", model="other", port="naive", compare=tie)
    assert golden == generated()
    assert generated() == golden
class TestClass:
    def test_text(self, golden):
        assert generated() == golden
"""
    )
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=2)
    named = [(one["model"], one["port"], one["case"], one["status"]) for one in sent(pytester, "proposal")]
    assert sorted(named) == [
        ("other", "naive", "a", "PASS"),
        ("tiny/llama", "hpu_sliced", "TestClass.test_text", "NO_BASELINE"),
        ("tiny/llama", "hpu_sliced", "test_text.1", "NO_BASELINE"),
        ("tiny/llama", "hpu_sliced", "test_text.2", "NO_BASELINE"),
    ]
    assert ("PASS", "TIE: 0 and 5") in verdicts(pytester)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "assert 'text' == golden",
            "a golden is compared with generated text, not with str; compare an object that has text, prompt, ids, "
            "prompt_ids, margins, dtype, such as gaudi_validate.golden.generated.Generated",
        ),
        ("assert generated() != golden", "a golden is compared with ==; write assert generated == golden"),
        ("golden(matcher=1)", "golden does not take matcher; it takes name, model, port and compare"),
        (
            "golden.use_extension(None)",
            "golden has its own extension; use syrupy's snapshot fixture for other snapshots",
        ),
        (
            "assert generated() == snapshot.use_extension(GoldenExtension)",
            "goldens are not snapshots; use the golden fixture instead of snapshot.use_extension",
        ),
        (
            "assert generated() == golden(name='../x')",
            "case cannot be a file name: '../x'; use up to 120 letters, digits and _.+=@-, first a letter or digit, "
            "last no dot",
        ),
    ],
)
def test_a_mistake_is_one_line(pytester: pytest.Pytester, store: GoldenStore, line: str, message: str) -> None:
    pytester.makepyfile(
        test_text=f"""
from builders import generated
from gaudi_validate.golden.extension import GoldenExtension
def test_text(golden, snapshot):
    {line}
"""
    )
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(failed=1)
    assert message in result.stdout.lines
    assert not store.root.exists()
