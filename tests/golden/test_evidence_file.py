"""The evidence file comes back as it was written, in a stable order, and refuses what it is not; accept applies it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gaudi_validate.core.evidence import Evidence, Location, Measurement
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.settings import Settings
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.accept import accept
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.report import evidence_file
from gaudi_validate.report.evidence_file import EvidenceFile, decode, encode, settings_that_matter

from .builders import golden, metric_proposal, provenance, text_proposal
from .test_golden_records import mutate

if TYPE_CHECKING:
    from pathlib import Path

DO = "give the file that --evidence wrote"


def record(number: float | None = 1.0, **changes: Any) -> Evidence:
    fields: dict[str, Any] = {
        "check": "logic parity",
        "status": Status.PASS,
        "reason": "as it should be",
        "model": "m",
        "port": "p",
        "measurements": (
            Measurement(name="worst", value=number, unit="sd", limit=1e-9),
            Measurement(name="graphs", value=3, unit="graphs", better="higher"),
        ),
        "location": Location(layer=2, key_start=0, key_end=4),
        "details": ("one", "two"),
        "duration_s": 0.25,
    }
    return Evidence(**{**fields, **changes})


def content(**changes: Any) -> EvidenceFile:
    fields: dict[str, Any] = {
        "provenance": provenance(),
        "settings": {"hardware": "cpu", "ci": True, "port": None},
        "evidence": (record(),),
        "proposals": (text_proposal(), metric_proposal(3)),
    }
    return EvidenceFile(**{**fields, **changes})


def refusal(data: bytes) -> str:
    with pytest.raises(UserError) as caught:
        decode(data, "run.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(path: str, value: Any) -> bytes:
    """Return the file with the value at ``path`` ("evidence.0.status") replaced or added."""
    raw = json.loads(encode(content()))
    at, *steps = raw, *path.split(".")
    for step in steps[:-1]:
        at = at[int(step) if step.isdigit() else step]
    at[steps[-1]] = value
    return json.dumps(raw).encode()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    evidence_file.write(tmp_path / "run.json", content())
    back = evidence_file.read(tmp_path / "run.json")
    assert back == replace(content(), proposals=back.proposals)
    assert sorted(one["kind"] for one in back.proposals) == ["baseline", "text"]
    assert isinstance(back.evidence[0].measurements[1].value, int)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, 0, 1e-300])
def test_numbers_that_json_lacks_come_back(value: float | None) -> None:
    back = decode(encode(content(evidence=(record(value),))), "").evidence[0].measurements[0].value
    assert repr(back) == repr(value)


def test_the_order_of_arrival_and_the_time_taken_do_not_matter() -> None:
    evidence = [record(float(number), scenario=f"s{number % 3}") for number in range(8)]
    proposals = [text_proposal(case=f"c{number}") for number in range(5)]
    expected = [one.scenario for one in decode(encode(content(evidence=tuple(evidence))), "").evidence]
    for seed in range(3):
        random.Random(seed).shuffle(evidence)
        random.Random(seed).shuffle(proposals)
        timed = tuple(replace(one, duration_s=seed + index / 10) for index, one in enumerate(evidence))
        back = decode(encode(content(evidence=timed, proposals=tuple(proposals))), "")
        assert [one.scenario for one in back.evidence] == expected
        assert [one["case"] for one in back.proposals] == ["c0", "c1", "c2", "c3", "c4"]


def test_only_settings_that_decide_what_is_measured_are_kept(tmp_path: Path) -> None:
    settings = Settings(
        hardware="cpu", hardware_source="found", model="m", dtype="bfloat16", golden_dir=tmp_path, cache_dir=tmp_path
    )
    assert settings_that_matter(settings) == {
        "hardware": "cpu",
        "hardware_source": "found",
        "model": "m",
        "dtype": "bfloat16",
        "port": None,
        "attention": None,
        "strict_verdicts": False,
        "run_slow": False,
        "plant_fault": None,
        "ci": False,
    }


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "Input data was truncated"),
        (b"<html>", "JSON is malformed: invalid character (byte 0)"),
        (encode(content())[:200], "Input data was truncated"),
        (b"[]", "schema_version must be 1"),
        (b'{"schema_version": true}', "Expected int, got bool at $.schema_version"),
        (b"{}", "schema_version must be 1"),
        (changed("evidence.0.status", "GOOD"), "Invalid enum value 'GOOD' at $.evidence[0].status"),
        (changed("evidence.0.reason", None), "Expected str, got null at $.evidence[0].reason"),
        (changed("evidence.0.measurements.0.value", "x"), None),
        (changed("evidence.0.location.heads", 1), "unknown field $.evidence[0].location.heads"),
        (changed("evidence.0.surprise", 1), "unknown field $.evidence[0].surprise"),
        (changed("provenance.author", "x"), "unknown field $.provenance.author"),
        (changed("surprise", 1), "unknown field $.surprise"),
        (changed("proposals", {}), "Expected array, got object at $.proposals"),
        (b"[" * 100_000, None),
    ],
)
def test_a_wrong_file_is_one_line(data: bytes, detail: str | None) -> None:
    text = refusal(data)
    if detail is None:
        assert text.startswith("not an evidence file (")
        assert text.endswith(f"): run.json; {DO}")
    else:
        assert text == f"not an evidence file ({detail}): run.json; {DO}"


def test_a_newer_file_says_to_upgrade() -> None:
    assert refusal(changed("schema_version", 2)) == (
        "written by a newer gaudi-validate (schema_version 2, this one reads 1): run.json; upgrade gaudi-validate"
    )


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        evidence_file.read(tmp_path / "run.json")
    assert str(caught.value) == f"cannot read (No such file or directory): {tmp_path / 'run.json'}; {DO}"


def test_300_mutated_files_are_read_or_refused_in_one_line() -> None:
    chance, data, messages = random.Random(3), encode(content()), list[str]()
    for _ in range(300):
        try:
            decode(mutate(data, chance), "run.json")
        except UserError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert not any("\n" in text for text in messages)


# accept: what CI measured, recorded elsewhere by the same rules.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "golden"


def taken(tmp_path: Path, folder: Path, reason: str | None = None, **changes: Any) -> list[str]:
    evidence_file.write(tmp_path / "run.json", content(**changes))
    return [str(one) for one in accept(tmp_path / "run.json", folder, reason=reason)]


def test_accept_records_with_the_provenance_of_the_run_that_measured(tmp_path: Path, folder: Path) -> None:
    there = provenance(hardware="gaudi2", driver="1.21", commit="c1")
    proposals = (text_proposal(hardware="gaudi2"), metric_proposal(3, hardware="gaudi2"))
    said = taken(tmp_path, folder, provenance=there, proposals=proposals)
    assert said == ["created text/gaudi2/m/c", "created baselines/gaudi2: graphs"]
    store = GoldenStore(folder)
    made = store.text("gaudi2", "m", "c")
    assert made is not None
    assert (made.hardware, made.provenance[0].driver, made.provenance[0].commit) == ("gaudi2", "1.21", "c1")
    assert store.hardware_keys() == ["gaudi2"]


def test_accept_twice_changes_nothing(tmp_path: Path, folder: Path) -> None:
    taken(tmp_path, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*.json")}
    assert taken(tmp_path, folder, reason="why") == ["unchanged text/cpu/m/c", "unchanged baselines/cpu: graphs"]
    assert {path: path.read_bytes() for path in folder.rglob("*.json")} == before


def test_accept_holds_to_the_run_s_own_rules(tmp_path: Path, folder: Path) -> None:
    store = GoldenStore(folder)
    store.write_text("cpu", "m", "c", golden(5))
    proposals = (text_proposal(),)
    assert taken(tmp_path, folder, proposals=proposals) == [
        "refused text/cpu/m/c: the golden changes; say why with --golden-reason"
    ]
    assert taken(tmp_path, folder, reason="why", proposals=proposals, evidence=()) == [
        "refused text/cpu/m/c: no logic parity of port p on m passed in this run; run it together with the update"
    ]
    failed = (record(), record(check="probe-causal", status=Status.FAIL))
    assert taken(tmp_path, folder, reason="why", proposals=proposals, evidence=failed) == [
        "refused text/cpu/m/c: probe-causal of port p on m is FAIL: as it should be"
    ]
    assert taken(tmp_path, folder, reason="why", proposals=(text_proposal(hardware="gaudi2"),)) == [
        "refused text/gaudi2/m/c: measured on gaudi2, this run is for cpu"
    ]
    assert store.text("cpu", "m", "c") == golden(5)
    assert taken(tmp_path, folder, reason="why", proposals=proposals) == ["updated text/cpu/m/c"]


def test_accept_of_a_file_without_proposals_is_one_line(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        taken(tmp_path, folder, proposals=())
    assert str(caught.value) == (
        f"no goldens or baselines in the evidence file: {tmp_path / 'run.json'}; "
        "run the tests that use golden, memory_gate or perf_gate with --evidence"
    )


def test_accept_of_a_malformed_proposal_writes_nothing(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        taken(tmp_path, folder, proposals=(text_proposal(), {"kind": "text", "case": "c"}))
    assert str(caught.value) == (
        "not a golden proposal (Object missing required field `hardware`): c; record it with this version"
    )
    assert not folder.exists()


def test_accept_never_writes_outside_the_golden_folder(tmp_path: Path, folder: Path) -> None:
    names = ("../../evil", "/tmp/evil", "..", "a/../../evil")
    proposals = tuple(text_proposal(case=name) for name in names)
    said = taken(tmp_path, folder, proposals=proposals)
    assert len(said) == len(names)
    assert all(one.startswith("refused ") and "case cannot be a file name" in one for one in said)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["run.json"]
