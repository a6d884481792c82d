"""The project's own tests run pytest inside pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Bring ``pytester``.

    Not as ``pytest_plugins``: pytest refuses that below another root, and this file is found from any folder when the
    shipped suite runs out of a checkout.
    """
    config.pluginmanager.import_plugin("pytester")
