from __future__ import annotations

from dataclasses import replace

from gaudi_validate.core.evidence import Evidence, Location, Measurement
from gaudi_validate.core.explain import MAX_LINES, explain
from gaudi_validate.core.verdicts import Status

EVIDENCE = Evidence(
    check="logic parity",
    status=Status.FAIL,
    reason="worst |Δlogit| 2.9 sd, limit 1e-09 sd",
    model="tiny-llama",
    scenario="left-mixed",
    port="hpu_sliced",
    hardware="cpu",
    dtype="float64",
    measurements=(
        Measurement(name="worst |Δlogit|", value=2.875, unit="sd", limit=1e-9),
        Measurement(name="argmax flips", value=0.48, unit="share of rows"),
        Measurement(name="attention calls", value=3, unit="calls", limit=4, better="higher"),
        Measurement(name="within its limit, so left out", value=0, unit="logits", limit=0),
    ),
    location=Location(
        layer=1,
        module="model.layers.1.self_attn",
        phase="decode step 2",
        batch_row=0,
        head=3,
        query_row=14,
        key_start=5,
        key_end=9,
        note="the attention's inputs are equal: the fault lies in the attention function or its mask",
    ),
    details=("reference: transformers' eager attention in float64, exact mode, computed",),
    reproduce="pytest suite/test_logic.py -k left-mixed --attention hpu_sliced",
)

WHOLE = """\
FAIL logic parity: hpu_sliced on tiny-llama, scenario left-mixed (cpu, float64)
  worst |Δlogit| 2.9 sd, limit 1e-09 sd
  first departs from the reference: layer 1, model.layers.1.self_attn, decode step 2
  worst error there: batch row 0, head 3, query row 14, keys 5 to 8 (counted from 0, columns of the padded input)
  the attention's inputs are equal: the fault lies in the attention function or its mask
  measured: worst |Δlogit| 2.875 sd (allowed: at most 1e-09); argmax flips 0.48 share of rows; \
attention calls 3 calls (allowed: at least 4)
  reference: transformers' eager attention in float64, exact mode, computed
  reproduce: pytest suite/test_logic.py -k left-mixed --attention hpu_sliced"""


def test_whole_message() -> None:
    assert explain(EVIDENCE) == WHOLE


def test_bare_evidence_is_two_lines() -> None:
    bare = Evidence(check="memory", status=Status.NOT_MEASURED, reason="no device")
    assert explain(bare) == "NOT_MEASURED memory\n  no device"


def test_place_without_indices_or_module() -> None:
    only_note = replace(EVIDENCE, measurements=(), details=(), reproduce=None, location=Location(note="not located"))
    assert explain(only_note).splitlines()[1:] == ["  worst |Δlogit| 2.9 sd, limit 1e-09 sd", "  not located"]


def test_details_give_way_and_their_number_is_told() -> None:
    long = replace(EVIDENCE, details=tuple(f"frame {i}" for i in range(40)))
    lines = explain(long).splitlines()
    assert len(lines) == MAX_LINES
    assert lines[-3:] == ["  frame 6", "  ... 33 more lines in the evidence", f"  reproduce: {EVIDENCE.reproduce}"]


def test_value_that_is_missing_is_said() -> None:
    missing = replace(
        EVIDENCE, measurements=(Measurement(name="peak", value=None, unit="bytes", limit=5),), location=None, details=()
    )
    assert explain(missing).splitlines()[2] == "  measured: peak not measured (allowed: at most 5)"
