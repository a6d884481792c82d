from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate.checks.reference import ReferenceStore
from gaudi_validate.ports.pool import ModelPool

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def faults_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults-cache")


@pytest.fixture(scope="session")
def faults_pool(faults_cache: Path) -> ModelPool:
    return ModelPool(faults_cache)


@pytest.fixture(scope="session")
def faults_references(faults_cache: Path) -> ReferenceStore:
    return ReferenceStore(faults_cache / "references")
