from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gaudi_validate.core.messages import UserError
from gaudi_validate.core.settings import FIELDS, Field, Found, Settings, Table, resolve

DEFAULTS = {"golden_dir": Path("/project/golden"), "cache_dir": Path("/home/me/.cache/gaudi-validate")}
NOTHING = Found(no_hpu="no Habana device", no_cuda="no NVIDIA driver")
EVERYTHING = Found(hpu="gaudi2", cuda=True)
TABLE_FILE = Path("/project/pyproject.toml")

# One value for each source, by kind of setting: command line, environment (as text and as the value), table.
TEXT = {
    "port": ("cli:load", "env:load", "env:load", "table:load"),
    "attention": ("cli:f", "env:f", "env:f", "table:f"),
    "model": ("cli", "env", "env", "table"),
    "dtype": ("float16", "float32", "float32", "bfloat16"),
    "golden_dir": ("cli", "env", Path("env"), "table"),
    "cache_dir": ("cli", "env", Path("env"), "table"),
    "evidence": ("cli", "env", Path("env"), "table"),
    "strict_verdicts": (True, "0", False, True),
    "run_slow": (True, "0", False, True),
}


def settings(
    command_line: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
    table: dict[str, Any] | None = None,
    found: Found = NOTHING,
) -> Settings:
    in_file = None if table is None else Table(path=TABLE_FILE, values=table)
    return resolve(command_line or {}, environ or {}, in_file, DEFAULTS, found)


def test_every_setting_with_three_sources_is_in_the_table_below() -> None:
    three = {f.name for f in FIELDS if f.environment and f.in_table}
    assert three - {"hpu"} == set(TEXT)


@pytest.mark.parametrize("field", [f for f in FIELDS if f.name in TEXT], ids=lambda f: f.name)
def test_command_line_over_environment_over_table_over_default(field: Field) -> None:
    cli, env_text, env_value, in_table = TEXT[field.name]
    name, variable = field.name, str(field.environment)

    everywhere = settings({name: cli}, {variable: str(env_text)}, {name: in_table})
    assert getattr(everywhere, name) == (Path(str(cli)) if field.kind is Path else cli)
    no_command_line = settings({name: None}, {variable: str(env_text)}, {name: in_table})
    assert getattr(no_command_line, name) == env_value
    only_table = settings({name: None}, {}, {name: in_table})
    assert getattr(only_table, name) == (Path("/project/table") if field.kind is Path else in_table)
    assert getattr(settings(), name) == DEFAULTS.get(
        name, {"model": "smollm2-135m", "dtype": "bfloat16"}.get(name)
    ) or (field.kind is bool and getattr(settings(), name) is False)


def test_hardware_goes_by_option_then_ci_variable_then_table_then_what_is_found() -> None:
    environ, table = {"GAUDI2_CI": "1"}, {"hardware": "cuda"}

    def chosen(command_line: dict[str, Any], environ: dict[str, str], table: dict[str, Any]) -> tuple[str, str]:
        result = settings(command_line, environ, table, EVERYTHING)
        return result.hardware, result.hardware_source

    assert chosen({"hardware": "cpu"}, environ, table) == ("cpu", "--hardware")
    assert chosen({}, environ, table) == ("gaudi2", "GAUDI2_CI")
    assert chosen({}, {}, table) == ("cuda", "[tool.gaudi_validate]")
    assert chosen({}, {}, {}) == ("gaudi2", "found")


@pytest.mark.parametrize(
    ("found", "hardware"),
    [(NOTHING, "cpu"), (Found(cuda=True), "cuda"), (Found(hpu="gaudi3"), "gaudi3")],
)
def test_hardware_that_is_found(found: Found, hardware: str) -> None:
    assert settings(found=found).hardware == hardware


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        settings().hardware = "gaudi2"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "ci"), [(None, False), ("", False), ("false", False), ("true", True), ("woodpecker", True)]
)
def test_ci_is_what_services_set(value: str | None, ci: bool) -> None:
    assert settings(environ={} if value is None else {"CI": value}).ci is ci


def message(**sources: Any) -> str:
    with pytest.raises(UserError) as error:
        settings(**sources)
    return str(error.value)


def test_a_gaudi_that_is_not_there() -> None:
    assert message(environ={"GAUDI2_CI": "1"}) == (
        "GAUDI2_CI=1 asks for a Gaudi2 and this machine has no HPU (no Habana device); "
        "unset GAUDI2_CI or pass --hardware cpu (an emulated HPU, --hpu=emulated, is planned)"
    )
    assert message(command_line={"hardware": "gaudi3"}) == (
        "--hardware gaudi3 asks for a Gaudi3 and this machine has no HPU (no Habana device); "
        "pass --hardware cpu or leave it out"
    )
    assert message(command_line={"hardware": "cuda"}) == (
        "--hardware cuda asks for CUDA and this machine has none (no NVIDIA driver); "
        "pass --hardware cpu or leave it out"
    )
    assert message(table={"hardware": "gaudi"}) == (
        "[tool.gaudi_validate] hardware = 'gaudi' asks for a Gaudi and this machine has no HPU (no Habana device); "
        "change it or pass --hardware cpu"
    )


def test_never_the_goldens_of_another_card() -> None:
    assert message(environ={"GAUDI3_CI": "1"}, found=EVERYTHING) == (
        "GAUDI3_CI=1 asks for a Gaudi3 and this machine's card is a Gaudi2; "
        "unset GAUDI3_CI or pass --hardware cpu (an emulated HPU, --hpu=emulated, is planned)"
    )


def test_two_ci_variables() -> None:
    both = {"GAUDI2_CI": "1", "GAUDI3_CI": "true"}
    assert message(environ=both, found=EVERYTHING) == (
        "two kinds of hardware asked for: GAUDI2_CI=1 and GAUDI3_CI=1; keep one of them, or pass --hardware"
    )
    assert settings({"hardware": "cpu"}, both).hardware == "cpu"
    assert settings(environ={"GAUDI2_CI": "1", "GAUDI3_CI": "0"}, found=EVERYTHING).hardware == "gaudi2"


def test_emulation_is_not_in_this_version() -> None:
    assert message(command_line={"hpu": "emulated"}) == (
        "--hpu=emulated is planned and not in this version; "
        "run without it: the checks that need no HPU run on the CPU (--hardware cpu)"
    )


KNOWN = (
    "known keys are hardware, hpu, port, attention, model, dtype, golden_dir, cache_dir, evidence, strict_verdicts, "
    "run_slow"
)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"modle": "x"}, f"unknown setting: /project/pyproject.toml [tool.gaudi_validate] modle; {KNOWN}"),
        (
            {"update_golden": True},
            "unknown setting: /project/pyproject.toml [tool.gaudi_validate] update_golden; "
            f"--update-golden is for the command line alone; {KNOWN}",
        ),
        (
            {"model": 3},
            f"must be a string, not 3: /project/pyproject.toml [tool.gaudi_validate] model; {KNOWN}",
        ),
        (
            {"strict_verdicts": "yes"},
            f"must be true or false, not 'yes': /project/pyproject.toml [tool.gaudi_validate] strict_verdicts; {KNOWN}",
        ),
        (
            {"hardware": "tpu"},
            "unknown hardware: [tool.gaudi_validate] hardware 'tpu'; use one of cpu, cuda, gaudi, gaudi2, gaudi3",
        ),
    ],
)
def test_what_is_wrong_in_the_table(table: dict[str, Any], text: str) -> None:
    assert message(table=table) == text


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        (
            {"command_line": {"hardware": "gaudi9"}},
            "unknown hardware: --hardware 'gaudi9'; use one of cpu, cuda, gaudi, gaudi2, gaudi3",
        ),
        (
            {"environ": {"GAUDI_VALIDATE_DTYPE": "int8"}},
            "unknown dtype: GAUDI_VALIDATE_DTYPE 'int8'; use one of bfloat16, float16, float32",
        ),
        ({"environ": {"RUN_SLOW": "perhaps"}}, "not a yes or a no: RUN_SLOW='perhaps'; set it to 1 or unset it"),
        ({"environ": {"GAUDI2_CI": "2"}}, "not a yes or a no: GAUDI2_CI='2'; set it to 1 or unset it"),
    ],
)
def test_what_is_wrong_elsewhere(sources: dict[str, Any], text: str) -> None:
    assert message(**sources) == text
