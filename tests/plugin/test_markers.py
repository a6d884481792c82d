from __future__ import annotations

import pytest

SLOW = """
import pytest

def test_fast(): pass

@pytest.mark.slow
def test_slow(): pass
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "passed", "deselected"),
    [
        ((), {}, 1, 1),
        (("-m", "slow"), {}, 1, 1),
        ((), {"RUN_SLOW": "1"}, 2, 0),
        ((), {"RUN_SLOW": "0"}, 1, 1),
        (("-m", "not slow"), {"RUN_SLOW": "1"}, 1, 1),
    ],
)
def test_slow_tests_run_when_asked_for(
    *,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    passed: int,
    deselected: int,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(SLOW)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    result.assert_outcomes(passed=passed, deselected=deselected)
