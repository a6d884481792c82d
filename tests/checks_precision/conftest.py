from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.attention.registry import register
from gaudi_validate.core.paths import cache_dir
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.pool import ModelPool

if TYPE_CHECKING:
    from gaudi_validate.models.specs import ModelSpec

register()


@pytest.fixture(scope="session")
def precision_pool(tmp_path_factory: pytest.TempPathFactory) -> ModelPool:
    return ModelPool(tmp_path_factory.mktemp("precision-cache"))


@pytest.fixture(scope="session")
def tiny(precision_pool: ModelPool) -> ModelSpec:
    return resolve("tiny-llama")


@pytest.fixture(scope="session")
def smollm2_pool() -> ModelPool:
    return ModelPool(cache_dir(os.environ))
