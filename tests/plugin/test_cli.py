from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gaudi_validate import __version__, cli


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"gaudi-validate {__version__}\n"


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("gaudi-validate")
    result = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"gaudi-validate {__version__}\n"


def test_the_doctor_says_what_is_and_is_not_measured_and_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAUDI_VALIDATE_CACHE", str(tmp_path))
    assert cli.main(["doctor", "--hardware", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "hardware   cpu (CPU; --hardware)"
    assert f"cache      {tmp_path}" in lines
    measured, missing = lines.index("measured here:"), lines.index("not measured here, and why:")
    assert lines[measured + 1 : missing] == [
        "  logic parity in float64",
        "  precision parity in bfloat16, float16 and float32",
        "  generated text against goldens",
        "  live memory of tensors, counted exactly",
        "  speed on the CPU, as a paired ratio",
    ]
    assert [line.split(":")[0] for line in lines[missing + 1 :]] == [
        "  speed, memory and graphs of an HPU",
        "  speed and memory of a CUDA device",
    ]


@pytest.mark.parametrize(
    ("arguments", "environ", "text"),
    [
        (
            ["doctor"],
            {"GAUDI_CI": "1", "GAUDI2_CI": "1"},
            "two kinds of hardware asked for: GAUDI_CI=1 and GAUDI2_CI=1; keep one of them, or pass --hardware",
        ),
        (
            ["doctor", "--hardware", "tpu"],
            {},
            "unknown hardware: --hardware 'tpu'; use one of cpu, cuda, gaudi, gaudi2, gaudi3",
        ),
        (["fetch", "nope"], {}, "unknown model to fetch: 'nope'; use one of smollm2-135m"),
        (["accept", "."], {}, "cannot read (Is a directory): .; give the file that --evidence wrote"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environ: dict[str, str],
    text: str,
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"gaudi-validate: {text}\n")


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "doctor", interrupted)
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == ""


def test_no_command_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "the following arguments are required: COMMAND" in capsys.readouterr().err
