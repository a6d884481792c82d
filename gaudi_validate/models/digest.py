"""sha256 of files and of tensors."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

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


def sha256_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a sha256 over the names and the bytes of CPU tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().numpy().data)
    return digest.hexdigest()
