"""sha256 of files, of the project's own sources, and of tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    import torch

_BLOCK = 1 << 20


def sha256_of(file: Path, advance: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of ``file`` in hex; ``advance`` is told the number of bytes after each block."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            if advance is not None:
                advance(len(block))
    return digest.hexdigest()


def sha256_of_sources(*modules: ModuleType) -> str:
    """Return a sha256 over the source files of ``modules``, for cache keys that change when the code does."""
    digest = hashlib.sha256()
    for module in modules:
        if module.__file__ is None:
            raise ValueError(f"{module.__name__} has no source file")
        digest.update(sha256_of(Path(module.__file__)).encode())
    return digest.hexdigest()


def sha256_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a sha256 over the names and the bytes of CPU tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
