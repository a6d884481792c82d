"""From ``--port`` and ``--attention`` to a port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.ports.user_port import UserPort, import_loader

if TYPE_CHECKING:
    from gaudi_validate.ports.base import Port

DEFAULT_ATTENTION = "hpu_sliced"
KNOWN = ("transformers",)


def resolve_port(port: str | None, attention: str | None) -> Port:
    """Return the port that the two options name; ``None`` for both is transformers with the memory-saving attention.

    ``port``: "transformers" or ``pkg.module:load``. ``attention``: what ``gaudi_validate.attention.registry.ensure``
    takes; a user's port keeps its own attention when none is given. Raises :class:`UserError`.
    """
    if port in (None, *KNOWN):
        return TransformersPort(_registered(attention or DEFAULT_ATTENTION))
    if not _names_a_function(port):
        raise UserError("unknown port", where=repr(port), do=f"use {', '.join(KNOWN)} or pkg.module:load")
    loader = import_loader(port)
    return UserPort(port, loader, None if attention is None else _registered(attention))


def _names_a_function(spec: str) -> bool:
    module, colon, attribute = spec.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))


def _registered(attention: str) -> str:
    from gaudi_validate.attention.registry import ensure

    name: str = ensure(attention)
    return name
