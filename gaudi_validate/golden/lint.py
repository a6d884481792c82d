"""A lint over golden files: numbers that stand identically under two hardware keys were copied, not measured."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gaudi_validate.golden.store import GoldenStore

Number = int | float


def copied_numbers(store: GoldenStore) -> list[str]:
    """Return one line for each number that two hardware keys share to the last digit, sorted.

    Only numbers with a fraction count: exact counts (graphs, bytes) rightly agree.
    """
    numbers = {key: dict(_numbers(store, key)) for key in store.hardware_keys()}
    lines = []
    for one, other in combinations(sorted(numbers), 2):
        for name in sorted(numbers[one].keys() & numbers[other].keys()):
            if _measured(numbers[one][name]) and numbers[one][name] == numbers[other][name]:
                lines.append(f"{name}: {one} and {other} hold identical numbers; record each on its own hardware")
    return lines


def misplaced(store: GoldenStore) -> list[str]:
    """Return one line for each golden whose newest provenance names another hardware than the folder it is in."""
    lines = []
    for key in store.hardware_keys():
        for path, hardware in _recorded(store, key):
            if hardware != key:
                lines.append(f"{path}: recorded on {hardware}, kept as {key}; record it on {key}")
    return lines


def _numbers(store: GoldenStore, key: str) -> Iterator[tuple[str, tuple[Number, ...]]]:
    baselines = store.baselines(key)
    for name, metric in (baselines.metrics if baselines else {}).items():
        yield f"baseline {name}", (metric.value,)
    for model, case in store.texts(key):
        golden = store.text(key, model, case)
        yield f"margins of {model}/{case}", golden.margins if golden else ()


def _recorded(store: GoldenStore, key: str) -> Iterator[tuple[str, str]]:
    for model, case in store.texts(key):
        golden = store.text(key, model, case)
        if golden is not None:
            yield f"text/{key}/{model}/{case}", golden.hardware
    baselines = store.baselines(key)
    for name, metric in (baselines.metrics if baselines else {}).items():
        yield f"baselines/{key}: {name}", metric.provenance[-1].hardware


def _measured(values: tuple[Number, ...]) -> bool:
    return any(value != int(value) for value in values)
