"""The pytest plugin: hooks translate, the core decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaudi_validate import options

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, build the settings."""
    for marker in options.MARKERS:
        config.addinivalue_line("markers", marker)
    if not config.option.help:
        options.store_settings(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless they were asked for."""
    options.deselect_slow(config, items)
