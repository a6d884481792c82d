"""The pytest plugin: hooks translate, the core decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate import hookspecs, options, xdist
from gaudi_validate.core.messages import UserError
from gaudi_validate.fixtures import (
    assert_parity,
    generate,
    golden,
    hardware,
    judge,
    load_model,
    memory_gate,
    perf_gate,
)
from gaudi_validate.session import check_choices

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["assert_parity", "generate", "golden", "hardware", "judge", "load_model", "memory_gate", "perf_gate"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks that projects may implement."""
    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, build the settings, choose what runs."""
    options.add_markers(config)
    if not config.option.help:
        options.store_settings(config)
        options.make_importable(config)
        options.use_shipped_suite(config)
        options.check_golden_options(config)
        xdist.register(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Undo what configure did."""
    xdist.unregister(config)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Check what names a port, model or fault, before any worker starts."""
    check_choices(session.config)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what runs on what, and what cannot be measured here."""
    return options.header(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave slow tests out unless they were asked for."""
    options.deselect_slow(config, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is for other hardware."""
    options.skip_other_hardware(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a user's mistake as its one line, not as a traceback."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, UserError):
        report.longrepr = str(call.excinfo.value)
    return report
