"""Every update rule, with the violation that it stops."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import gaudi_validate
from gaudi_validate.core.golden_rules import LOGIC, Decision, Outcome, is_gate, why_not_full
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.messages import decisions_summary
from gaudi_validate.golden.proposals import parse
from gaudi_validate.golden.records import provenance_record
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import Run, apply

from .builders import evidence, golden, metric_proposal, provenance, run, stamp, text_proposal

NO_LOGIC = "no logic parity of port p on m passed in this run; run it together with the update"


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return GoldenStore(tmp_path / "golden")


def only(decisions: list[Decision]) -> tuple[str, str, str]:
    assert len(decisions) == 1
    return decisions[0].outcome.value, decisions[0].target, decisions[0].reason


def update(store: GoldenStore, *proposals: dict[str, Any], by: Run | None = None, **options: Any) -> list[Decision]:
    return apply(proposals, by or run(), store, **{"not_full": "part", **options})


def recorded(store: GoldenStore, version: int = 0) -> None:
    """Put a golden text of ``version`` there."""
    store.write_text("cpu", "m", "c", golden(version))


def test_a_missing_golden_is_created_with_its_provenance(store: GoldenStore) -> None:
    assert only(update(store, text_proposal())) == ("created", "text/cpu/m/c", "")
    made = store.text("cpu", "m", "c")
    assert made == golden(provenance=(provenance_record(provenance(), reason=None),))
    assert made is not None
    assert made.provenance[0].reason == "create"


def test_proposals_travel_as_json_primitives(store: GoldenStore) -> None:
    proposals = [text_proposal(), metric_proposal(3)]
    assert json.loads(json.dumps(proposals)) == proposals
    decisions = update(store, *json.loads(json.dumps(proposals)))
    assert [str(one) for one in decisions] == ["created text/cpu/m/c", "created baselines/cpu: graphs"]


def test_a_golden_that_matches_is_not_touched(store: GoldenStore) -> None:
    recorded(store)
    path = store.text_path("cpu", "m", "c")
    before = path.stat()
    proposal = text_proposal(against=golden(), status=Status.PASS)
    assert only(update(store, proposal, by=run(reason="why"))) == ("unchanged", "text/cpu/m/c", "")
    assert path.stat() == before


def test_a_tie_keeps_the_golden_s_text(store: GoldenStore) -> None:
    recorded(store)
    proposal = text_proposal(5, against=golden(), status=Status.PASS)
    assert only(update(store, proposal, by=run(reason="why"))) == ("unchanged", "text/cpu/m/c", "")
    assert store.text("cpu", "m", "c") == golden()


def test_a_tie_with_another_golden_is_none_with_this_one(store: GoldenStore) -> None:
    recorded(store)
    proposal = text_proposal(5, against=golden(4), status=Status.PASS)
    assert only(update(store, proposal)) == (
        "refused",
        "text/cpu/m/c",
        "the golden changes; say why with --golden-reason",
    )


def test_a_changed_golden_needs_a_reason_and_keeps_its_history(store: GoldenStore) -> None:
    recorded(store)
    proposal = text_proposal(1, against=golden(), status=Status.FAIL)
    for blank in (None, "", "  "):
        assert only(update(store, proposal, by=run(reason=blank))) == (
            "refused",
            "text/cpu/m/c",
            "the golden changes; say why with --golden-reason",
        )
    assert store.text("cpu", "m", "c") == golden()
    assert only(update(store, proposal, by=run(reason=" new tokenizer "))) == ("updated", "text/cpu/m/c", "")
    changed = store.text("cpu", "m", "c")
    assert changed == golden(1, provenance=(stamp(), provenance_record(provenance(), reason="new tokenizer")))


@pytest.mark.parametrize(
    ("records", "refusal"),
    [
        ([], NO_LOGIC),
        ([evidence("precision parity")], NO_LOGIC),
        ([evidence(port="other")], NO_LOGIC),
        ([evidence(model="other")], NO_LOGIC),
        ([evidence(status=Status.INCONCLUSIVE)], NO_LOGIC),
        (
            [evidence(), evidence(status=Status.FAIL, scenario="decode", reason="3 sd off")],
            "logic parity of port p on m is FAIL on scenario decode: 3 sd off",
        ),
        (
            [evidence(), evidence("probe-causal", Status.FAIL, reason="token 3 sees 4")],
            "probe-causal of port p on m is FAIL: token 3 sees 4",
        ),
        (
            [evidence(), evidence("probe", Status.NOT_MEASURED, reason="no kernel call")],
            "probe of port p on m is NOT_MEASURED: no kernel call",
        ),
    ],
)
def test_nothing_is_recorded_without_logic_parity_and_probes(
    store: GoldenStore, records: list[dict[str, Any]], refusal: str
) -> None:
    by = Run(evidence=records, provenance=provenance(), reason="why")
    decisions = update(store, text_proposal(), metric_proposal(3), by=by)
    assert [(one.outcome, one.reason) for one in decisions] == [(Outcome.REFUSED, refusal)] * 2
    assert store.hardware_keys() == []


@pytest.mark.parametrize(
    "record",
    [
        evidence("probe-causal", Status.FAIL, port="other"),
        evidence("text", Status.FAIL),
        evidence("precision parity", Status.FAIL),
        evidence("speed", Status.NOT_MEASURED),
    ],
)
def test_what_says_nothing_of_the_text_s_logic_does_not_stop_it(store: GoldenStore, record: dict[str, Any]) -> None:
    assert only(update(store, text_proposal(), by=run(evidence(), record)))[0] == "created"


def test_only_this_run_s_hardware_is_written(store: GoldenStore) -> None:
    proposals = [text_proposal(hardware="gaudi2"), metric_proposal(3, hardware="gaudi2")]
    decisions = update(store, *proposals)
    assert [str(one) for one in decisions] == [
        "refused text/gaudi2/m/c: measured on gaudi2, this run is for cpu",
        "refused baselines/gaudi2: graphs: measured on gaudi2, this run is for cpu",
    ]
    assert store.hardware_keys() == []


def test_the_gate_knows_the_checks_by_the_names_they_give_themselves() -> None:
    # From the source: to import the check is to import torch.
    source = Path(gaudi_validate.__file__).with_name("checks") / "logic.py"
    assert f'CHECK = "{LOGIC}"' in source.read_text(encoding="utf-8").splitlines()
    assert [is_gate(name) for name in (LOGIC, "logic-parity", "probe: causal", "precision parity", "text")] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_a_partial_run_deletes_nothing(store: GoldenStore) -> None:
    for case in ("a", "b", "c"):
        store.write_text("cpu", "m", case, golden())
    update(store, text_proposal(case="d"))
    assert store.texts("cpu") == [("m", "a"), ("m", "b"), ("m", "c"), ("m", "d")]
    decisions = update(store, text_proposal(case="d"), prune=True, not_full="narrowed by -k")
    assert str(decisions[-1]) == "refused text/cpu: --prune-golden needs a full run: narrowed by -k"
    assert len(store.texts("cpu")) == 4


def test_a_full_run_prunes_what_it_did_not_use_of_its_models_and_hardware_only(store: GoldenStore) -> None:
    for hardware, model, case in (("cpu", "m", "c"), ("cpu", "m", "old"), ("cpu", "n", "c"), ("gaudi2", "m", "old")):
        store.write_text(hardware, model, case, golden(provenance=(stamp(hardware=hardware),)))
    decisions = update(store, text_proposal(against=golden(), status=Status.PASS), prune=True, not_full=None)
    assert [str(one) for one in decisions] == ["unchanged text/cpu/m/c", "pruned text/cpu/m/old: unused"]
    assert store.texts("cpu") == [("m", "c"), ("n", "c")]
    assert store.texts("gaudi2") == [("m", "old")]


def test_a_full_run_without_the_flag_prunes_nothing(store: GoldenStore) -> None:
    recorded(store)
    update(store, text_proposal(case="d"), not_full=None)
    assert store.texts("cpu") == [("m", "c"), ("m", "d")]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"narrowed_by": ["-k", "tests/x.py"]}, "narrowed by -k tests/x.py"),
        ({"deselected": 1}, "1 test deselected"),
        ({"not_run": 2, "failed": 1}, "2 tests skipped or lost, 1 test failed"),
    ],
)
def test_what_makes_a_run_not_a_full_one(facts: dict[str, Any], reason: str | None) -> None:
    assert why_not_full(**facts) == reason


def both(**changes: Any) -> Run:
    return run(evidence(port="p"), evidence(port="q"), evidence(port="naive"), **changes)


def test_ports_that_differ_on_a_missing_golden_are_refused(store: GoldenStore) -> None:
    decisions = update(store, text_proposal(1, port="q"), text_proposal(0, port="p"), by=both())
    assert only(decisions) == (
        "refused",
        "text/cpu/m/c",
        "ports p, q differ in this run; run one of them alone (--attention, --port)",
    )


def test_the_trusted_path_s_text_becomes_the_golden(store: GoldenStore) -> None:
    decisions = update(store, text_proposal(1, port="p"), text_proposal(0, port="naive"), by=both())
    assert only(decisions) == ("created", "text/cpu/m/c", "naive's text; p wrote other text, the next run judges it")
    made = store.text("cpu", "m", "c")
    assert made is not None
    assert made.ids == golden(0).ids


def test_a_golden_that_one_port_still_writes_is_not_changed_for_another(store: GoldenStore) -> None:
    recorded(store)
    proposals = [
        text_proposal(0, port="naive", against=golden(), status=Status.PASS),
        text_proposal(1, port="p", against=golden(), status=Status.FAIL),
    ]
    assert only(update(store, *proposals, by=both(reason="why"))) == (
        "refused",
        "text/cpu/m/c",
        "naive still writes the golden's text and p does not",
    )
    assert store.text("cpu", "m", "c") == golden()


def test_a_port_whose_logic_fails_does_not_stop_one_whose_logic_passes(store: GoldenStore) -> None:
    by = run(evidence(port="naive"), evidence(port="p", status=Status.FAIL))
    decisions = update(store, text_proposal(1, port="p"), text_proposal(0, port="naive"), by=by)
    assert only(decisions)[0] == "created"
    made = store.text("cpu", "m", "c")
    assert made is not None
    assert made.ids == golden(0).ids


def test_a_corrupt_golden_is_refused_and_left_as_it_is(store: GoldenStore) -> None:
    recorded(store)
    path = store.text_path("cpu", "m", "c")
    path.write_text('{"text": "ha')
    assert only(update(store, text_proposal(1), by=run(reason="why"))) == (
        "refused",
        "text/cpu/m/c",
        f"not a golden (Input data was truncated): {path}; "
        f"restore it with git checkout -- {path}, or delete it and record it again with --update-golden",
    )
    assert path.read_text() == '{"text": "ha'


def test_a_corrupt_baseline_file_is_refused_and_left_as_it_is(store: GoldenStore) -> None:
    path = store.baseline_path("cpu")
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    decisions = update(store, metric_proposal(1), metric_proposal(2, metric="other"), by=run(reason="why"))
    assert [one.outcome for one in decisions] == [Outcome.REFUSED, Outcome.REFUSED]
    assert path.read_text() == "[]"


@pytest.mark.parametrize("where", [{"case": "../../x"}, {"model": "../x"}, {"model": "/tmp/x"}])
def test_names_that_lead_elsewhere_are_refused(store: GoldenStore, where: dict[str, Any]) -> None:
    decisions = update(store, text_proposal(**where), by=run(evidence(model=where.get("model", "m"))))
    assert decisions[0].outcome is Outcome.REFUSED
    assert "cannot be a file name" in decisions[0].reason
    assert [path.name for path in store.root.parent.rglob("*")] == ["golden"]


def test_control_characters_of_a_file_do_not_reach_the_terminal(store: GoldenStore) -> None:
    decisions = update(store, text_proposal(case="a\x1b[2Jb"))
    assert "\x1b" not in str(decisions[0])
    assert str(decisions[0]).startswith("refused text/cpu/m/a\N{REPLACEMENT CHARACTER}[2Jb: case cannot be a file name")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ids": [1, "2"]},
            "not a golden proposal (Expected `int`, got `str` - at `$.ids[1]`): t; record it with this version",
        ),
        ({"extra": 1}, "not a golden proposal (Object contains unknown field `extra`): t; record it with this version"),
        (
            {"kind": "other"},
            "not a golden proposal (Invalid value 'other' - at `$.kind`): t; record it with this version",
        ),
    ],
)
def test_a_malformed_proposal_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text_proposal(test="t") | changes)
    assert str(caught.value) == message


def test_margins_that_do_not_fit_are_refused(store: GoldenStore) -> None:
    proposal = text_proposal() | {"margins": [1.0]}
    assert only(update(store, proposal)) == (
        "refused",
        "text/cpu/m/c",
        "p proposed what no golden can hold: 1 margins for 4 ids",
    )


def test_the_order_of_arrival_does_not_matter(tmp_path: Path) -> None:
    proposals = [text_proposal(case=case, port=port) for case in "abc" for port in ("p", "q")]
    proposals += [metric_proposal(value, metric=f"m{value}") for value in range(5)]
    results = []
    for seed in range(4):
        random.Random(seed).shuffle(proposals)
        store = GoldenStore(tmp_path / str(seed) / "golden")
        decisions = [str(one) for one in update(store, *proposals, by=both())]
        results.append((decisions, [path.read_bytes() for path in sorted(store.root.rglob("*.json"))]))
    assert results == results[:1] * 4


def test_the_summary_names_all_but_what_is_unchanged() -> None:
    decisions = [
        Decision(outcome=Outcome.CREATED, target="text/cpu/m/a"),
        Decision(outcome=Outcome.UNCHANGED, target="text/cpu/m/b"),
        Decision(outcome=Outcome.REFUSED, target="text/cpu/m/c", reason="why"),
    ]
    assert decisions_summary(decisions) == [
        "goldens: 1 created, 0 updated, 1 unchanged, 0 pruned, 1 refused",
        "created text/cpu/m/a",
        "refused text/cpu/m/c: why",
    ]
    assert decisions_summary([]) == []
