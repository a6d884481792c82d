from __future__ import annotations

import importlib
import os
import pkgutil

import pytest

import gaudi_validate
from gaudi_validate.core.hardware_table import TABLE
from gaudi_validate.core.settings import FIELDS


@pytest.fixture(autouse=True)
def _plain_environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take out what the outer run was told, so that the inner ones say the same under RUN_SLOW=1 and in CI."""
    named = [field.environment for field in FIELDS] + [entry.environment for entry in TABLE.values()]
    for name in ("CI", *filter(None, named), *(name for name in os.environ if name.startswith("PYTEST_XDIST_"))):
        monkeypatch.delenv(name, raising=False)
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # which takes PYTEST_ADDOPTS out
        # hypothesis takes 0.7 s to import, and each inner run would import it anew.
        monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest -p no:anyio")


@pytest.fixture(scope="session", autouse=True)
def _imported_once() -> None:
    """Import what most inner runs need: pytester forgets what was imported inside of one."""
    for name in (
        "rich.console",
        "rich.table",
        "msgspec",
        "gaudi_validate.golden.accept",
        "gaudi_validate.golden.extension",
    ):
        importlib.import_module(name)


@pytest.fixture(scope="session")
def _torch_is_here_to_stay() -> None:
    """Import what pytester would import anew in every inner run: torch cannot be imported twice."""
    importlib.import_module("transformers.models.llama.modeling_llama")
    for module in pkgutil.walk_packages(gaudi_validate.__path__, "gaudi_validate."):
        if not module.name.startswith("gaudi_validate.suite"):
            importlib.import_module(module.name)
