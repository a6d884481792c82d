from __future__ import annotations

from pathlib import Path

import pytest

from gaudi_validate.core.paths import cache_dir


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/gaudi-validate"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/gaudi-validate"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/gaudi-validate"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "/h/.cache/gaudi-validate"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "GAUDI_VALIDATE_CACHE": "/own"}, "/own"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x", "GAUDI_VALIDATE_CACHE": ""}, "/x/gaudi-validate"),
    ],
)
def test_own_variable_beats_xdg_beats_home(environ: dict[str, str], expected: str) -> None:
    assert cache_dir(environ) == Path(expected)


def test_a_relative_own_variable_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cache_dir({"GAUDI_VALIDATE_CACHE": "here"}) == tmp_path / "here"
