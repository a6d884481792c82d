from __future__ import annotations

import os

import pytest

from gaudi_validate.core.hardware_table import TABLE
from gaudi_validate.core.settings import FIELDS


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take out what the outer run was told, so that the inner ones say the same under RUN_SLOW=1 and in CI."""
    named = [field.environment for field in FIELDS] + [entry.environment for entry in TABLE.values()]
    for name in ("CI", *filter(None, named), *(name for name in os.environ if name.startswith("PYTEST_XDIST_"))):
        monkeypatch.delenv(name, raising=False)
