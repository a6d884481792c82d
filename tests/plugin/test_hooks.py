"""What a project adds through the hooks is found by name."""

from __future__ import annotations

import pytest

CONFTEST = """
from gaudi_validate.models.specs import ModelSpec
from gaudi_validate.models.loading import load

def pytest_gaudi_validate_ports(config):
    return {"in-house": "in_house:load_port"}

def pytest_gaudi_validate_models(config):
    return [ModelSpec(name="ours", source="path", location="/models/ours")]
"""
IN_HOUSE = """
def load_port(checkpoint, *, dtype, device):
    from gaudi_validate.models.loading import load
    return load(checkpoint, dtype=dtype, device=device)
"""


def test_a_port_and_a_model_by_name(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        in_house=IN_HOUSE,
        test_it="""
from gaudi_validate.session import model_spec, port_under_test

def test_it(request):
    assert port_under_test(request.config).name == "in_house:load_port"
    assert model_spec(request.config, "ours").location == "/models/ours"
    assert model_spec(request.config, "tiny-llama").source == "tiny"
""",
    )
    pytester.syspathinsert()
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--port", "in-house", "--model", "ours", "test_it.py"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*port in-house, attention its own, model ours, bfloat16"])


def test_an_unknown_port(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--port", "in-house")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.stderr.lines if line] == [
        "ERROR: unknown port: 'in-house'; use transformers or pkg.module:load"
    ]
