"""The plugin's options and markers, and how pytest's objects become :class:`Settings`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.settings import BY_NAME, DEFAULT_MODEL, DTYPES, FIELDS, TABLE_NAME, Settings, Table, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
SHIPPED: pytest.StashKey[str] = pytest.StashKey()
SUITE = Path(__file__).parent / "suite"

_HELP = {
    "hardware": "whose goldens, baselines and thresholds count ({choices}); default: GAUDI_CI/GAUDI2_CI/GAUDI3_CI=1, "
    "then what the machine has",
    "hpu": "'emulated': planned, not in this version",
    "port": "port under test: transformers, a name that a plugin registers, or pkg.module:load",
    "attention": "attention implementation under test: hpu_sliced, hpu_sliced[q_block_size=8], sdpa, "
    "or pkg.module:function",
    "model": "model of the tests that take one: a name, a Hugging Face id or a folder (default smollm2-135m)",
    "dtype": "deployed dtype of the precision checks ({choices}; default bfloat16)",
    "golden_dir": "where goldens and baselines are (default: golden/ beside the project's configuration)",
    "cache_dir": "where models and reference results are kept",
    "evidence": "write everything that was measured to this JSON file",
    "strict_verdicts": "INCONCLUSIVE, NO_BASELINE and ENV_MISMATCH fail too",
    "update_golden": "create and update the goldens and baselines of what runs, on this hardware only",
    "prune_golden": "delete goldens that a full run did not use",
    "golden_reason": "why goldens change; needed where an update loosens a bar",
    "plant_fault": "plant a fault of the catalogue (such as A4) into the port under test, to see it fail",
}
_METAVARS = {"evidence": "PATH", "golden_dir": "DIR", "cache_dir": "DIR", "plant_fault": "ID", "golden_reason": "WHY"}

MARKERS = (
    "slow: a real model or long inputs; runs with -m slow or RUN_SLOW=1",
    "hardware(*keys): runs on this hardware only, such as cpu or gaudi2; skipped elsewhere, with the reason",
    "parity: logic and precision parity with the reference",
    "text: generated text against goldens",
    "memory: counted bytes and memory gates",
    "speed: paired timings",
)


def add_options(parser: pytest.Parser) -> None:
    """Add one option a setting, every default ``None`` so that environment and pyproject can answer."""
    group = parser.getgroup("gaudi-validate", "validation of model ports to Intel Gaudi")
    for name, text in _HELP.items():
        field = BY_NAME[name]
        help_text = text.format(choices=", ".join(field.choices))
        if field.kind is bool:
            group.addoption(field.option, action="store_const", const=True, default=None, help=help_text)
        else:
            group.addoption(field.option, default=None, metavar=_METAVARS.get(name, name.upper()), help=help_text)


def add_markers(config: pytest.Config) -> None:
    """Register the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def command_line(options: Any) -> dict[str, Any]:
    """Return the settings that stand on the command line; ``None`` for those that do not."""
    return {field.name: getattr(options, field.name, None) for field in FIELDS}


def build_settings(
    options: Any, environ: Mapping[str, str], root: Path, table_file: Path | None, current: Path
) -> Settings:
    """Build the settings of a run whose root directory is ``root``. Raises UserError."""
    from gaudi_validate.core.paths import cache_dir
    from gaudi_validate.hardware.detect import find

    defaults = {"golden_dir": root / "golden", "cache_dir": cache_dir(environ)}
    settings = resolve(command_line(options), environ, read_table(table_file), defaults, find())
    check_evidence_path(settings.evidence, current)
    return settings


def check_evidence_path(path: Path | None, current: Path) -> None:
    """Refuse an evidence file that could not be written at the end, before anything runs."""
    if path is None:
        return
    folder = (current / path).parent
    if not folder.is_dir():
        raise UserError("the folder of the evidence file does not exist", where=str(path), do=f"mkdir -p {folder}")
    if (current / path).is_dir():
        raise UserError("the evidence file is a folder", where=str(path), do="name a file in it")


def table_file_of(config: pytest.Config) -> Path:
    """Return the pyproject.toml that belongs to the run: pytest's own configuration file, or the root's."""
    if config.inipath is not None and config.inipath.name == "pyproject.toml":
        return config.inipath
    return config.rootpath / "pyproject.toml"


def read_table(path: Path | None) -> Table | None:
    """Return ``[tool.gaudi_validate]`` of the file, ``None`` without one. Raises UserError if it is no TOML."""
    if path is None or not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    if "gaudi_validate" not in text:
        return None
    try:
        values = _toml(text).get("tool", {}).get("gaudi_validate")
    except ValueError as error:
        raise UserError("not valid TOML", where=str(path), do=str(error)) from None
    if values is None:
        return None
    if not isinstance(values, dict):
        raise UserError("must be a table", where=f"{path} [{TABLE_NAME}]", do="write its keys as name = value")
    return Table(path=path, values=values)


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


def store_settings(config: pytest.Config) -> Settings:
    """Build the settings of ``config`` once and keep them in its stash; a user's mistake becomes a usage error."""
    try:
        settings = build_settings(
            config.option, os.environ, config.rootpath, table_file_of(config), config.invocation_params.dir
        )
    except UserError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[SETTINGS] = settings
    return settings


def settings_of(config: pytest.Config) -> Settings:
    """Return the settings of the run."""
    return config.stash[SETTINGS]


def header(config: pytest.Config) -> list[str]:
    """Return the report header: hardware, port, versions, what is not measured here."""
    from gaudi_validate.core.versions import installed
    from gaudi_validate.hardware.capabilities import not_measurable
    from gaudi_validate.hardware.detect import find
    from gaudi_validate.ports.resolve_port import DEFAULT_ATTENTION
    from gaudi_validate.report.terminal import header as lines

    settings = settings_of(config)
    attention = settings.attention or ("its own" if settings.port else f"{DEFAULT_ATTENTION} (default)")
    missing = not_measurable(settings.facts, find())
    return lines(settings, attention, installed(), missing, shipped_suite=config.stash.get(SHIPPED, None))


def selection(config: pytest.Config) -> list[str]:
    """Return what makes the run a partial one, in the user's words."""
    given = config.option
    parts = []
    if SHIPPED in config.stash:
        parts.append("only the shipped suite runs")
    elif config.args_source is pytest.Config.ArgsSource.ARGS:
        parts.append("paths are given")
    parts += [f"{flag} {value!r}" for flag, value in (("-k", given.keyword), ("-m", given.markexpr)) if value]
    parts += [f"--deselect {value!r}" for value in given.deselect or ()]
    parts += ["--last-failed"] if getattr(given, "lf", False) else []
    parts += ["-n: workers do not tell what they left out"] if getattr(given, "dist", "no") != "no" else []
    parts += [] if settings_of(config).run_slow else ["slow tests are left out"]
    return parts


def check_golden_options(config: pytest.Config) -> None:
    """Refuse to record what a planted fault wrote, and to prune what looks unused since its test does not run."""
    settings, partial = settings_of(config), selection(config)
    if settings.update_golden and settings.plant_fault:
        raise pytest.UsageError("--update-golden with --plant-fault would record the fault; leave one of them out")
    if settings.prune_golden and partial and not is_worker(config):
        raise pytest.UsageError(
            f"--prune-golden needs a full run and this one is partial: {', '.join(partial)}; "
            "run RUN_SLOW=1 pytest --prune-golden"
        )
    _keep_goldens_from_syrupy(config, settings.golden_dir)


def _keep_goldens_from_syrupy(config: pytest.Config, golden_dir: Path) -> None:
    """Refuse a snapshot folder that holds the goldens: --snapshot-update deletes what is unknown to it there."""
    from gaudi_validate.golden.names import check_apart

    dirname = getattr(config.option, "snapshot_dirname", None)
    if dirname is None:  # syrupy 4 always uses __snapshots__
        return
    try:
        check_apart(golden_dir, dirname)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a pytest-xdist worker: workers measure, the controller writes."""
    return hasattr(config, "workerinput")


def is_given(config: pytest.Config, name: str) -> bool:
    """Return whether this run's command line or environment sets ``name``, as against the project's configuration."""
    variable = BY_NAME[name].environment
    return getattr(config.option, name, None) is not None or bool(variable and os.environ.get(variable))


def make_importable(config: pytest.Config) -> None:
    """Let ``pkg.module:function`` name a module of the current folder, as ``python -m pytest`` would, for this run."""
    settings, folder = settings_of(config), str(config.invocation_params.dir)
    if folder not in sys.path and any(":" in (name or "") for name in (settings.port, settings.attention)):
        sys.path.insert(0, folder)
        config.add_cleanup(lambda: sys.path.remove(folder))


def use_shipped_suite(config: pytest.Config) -> None:
    """Run the shipped suite when a port or attention was given and nothing was said of what to run on it.

    pytest-xdist hands its workers the same command line, so that each decides the same.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    for name in ("attention", "port"):
        if is_given(config, name):
            config.stash[SHIPPED] = BY_NAME[name].option
            config.args[:] = [str(SUITE)]
            return


def deselect_slow(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests, unless RUN_SLOW=1 or a -m expression that speaks of them."""
    if settings_of(config).run_slow or "slow" in config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


def skip_other_hardware(item: pytest.Item) -> None:
    """Skip, when it is about to run, a test that is for other hardware; never leave it uncollected.

    syrupy takes the goldens of what was not collected for unused ones.
    """
    here = settings_of(item.config).hardware
    for marker in item.iter_markers("hardware"):
        for key in marker.args:
            lookup(key)  # a key that does not exist would skip for ever
        if here not in marker.args:
            pytest.skip(f"needs hardware {' or '.join(marker.args)}; this run is for {here}")


def name_of(item: pytest.Item) -> str:
    """Return the test's name in evidence: its node id, and for the shipped suite the same one from any folder."""
    if item.path.is_relative_to(SUITE):
        return f"gaudi_validate/suite/{item.path.name}::{item.nodeid.partition('::')[2]}"
    return item.nodeid


def reproduce_command(item: pytest.Item) -> str:
    """Return the shell command that runs ``item`` alone, as it ran here."""
    path, names = item.path, item.nodeid.partition("::")[2]
    if path.is_relative_to(SUITE) and not path.is_relative_to(item.config.rootpath):
        # The shipped suite lies in site-packages; its module name is the same on every machine.
        target = ["--pyargs", f"gaudi_validate.suite.{path.stem}::{names}"]
    else:
        target = [f"{os.path.relpath(path, item.config.invocation_params.dir)}::{names}"]
    chosen = reproduce_options(settings_of(item.config), slow=item.get_closest_marker("slow") is not None)
    return shlex.join(["pytest", *target, *chosen])


def reproduce_options(settings: Settings, *, slow: bool) -> list[str]:
    """Return the options that decide what a test measures, those at their defaults left out."""
    options = ["-m", "slow"] if slow else []
    defaults = {"model": DEFAULT_MODEL, "dtype": DTYPES[0], "hardware": settings.hardware}
    if settings.hardware_source != "found":
        del defaults["hardware"]
    for name in ("attention", "port", "hardware", "model", "dtype", "plant_fault"):
        value = getattr(settings, name)
        if value is not None and value != defaults.get(name):
            options += [BY_NAME[name].option, value]
    return [*options, "--strict-verdicts"] if settings.strict_verdicts else options


def invocation(args: Sequence[str]) -> str:
    """Return the command line of this run."""
    return shlex.join(["pytest", *args])
