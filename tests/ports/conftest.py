from __future__ import annotations

import pytest

from gaudi_validate.ports.pool import ModelPool


@pytest.fixture(scope="session")
def ports_pool(tmp_path_factory: pytest.TempPathFactory) -> ModelPool:
    return ModelPool(tmp_path_factory.mktemp("ports-cache"))
