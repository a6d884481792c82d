"""The project's own tests use pytest's ``pytester`` to run pytest inside pytest."""

from __future__ import annotations

pytest_plugins = ["pytester"]
