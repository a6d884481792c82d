from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.hardware.detect import count_hpus, find, find_hpu

if TYPE_CHECKING:
    from pathlib import Path


def card(root: Path, index: int, *, vendor: str = "0x1da3", device: str = "0x1020", kind: str = "") -> None:
    folder = root / f"accel{index}" / "device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "device").write_text(f"{device}\n")
    if kind:
        (folder / "device_type").write_text(f"{kind}\n")


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> None:
    """A habana_frameworks that importlib.util.find_spec finds, as an empty module."""
    from importlib.machinery import ModuleSpec

    module = ModuleType("habana_frameworks")
    module.__spec__ = ModuleSpec("habana_frameworks", None)
    monkeypatch.setitem(sys.modules, "habana_frameworks", module)


def test_no_card(tmp_path: Path) -> None:
    found = find(tmp_path, tmp_path / "nvidiactl")
    assert (found.hpu, found.no_hpu) == (None, f"no Habana device under {tmp_path}")
    assert (found.cuda, found.no_cuda) == (False, f"no NVIDIA driver: {tmp_path / 'nvidiactl'} is missing")


def test_another_vendors_accelerator_is_no_hpu(tmp_path: Path) -> None:
    card(tmp_path, 0, vendor="0x8086", device="0x7d1d")
    assert find_hpu(tmp_path) == (None, f"no Habana device under {tmp_path}")
    assert count_hpus(tmp_path) == 0


def test_a_card_without_its_software(tmp_path: Path) -> None:
    card(tmp_path, 0)
    assert find_hpu(tmp_path) == (
        None,
        "a Habana device is there, but the package habana_frameworks is not installed",
    )


@pytest.mark.usefixtures("software")
@pytest.mark.parametrize(
    ("device", "kind", "key"),
    [
        ("0x1000", "", "gaudi"),
        ("0x1020", "", "gaudi2"),
        ("0x1060", "", "gaudi3"),
        ("0x1020", "GAUDI2B", "gaudi2"),
        ("0x1010", "GAUDI SEC", "gaudi"),
        ("0x9999", "GAUDI3", "gaudi3"),
    ],
)
def test_the_card_names_the_hardware(tmp_path: Path, device: str, kind: str, key: str) -> None:
    card(tmp_path, 0, device=device, kind=kind)
    card(tmp_path, 1, device=device, kind=kind)
    assert find_hpu(tmp_path) == (key, "")
    assert count_hpus(tmp_path) == 2


@pytest.mark.usefixtures("software")
def test_an_unknown_card_is_named(tmp_path: Path) -> None:
    card(tmp_path, 0, device="0x0001", kind="GOYA")
    assert find_hpu(tmp_path) == (None, "an unknown Habana device: GOYA")


def test_a_driver_without_a_cuda_build_of_torch(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    import torch

    expected = "" if torch.version.cuda else "this torch is built without CUDA"
    assert find(tmp_path, tmp_path / "nvidiactl").no_cuda == expected
