"""Nothing heavy is imported by runs that do not need it; what it costs is measured in benchmarks/startup.py."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "scipy", "numpy", "msgspec", "rich", "safetensors")
PROBE = """
import sys
import pytest
code = pytest.main(sys.argv[1:])
print("HEAVY:", *[name for name in {heavy!r} if name in sys.modules])
sys.exit(code)
"""


@pytest.mark.parametrize("arguments", [("--help",), ("-v",), ("--collect-only", "--attention", "sdpa", "test_it.py")])
def test_heavy_modules_stay_out(pytester: pytest.Pytester, arguments: tuple[str, ...]) -> None:
    pytester.makepyfile(
        test_it="""
import pytest

def test_settings(hardware, judge):
    assert hardware.key == "cpu"

@pytest.mark.slow
def test_slow(): pass
"""
    )
    probe = PROBE.format(heavy=HEAVY)
    result = subprocess.run(
        [sys.executable, "-c", probe, *arguments], cwd=pytester.path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].strip() == "HEAVY:"


def test_the_command_line_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    probe = PROBE.format(heavy=HEAVY).replace("import pytest", "from gaudi_validate import cli")
    probe = probe.replace("pytest.main", "cli.main")
    result = subprocess.run(
        [sys.executable, "-c", probe, "doctor"], cwd=pytester.path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].strip() == "HEAVY:"
