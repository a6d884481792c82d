"""What the documents show is what runs: examples are executed, options and paths exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gaudi_validate.core.settings import FIELDS
from gaudi_validate.faults.catalogue import FAULTS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PYTEST_OPTIONS = {"--pyargs", "--help"}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_attention_function_of_the_readme_passes_the_logic_matrix(pytester: pytest.Pytester) -> None:
    function, _ = blocks(README, "python")
    pytester.makepyfile(mine=function)
    result = pytester.runpytest_subprocess(
        "--attention=mine:attention", "-q", "-k", "test_logic_parity and tiny-llama-one-layer"
    )
    result.assert_outcomes(passed=16)


def test_the_tests_of_the_readme_pass(pytester: pytest.Pytester) -> None:
    function, tests = blocks(README, "python")
    pytester.makepyfile(mine=function, test_port=tests)
    result = pytester.runpytest_subprocess("test_port.py", "--attention=mine:attention", "--model=tiny-llama")
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_options_that_documents_name_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    commands = re.findall(r"pytest[^\n`]*", text)
    named = {option for line in commands for option in re.findall(r"--[a-z][a-z-]+", line)}
    assert named - {field.option for field in FIELDS} - PYTEST_OPTIONS == set()


def test_the_fault_that_the_readme_plants_exists() -> None:
    named = re.findall(r"--plant-fault[ =](\w+)", README)
    assert named
    assert set(named) <= set(FAULTS)


def test_paths_that_contributing_names_exist() -> None:
    named = re.findall(r"`((?:\w+/)+[\w.]+\.py)", CONTRIBUTING)
    assert named
    missing = [path for path in named if not any((base / path).exists() for base in (ROOT, ROOT / "gaudi_validate"))]
    assert missing == []


def test_tox_environments_that_documents_name_exist() -> None:
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    known = {"transformers4", "transformers5", *re.findall(r"\[testenv:(\w+)\]", tox)}
    named = {name for text in (README, CONTRIBUTING) for name in re.findall(r"tox run -e (\w+)", text)}
    assert named
    assert named <= known
