"""What one session of pytest works with, each made when it is first asked for: port, models, device."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gaudi_validate import options
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from gaudi_validate.core.settings import Settings
    from gaudi_validate.hardware.device import Device
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

PORT: pytest.StashKey[Port] = pytest.StashKey()
POOL: pytest.StashKey[ModelPool] = pytest.StashKey()
DEVICE: pytest.StashKey[Device] = pytest.StashKey()


def open_device(config: pytest.Config) -> Device:
    """Return the device of this process, opened once."""
    if DEVICE not in config.stash:
        from gaudi_validate.hardware.device import open_device as opened

        config.stash[DEVICE] = opened(options.settings_of(config).facts, os.environ)
    return config.stash[DEVICE]


def model_pool(config: pytest.Config) -> ModelPool:
    """Return the session's pool: weights load once."""
    if POOL not in config.stash:
        from gaudi_validate.ports.pool import ModelPool

        config.stash[POOL] = ModelPool(options.settings_of(config).cache_dir)
    return config.stash[POOL]


def port_under_test(config: pytest.Config) -> Port:
    """Return the port that --port, --attention and --plant-fault choose. Raises UserError for unknown ones."""
    if PORT not in config.stash:
        from gaudi_validate.ports.resolve_port import resolve_port

        settings = options.settings_of(config)
        added: list[Mapping[str, str]] = config.hook.pytest_gaudi_validate_ports(config=config)
        named = {name: loader for ports in added for name, loader in ports.items()}
        port = resolve_port(named.get(settings.port or "", settings.port), settings.attention)
        config.stash[PORT] = _planted(config, port)
    return config.stash[PORT]


def chosen_port(config: pytest.Config, port: Port | str | None) -> Port:
    """Return the port that a test names: a port, an attention implementation, or ``None`` for the one under test.

    --plant-fault reaches all of them.
    """
    if port is None:
        return port_under_test(config)
    if not isinstance(port, str):
        return port
    from gaudi_validate.ports.resolve_port import resolve_port

    return _planted(config, resolve_port(None, port))


def _planted(config: pytest.Config, port: Port) -> Port:
    """Return ``port`` with the fault of --plant-fault in it, if there is one."""
    fault_id = options.settings_of(config).plant_fault
    if fault_id is None:
        return port
    from gaudi_validate.faults.catalogue import FAULTS
    from gaudi_validate.faults.fault import FaultyPort

    if fault_id not in FAULTS:
        raise UserError("unknown fault", where=f"--plant-fault {fault_id!r}", do=f"use one of {', '.join(FAULTS)}")
    return FaultyPort(port, FAULTS[fault_id])


def model_spec(config: pytest.Config, name: str | None = None) -> ModelSpec:
    """Return the model of that name, by default --model: one that a hook adds, else one of the catalogue."""
    from gaudi_validate.models.catalogue import resolve

    wanted = name or options.settings_of(config).model
    added: list[Iterable[ModelSpec]] = config.hook.pytest_gaudi_validate_models(config=config)
    return next((spec for specs in added for spec in specs if spec.name == wanted), None) or resolve(wanted)


def torch_dtype(config: pytest.Config, dtype: str | torch.dtype | None = None) -> torch.dtype:
    """Return torch's dtype of that name, by default --dtype."""
    import torch

    wanted = dtype or options.settings_of(config).dtype
    found = getattr(torch, wanted, None) if isinstance(wanted, str) else wanted
    if not isinstance(found, torch.dtype):
        raise UserError("unknown dtype", where=repr(wanted), do="use float64, float32, bfloat16 or float16")
    return found


def _check_baselines(settings: Settings) -> None:
    """Read the baselines of the run's hardware where there are any. Raises UserError for a file that is none."""
    if (settings.golden_dir / "baselines" / f"{settings.hardware}.json").exists():
        from gaudi_validate.golden.store import GoldenStore

        GoldenStore(settings.golden_dir).baselines(settings.hardware)


def check_choices(config: pytest.Config) -> None:
    """Turn what cannot be used into a usage error before anything runs: port, attention, fault, model, baselines."""
    if options.is_worker(config) or config.option.collectonly:
        return
    try:
        _check_baselines(options.settings_of(config))
        _check_workers(config)
        if any(options.is_given(config, name) for name in ("port", "attention", "plant_fault")):
            port_under_test(config)
        if options.is_given(config, "model"):
            model_spec(config)
    except UserError as error:
        raise pytest.UsageError(str(error)) from None


def _check_workers(config: pytest.Config) -> None:
    """Refuse more pytest-xdist workers than HPUs before they start: one device a worker."""
    workers = len(getattr(config.option, "tx", None) or [])
    if options.settings_of(config).facts.device == "hpu" and workers:
        from gaudi_validate.hardware.detect import count_hpus
        from gaudi_validate.hardware.device import device_for_worker

        device_for_worker(workers - 1, count_hpus(), "HPU")
