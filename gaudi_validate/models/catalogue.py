"""Models by name. No torch here: names are needed when tests are collected."""

from __future__ import annotations

import re
from pathlib import Path

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.specs import ModelSpec
from gaudi_validate.models.tiny import MODELS

EXTRA: tuple[str, ...] = ("tiny-gpt2", "tiny-gpt-oss")
"""Tiny models for single faults (learned positions, attention sinks), not in the matrix that every port runs."""

TINY: tuple[str, ...] = tuple(name for name in MODELS if name not in EXTRA)
WHEELS: dict[str, ModelSpec] = {
    "smollm2-135m": ModelSpec(name="smollm2-135m", source="wheel", features=frozenset({"gqa", "text"})),
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(name: str) -> ModelSpec:
    """Return the spec of a tiny model, of a fetched one, of a local folder, or of a hub id, in that order.

    A folder is meant when one exists there or when ``name`` starts like a path (``/``, ``./``, ``../``, ``~``). Nothing
    is loaded or fetched. Raises :class:`UserError` for anything else.
    """
    if name in MODELS:
        return ModelSpec(name=name, source="tiny", features=MODELS[name].features)
    if name in WHEELS:
        return WHEELS[name]
    path = Path(name).expanduser()
    if name and (name.startswith(("/", ".", "~")) or path.is_dir()):
        return _local(path)
    if _HUB_ID.fullmatch(name):
        return ModelSpec(name=name, source="hub", location=name)
    known = ", ".join((*MODELS, *WHEELS))
    raise UserError("unknown model", where=repr(name), do=f"use a folder, a hub id (org/name), or one of {known}")


def _local(path: Path) -> ModelSpec:
    if not path.is_dir():
        raise UserError("no such model folder", where=str(path), do="give a folder with config.json and *.safetensors")
    whole = path.resolve()
    return ModelSpec(name=whole.name, source="path", location=str(whole))
