from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate.ports.pool import ModelPool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def logic_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logic-cache")


@pytest.fixture(scope="session")
def logic_pool(logic_cache: Path) -> ModelPool:
    return ModelPool(logic_cache)
