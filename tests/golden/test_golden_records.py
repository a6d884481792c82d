"""Golden files read strictly and look as a reviewer wants them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.records import BaselineFile, Metric, SessionRecord, TextGolden, decode, encode

from .builders import golden, stamp

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
{
  "text": "a dog\\nand a “cat”",
  "prompt": "He has",
  "ids": [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
    16, 17
  ],
  "prompt_ids": [
    5
  ],
  "margins": [],
  "dtype": "bfloat16",
  "provenance": [
    {"date": "2025-01-02T03:04:05Z", "hardware": "cpu", "reason": "create", "commit": "abc123", "driver": null, \
"device": null, "versions": {}, "samples": 1}
  ],
  "schema_version": 1
}
"""


def baselines(**changes: object) -> BaselineFile:
    fields: dict[str, object] = {
        "value": 32,
        "unit": "graphs",
        "kind": "count",
        "better": "lower",
        "tolerance": 0.0,
        "sessions": (SessionRecord(date="2025-01-02T03:04:05Z", value=32),),
        "provenance": (stamp(),),
    }
    return BaselineFile(hardware="cpu", metrics={"graphs": Metric(**{**fields, **changes})})  # type: ignore[arg-type]


def message(data: bytes, kind: type[TextGolden] | type[BaselineFile] = TextGolden) -> str:
    with pytest.raises(UserError) as caught:
        decode(data, kind, "golden/text/cpu/m/c.json")  # type: ignore[type-var]
    return str(caught.value)


def changed(**changes: object) -> bytes:
    fields = json.loads(encode(golden())) | changes
    return json.dumps({name: value for name, value in fields.items() if value != "absent"}).encode()


def test_a_golden_file_reads_text_first_and_ids_in_rows() -> None:
    record = golden(text="a dog\nand a “cat”", prompt="He has", ids=tuple(range(18)), prompt_ids=(5,), margins=())
    assert encode(record).decode() == FILE
    assert decode(FILE.encode(), TextGolden, "") == record


def test_one_id_more_changes_one_line() -> None:
    before = encode(golden(ids=tuple(range(100, 140)), margins=())).decode().splitlines()
    after = encode(golden(ids=(7, *range(101, 140)), margins=())).decode().splitlines()
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_baselines_are_sorted_by_name() -> None:
    metric = baselines().metrics["graphs"]
    unsorted = BaselineFile(hardware="cpu", metrics={"b": metric, "a": metric})
    assert list(json.loads(encode(unsorted))["metrics"]) == ["a", "b"]
    assert decode(encode(unsorted), BaselineFile, "") == unsorted


DO = "; restore it with git checkout -- golden/text/cpu/m/c.json, or delete it and record it again with --update-golden"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "Input data was truncated"),
        (b"not json", "JSON is malformed: invalid character (byte 4)"),
        (encode(golden())[:40], "Input data was truncated"),
        (b"\xff\xfe", "JSON is malformed: invalid character (byte 0)"),
        (b"[1]", "Expected object, got array"),
        (changed(ids=[1, 2, "3", 4]), "Expected int, got str at $.ids[2]"),
        (changed(ids=[1, 2, -3, 4]), "Expected int >= 0 at $.ids[2]"),
        (changed(margins=[1.0, 2.0]), "2 margins for 4 ids"),
        (changed(text="absent"), "Object missing required field text"),
        (changed(texts="x"), "Object contains unknown field texts"),
        (changed(provenance=[]), "Expected array of length >= 1 at $.provenance"),
        (changed(provenance=[{"date": "x", "hardware": "cpu", "reason": "y", "author": "z"}]), None),
        (changed(schema_version=0), "Invalid enum value 0 at $.schema_version"),
        (changed(schema_version="1"), "Expected int, got str at $.schema_version"),
        (b"[" * 100_000, None),
    ],
)
def test_a_wrong_file_is_one_line_with_file_path_and_remedy(data: bytes, detail: str | None) -> None:
    text = message(data)
    if detail is None:
        assert text.startswith("not a golden (")
        assert text.endswith(f"): golden/text/cpu/m/c.json{DO}")
    else:
        assert text == f"not a golden ({detail}): golden/text/cpu/m/c.json{DO}"


def test_who_measured_is_not_recorded() -> None:
    data = changed(provenance=[{"date": "x", "hardware": "cpu", "reason": "y", "author": "z"}])
    assert message(data) == (
        f"not a golden (Object contains unknown field author at $.provenance[0]): golden/text/cpu/m/c.json{DO}"
    )


def test_a_newer_schema_says_to_upgrade_before_it_complains_of_fields() -> None:
    assert message(changed(schema_version=2, logprobs=[])) == (
        "written by a newer gaudi-validate (schema_version 2, this one reads 1): golden/text/cpu/m/c.json; "
        "upgrade gaudi-validate"
    )


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"value": 1.5}, "a count is whole numbers, of which lower is better"),
        ({"better": "higher"}, "a count is whole numbers, of which lower is better"),
        ({"kind": "speed", "value": float("inf")}, "values must be finite"),
    ],
)
def test_a_metric_that_no_rule_can_read_is_not_made(changes: dict[str, object], detail: str) -> None:
    with pytest.raises(ValueError, match=detail):
        baselines(**changes)


def test_a_baseline_with_a_wrong_date_is_one_line() -> None:
    data = encode(baselines()).replace(
        b'"sessions": [\n        {"date": "2025-01-02T03:04:05Z"', b'"sessions": [{"date": "x"'
    )
    assert message(data, BaselineFile).startswith(
        "not a baseline file (Invalid isoformat string: 'x' at $.metrics[...]"
    )


def test_a_text_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        encode(golden(text="half a pair: \ud83d"))
    assert str(caught.value) == (
        "cannot be stored as JSON: 'utf-8' codec can't encode character '\\ud83d' in position 26: "
        "surrogates not allowed; keep it out of the goldens"
    )


def test_margins_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="margins must be finite"):
        golden(margins=(1.0, float("nan"), 1.0, 1.0))


def mutate(data: bytes, chance: random.Random) -> bytes:
    """One or more of: flip, drop, insert, truncate, duplicate, swap a token."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        how = chance.randrange(5)
        if how == 0 and at < len(out):
            out[at] = chance.randrange(256)
        elif how == 1:
            del out[at : at + chance.randint(1, 30)]
        elif how == 2:
            out[at:at] = chance.choice(
                [b"null", b"-1", b'"', b"[", b"}", b"1e999", b"NaN", b"\\ud800", b"9" * 400, b",", b"\x00"]
            )
        elif how == 3:
            out = out[:at]
        else:
            out[at:at] = out[max(0, at - 50) : at]
        out = out or bytearray(b" ")
    return bytes(out)


@pytest.mark.parametrize("kind", [TextGolden, BaselineFile])
def test_600_mutated_files_are_read_right_or_refused_in_one_line(
    kind: type[TextGolden] | type[BaselineFile], tmp_path: Path
) -> None:
    chance = random.Random(20250102)
    data = encode(golden(length=20)) if kind is TextGolden else encode(baselines())
    messages: list[str] = []
    for _ in range(600):
        try:
            record = decode(mutate(data, chance), kind, "file.json")  # type: ignore[type-var]
        except UserError as error:
            messages.append(str(error))
        else:
            assert decode(encode(record), kind, "") == record  # type: ignore[type-var]
    assert len(messages) > 400
    assert all("file.json" in text and "\n" not in text for text in messages)


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(),
    ids=st.lists(st.integers(0, 2**40), max_size=40),
    margin=st.floats(allow_nan=False, allow_infinity=False),
)
def test_every_text_comes_back_as_it_was(text: str, ids: list[int], margin: float) -> None:
    record = golden(text=text, ids=tuple(ids), margins=(margin,) * len(ids))
    assert decode(encode(record), TextGolden, "") == record
    assert encode(record).endswith(b"}\n")
    assert msgspec.json.decode(encode(record))["text"] == text
