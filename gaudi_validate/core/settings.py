"""Settings: frozen, built once from command line > environment > ``[tool.gaudi_validate]`` > default.

Everything that can be set stands in :data:`FIELDS`; the pytest options, the environment variables and the keys of the
pyproject table are derived from it, so that one name means one thing everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.hardware_table import TABLE, Hardware, lookup
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPES = ("bfloat16", "float16", "float32")
DEFAULT_MODEL = "smollm2-135m"
TABLE_NAME = "tool.gaudi_validate"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One setting: where it may come from, and what it may be.

    ``environment`` is the variable that sets it, ``in_table`` whether the pyproject table may. What rewrites goldens
    or plants a fault is for the command line alone: a file or an exported variable would do it silently.
    """

    name: str
    kind: type = str
    environment: str | None = None
    in_table: bool = True
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The command-line option."""
        return "--" + self.name.replace("_", "-")


FIELDS: tuple[Field, ...] = (
    Field(name="hardware", choices=tuple(TABLE)),
    Field(name="hpu", environment="GAUDI_VALIDATE_HPU", choices=("emulated",)),
    Field(name="port", environment="GAUDI_VALIDATE_PORT"),
    Field(name="attention", environment="GAUDI_VALIDATE_ATTENTION"),
    Field(name="model", environment="GAUDI_VALIDATE_MODEL"),
    Field(name="dtype", environment="GAUDI_VALIDATE_DTYPE", choices=DTYPES),
    Field(name="golden_dir", kind=Path, environment="GAUDI_VALIDATE_GOLDEN_DIR"),
    Field(name="cache_dir", kind=Path, environment="GAUDI_VALIDATE_CACHE"),
    Field(name="evidence", kind=Path, environment="GAUDI_VALIDATE_EVIDENCE"),
    Field(name="strict_verdicts", kind=bool, environment="GAUDI_VALIDATE_STRICT_VERDICTS"),
    Field(name="run_slow", kind=bool, environment="RUN_SLOW"),
    Field(name="update_golden", kind=bool, in_table=False),
    Field(name="prune_golden", kind=bool, in_table=False),
    Field(name="golden_reason", in_table=False),
    Field(name="plant_fault", in_table=False),
)
BY_NAME = {field.name: field for field in FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the machine has, as far as can be told without importing torch.

    ``hpu`` is the hardware key of the card ("gaudi2"), or ``None`` with ``no_hpu`` saying why; the same for CUDA.
    """

    hpu: str | None = None
    cuda: bool = False
    no_hpu: str = ""
    no_cuda: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The ``[tool.gaudi_validate]`` table and the file that it stands in; paths in it are relative to that file."""

    path: Path
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a run was asked to do. ``hardware_source`` says who chose the hardware ("--hardware", "found", ...)."""

    hardware: str
    hardware_source: str
    model: str
    dtype: str
    golden_dir: Path
    cache_dir: Path
    port: str | None = None
    attention: str | None = None
    evidence: Path | None = None
    strict_verdicts: bool = False
    run_slow: bool = False
    update_golden: bool = False
    prune_golden: bool = False
    golden_reason: str | None = None
    plant_fault: str | None = None
    ci: bool = False

    @property
    def facts(self) -> Hardware:
        """The entry of the hardware table."""
        return lookup(self.hardware)


def resolve(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Table | None,
    defaults: Mapping[str, Any],
    found: Found,
) -> Settings:
    """Build the settings; each value comes from the first source that has one.

    ``command_line`` maps setting names to values, ``None`` where the option was not given. ``defaults`` must hold
    ``golden_dir`` and ``cache_dir``. Raises :class:`UserError` for a value that cannot be used, naming its source.
    """
    from_table = _check_table(table)
    values: dict[str, Any] = {}
    for field in FIELDS:
        value, source = _first(field, command_line, environ, from_table)
        if value is not None:
            _check_choice(field, value, source)
            values[field.name] = value
    if values.pop("hpu", None) is not None:
        raise UserError(
            "--hpu=emulated is planned and not in this version",
            do="run without it: the checks that need no HPU run on the CPU (--hardware cpu)",
        )
    hardware, source = _hardware(command_line, environ, from_table, found)
    merged = {"model": DEFAULT_MODEL, "dtype": DTYPES[0], **defaults, **values}
    merged |= {"hardware": hardware, "hardware_source": source, "ci": _is_ci(environ)}
    return Settings(**merged)


def _first(
    field: Field, command_line: Mapping[str, Any], environ: Mapping[str, str], table: Mapping[str, Any]
) -> tuple[Any, str]:
    value = command_line.get(field.name)
    if value is not None:
        return (Path(value) if field.kind is Path else value), field.option
    if field.environment is not None and environ.get(field.environment):
        return _from_text(field, environ[field.environment]), field.environment
    return table.get(field.name), f"[{TABLE_NAME}] {field.name}"


def _from_text(field: Field, text: str) -> Any:
    if field.kind is bool:
        return flag(str(field.environment), text)
    return field.kind(text)


def flag(variable: str, text: str) -> bool:
    """Return the environment variable's ``text`` as a bool; :class:`UserError` for anything but a yes or a no."""
    lowered = text.strip().lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    raise UserError("not a yes or a no", where=f"{variable}={text!r}", do="set it to 1 or unset it")


def _is_ci(environ: Mapping[str, str]) -> bool:
    """CI services set CI to anything from "true" to their own name."""
    return environ.get("CI", "").strip().lower() not in _FALSE


def _check_choice(field: Field, value: Any, source: str) -> None:
    if field.choices and value not in field.choices:
        known = ", ".join(field.choices)
        raise UserError(f"unknown {field.name}", where=f"{source} {value!r}", do=f"use one of {known}")


def _check_table(table: Table | None) -> dict[str, Any]:
    """Return the table's values in their own types, paths made absolute."""
    if table is None:
        return {}
    known = [field.name for field in FIELDS if field.in_table]
    checked: dict[str, Any] = {}
    for key, value in table.values.items():
        where = f"{table.path} [{TABLE_NAME}] {key}"
        if key not in known:
            only = f"{BY_NAME[key].option} is for the command line alone; " if key in BY_NAME else ""
            raise UserError("unknown setting", where=where, do=f"{only}known keys are {', '.join(known)}")
        kind = BY_NAME[key].kind
        wanted, word = (bool, "true or false") if kind is bool else (str, "a string")
        if not isinstance(value, wanted):
            raise UserError(f"must be {word}, not {value!r}", where=where, do=f"known keys are {', '.join(known)}")
        checked[key] = table.path.parent / str(value) if kind is Path else value
    return checked


def _hardware(
    command_line: Mapping[str, Any], environ: Mapping[str, str], table: Mapping[str, Any], found: Found
) -> tuple[str, str]:
    """Return the hardware key and who chose it: --hardware > GAUDI*_CI=1 > the table > what is found."""
    asked = command_line.get("hardware")
    if asked is not None:
        return _available(asked, f"--hardware {asked}", "pass --hardware cpu or leave it out", found), "--hardware"
    variables = [
        (entry.environment, entry.key)
        for entry in TABLE.values()
        if entry.environment and flag(entry.environment, environ.get(entry.environment, ""))
    ]
    if len(variables) > 1:
        names = " and ".join(f"{variable}=1" for variable, _ in variables)
        raise UserError("two kinds of hardware asked for", where=names, do="keep one of them, or pass --hardware")
    if variables:
        variable, key = variables[0]
        do = f"unset {variable} or pass --hardware cpu (an emulated HPU, --hpu=emulated, is planned)"
        return _available(key, f"{variable}=1", do, found), variable
    if "hardware" in table:
        key, source = table["hardware"], f"[{TABLE_NAME}]"
        return _available(key, f"{source} hardware = {key!r}", "change it or pass --hardware cpu", found), source
    return found.hpu or ("cuda" if found.cuda else "cpu"), "found"


def _available(key: str, source: str, do: str, found: Found) -> str:
    """Return ``key`` when the machine has it: never another hardware's goldens, baselines or thresholds."""
    entry = lookup(key)
    if entry.device == "hpu" and found.hpu is None:
        raise UserError(f"{source} asks for a {entry.name} and this machine has no HPU ({found.no_hpu})", do=do)
    if entry.device == "hpu" and found.hpu != key:
        has = lookup(str(found.hpu)).name
        raise UserError(f"{source} asks for a {entry.name} and this machine's card is a {has}", do=do)
    if entry.device == "cuda" and not found.cuda:
        raise UserError(f"{source} asks for CUDA and this machine has none ({found.no_cuda})", do=do)
    return key
