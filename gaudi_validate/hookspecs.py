"""Hooks that a project or another plugin may implement, in a conftest.py or a plugin module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gaudi_validate.models.specs import ModelSpec


@pytest.hookspec
def pytest_gaudi_validate_ports(config: pytest.Config) -> Mapping[str, str]:  # type: ignore[empty-body]
    """Return ports by name, each as ``pkg.module:load``; ``--port NAME`` then means that loader.

    Example:
        def pytest_gaudi_validate_ports(config):
            return {"in-house": "in_house.port:load"}
    """


@pytest.hookspec
def pytest_gaudi_validate_models(config: pytest.Config) -> Iterable[ModelSpec]:  # type: ignore[empty-body]
    """Return further models by name; ``--model NAME`` and ``load_model("NAME")`` then find them.

    Example:
        def pytest_gaudi_validate_models(config):
            return [ModelSpec(name="ours", source="path", location="/models/ours")]
    """
