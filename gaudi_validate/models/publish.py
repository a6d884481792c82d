"""Folders that are there completely or not at all, whoever is killed and however many build at once."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from filelock import FileLock

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def folder_once(target: Path, build: Callable[[Path], None]) -> Path:
    """Return ``target``, made by ``build(empty folder)`` when it is not there yet.

    The content is built in a folder beside ``target`` and renamed: a kill at any moment leaves either no ``target``
    or a whole one. One process builds while the others wait on a lock that the system drops when its holder dies; what
    a killed builder left is removed by the next one. An OSError (no space, no permission) becomes a :class:`UserError`.
    """
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():
                _build_and_rename(target, build)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write the model cache ({reason})", where=str(target.parent)) from error
    return target


def _build_and_rename(target: Path, build: Callable[[Path], None]) -> None:
    """Build under the lock, so every ``.building-*`` folder of this target is a dead process's."""
    for leftover in target.parent.glob(f"{target.name}.building-*"):
        shutil.rmtree(leftover)
    work = target.with_name(f"{target.name}.building-{os.getpid()}")
    work.mkdir()
    try:
        build(work)
        for path in (*work.rglob("*"), work):
            if path.is_file():
                path.chmod(0o644)  # safetensors writes 0600, and caches are shared
            _sync(path)
        work.rename(target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _sync(path: Path) -> None:
    """Put ``path`` on the disk before the rename does, so that a power cut cannot leave a name without content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
