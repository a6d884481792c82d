"""How golden files look: for a reviewer who reads the diff. Text first, numbers in rows, one line an occasion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Fixed counts, so that a number with one digit more does not move those after it to other lines.
PER_ROW = {"ids": 16, "prompt_ids": 16, "margins": 8}
_DEFAULT_PER_ROW = 16
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def render(record: Mapping[str, Any]) -> str:
    """Return ``record`` (JSON primitives) as JSON, its keys in their own order, with a newline at the end.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    return _members(record, 0) + "\n"


def _members(record: Mapping[str, Any], depth: int) -> str:
    inner, outer = "  " * (depth + 1), "  " * depth
    lines = [f"{inner}{_scalar(key)}: {_value(key, value, depth + 1)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + f"\n{outer}}}" if lines else "{}"


def _value(key: str, value: Any, depth: int) -> str:
    if isinstance(value, dict):
        return _members(value, depth)
    if isinstance(value, (list, tuple)) and value:
        inner, outer = "  " * (depth + 1), "  " * depth
        rows = [_scalar(one) for one in value] if _is_records(value) else _rows(value, PER_ROW.get(key))
        return "[\n" + ",\n".join(inner + row for row in rows) + f"\n{outer}]"
    return _scalar(value)


def _is_records(values: Sequence[Any]) -> bool:
    return isinstance(values[0], dict)


def _rows(values: Sequence[Any], per_row: int | None) -> list[str]:
    count = per_row or _DEFAULT_PER_ROW
    starts = range(0, len(values), count)
    return [", ".join(_scalar(one) for one in values[start : start + count]) for start in starts]


def _scalar(value: Any) -> str:
    return _ENCODER.encode(value)
