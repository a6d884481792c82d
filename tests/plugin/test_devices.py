from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gaudi_validate.core.hardware_table import lookup
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.settings import Found
from gaudi_validate.hardware.capabilities import measurable, not_measurable
from gaudi_validate.hardware.device import open_device, worker_index
from gaudi_validate.hardware.hpu import claim


class Card(SimpleNamespace):
    """The documented calls of habana_frameworks.torch.hpu and .core, on a card that is not here."""

    def __init__(self, name: str = "GAUDI2") -> None:
        super().__init__()
        self.name, self.said, self.in_use, self.peak = name, list[str](), 100, 900

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Card:
        for path in ("habana_frameworks", "habana_frameworks.torch"):
            package = ModuleType(path)
            package.__path__ = []
            monkeypatch.setitem(sys.modules, path, package)
        core, hpu = ModuleType("core"), ModuleType("hpu")
        vars(core)["mark_step"] = lambda: self.said.append("mark_step")
        vars(hpu).update(
            get_device_name=lambda: self.name,
            device_count=lambda: 1,
            synchronize=lambda: self.said.append("synchronize"),
            reset_peak_memory_stats=lambda: setattr(self, "peak", self.in_use),
            memory_stats=lambda: {"Limit": 1000, "InUse": self.in_use, "MaxInUse": self.peak, "NumAllocs": 7},
        )
        monkeypatch.setitem(sys.modules, "habana_frameworks.torch.core", core)
        monkeypatch.setitem(sys.modules, "habana_frameworks.torch.hpu", hpu)
        return self


def test_an_hpu_waits_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card().install(monkeypatch)
    device = open_device(lookup("gaudi2"), {})
    device.synchronise()
    assert card.said == ["mark_step", "synchronize"]
    facts = device.identify()
    assert (facts.hardware, facts.device, facts.name, facts.memory_bytes) == ("gaudi2", "hpu:0", "GAUDI2", 1000)
    assert device.memory().peak_bytes == 900
    device.reset_peak()
    memory = device.memory()
    assert (memory.in_use_bytes, memory.peak_bytes, memory.limit_bytes) == (100, 100, 1000)


@pytest.mark.parametrize(("key", "name"), [("gaudi2", "GAUDI3"), ("gaudi", "GAUDI2"), ("gaudi3", "GAUDI")])
def test_never_on_another_card(monkeypatch: pytest.MonkeyPatch, key: str, name: str) -> None:
    Card(name).install(monkeypatch)
    with pytest.raises(UserError) as error:
        open_device(lookup(key), {})
    assert str(error.value) == f"the run is for {key} and the device calls itself {name}; choose with --hardware"


def test_each_worker_claims_its_own_card() -> None:
    environ = {"HABANA_VISIBLE_MODULES": "4, 6"}
    claim(1, 8, environ)
    assert environ["HABANA_VISIBLE_MODULES"] == "6"
    environ = {}
    claim(3, 8, environ)
    assert environ["HABANA_VISIBLE_MODULES"] == "3"
    with pytest.raises(UserError) as error:
        claim(2, 8, {"HABANA_VISIBLE_MODULES": "4,6"})
    assert str(error.value) == "3 or more pytest-xdist workers and 2 HPU devices; pass -n 2"


def test_the_number_of_a_worker() -> None:
    assert [worker_index({"PYTEST_XDIST_WORKER": name}) for name in ("gw0", "gw11", "master")] == [0, 11, 0]
    assert worker_index({}) == 0


def test_the_cpu_reports_the_memory_of_the_process() -> None:
    device = open_device(lookup("cpu"), {})
    assert str(device.torch_device()) == "cpu"
    device.reset_peak()
    before = device.memory()
    block = bytearray(b"x" * (64 << 20))
    held = device.memory()
    assert held.in_use_bytes - before.in_use_bytes >= len(block) * 0.9
    del block
    assert device.memory().peak_bytes >= before.in_use_bytes + (56 << 20)
    device.reset_peak()
    assert device.memory().peak_bytes < held.peak_bytes
    assert held.limit_bytes is not None
    assert held.limit_bytes > held.peak_bytes


def test_what_is_and_is_not_measured() -> None:
    found = Found(no_hpu="no Habana device", no_cuda="no NVIDIA driver")
    assert measurable(lookup("gaudi2"))[0] == "logic parity in float32"
    assert not_measurable(lookup("cpu"), found) == (
        ("speed, memory and graphs of an HPU", "no Habana device"),
        ("speed and memory of a CUDA device", "no NVIDIA driver"),
    )
    assert not_measurable(lookup("gaudi2"), Found(hpu="gaudi2", no_cuda="none")) == (
        ("parity in float64", "Gaudi2 has none; float32 is used"),
    )
    assert not_measurable(lookup("cpu"), Found(hpu="gaudi2", cuda=True)) == (
        ("speed, memory and graphs of an HPU", "the run is on cpu"),
        ("speed and memory of a CUDA device", "the run is on cpu"),
    )
