"""Reference results, computed once: in memory for the session, on disk by the hash of all that they depend on."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from gaudi_validate.core import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gaudi_validate.scenarios.inputs import ScenarioInputs

MIB = 1024**2
_RUNNER = ("checks/exact.py", "checks/forward.py", "checks/reference.py", "scenarios/inputs.py")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reference:
    """Logits [N, V] of the N real tokens, row after row, and how often the attention function was called for them."""

    logits: torch.Tensor
    attention_calls: int

    @property
    def nbytes(self) -> int:
        """Bytes of the logits."""
        return self.logits.numel() * self.logits.element_size()


class ReferenceStore:
    """Reference results under ``folder``, of which the most recently used are kept in memory too.

    Entries are safetensors files that appear whole or not at all; the oldest go when ``disk_bytes`` are exceeded.
    """

    def __init__(self, folder: Path, *, disk_bytes: int = 1024 * MIB, memory_bytes: int = 256 * MIB) -> None:
        self.folder = folder
        self._disk_bytes, self._memory_bytes = disk_bytes, memory_bytes
        self._memory: OrderedDict[str, Reference] = OrderedDict()

    def get(self, key: str, compute: Callable[[], Reference]) -> tuple[Reference, str]:
        """Return the result under ``key`` and where it came from, as a phrase for people.

        A file that cannot be read, or whose tensor does not have the recorded hash, is computed again and replaced.
        """
        if key in self._memory:
            self._memory.move_to_end(key)
            return self._memory[key], "kept from earlier in this session"
        path = self.folder / f"{key}.safetensors"
        source = "computed"
        try:
            found = _load(path)
            os.utime(path)
            source = "read from the cache"
        except FileNotFoundError:
            found = None
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            found = None
            source = f"computed again, the cache entry {path.name} was corrupt ({type(error).__name__})"
        if found is None:
            found = compute()
            _save(path, found)
            _trim(self.folder, self._disk_bytes, keep=path)
        self._remember(key, found)
        return found, source

    def _remember(self, key: str, found: Reference) -> None:
        self._memory[key] = found
        while len(self._memory) > 1 and sum(one.nbytes for one in self._memory.values()) > self._memory_bytes:
            self._memory.popitem(last=False)


def reference_key(fingerprint: str, inputs: ScenarioInputs, *, dtype: torch.dtype, device: torch.device) -> str:
    """Return the hash of everything that a reference depends on.

    That is the checkpoint's content (``fingerprint``, weights and config), every input tensor, cache kind, dtype and
    device, the versions of torch and transformers, and the source of the code that runs it.
    """
    digest = hashlib.sha256()
    scenario = inputs.scenario
    facts = [fingerprint, str(dtype), device.type, scenario.cache, str(scenario.cache_length)]
    facts += [f"{name}={version}" for name, version in versions.installed(("torch", "transformers")).items()]
    for fact in facts:
        digest.update(fact.encode() + b"\0")
    for tensor in _tensors(inputs):
        digest.update(b"-" if tensor is None else _bytes(tensor))
    package = Path(__file__).parents[1]
    for name in _RUNNER:
        digest.update((package / name).read_bytes())
    return digest.hexdigest()


def _tensors(inputs: ScenarioInputs) -> Iterable[torch.Tensor | None]:
    yield inputs.real
    for passes in inputs.calls:
        for one in passes:
            yield from (one.input_ids, one.attention_mask, one.position_ids)


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return f"{plain.dtype}{tuple(plain.shape)}".encode() + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _load(path: Path) -> Reference:
    if not path.exists():
        raise FileNotFoundError(path)
    with safe_open(path, framework="pt") as file:
        metadata, logits = file.metadata(), file.get_tensor("logits")
    if hashlib.sha256(_bytes(logits)).hexdigest() != metadata["sha256"]:
        raise ValueError("the logits are not those that were written")
    return Reference(logits=logits, attention_calls=int(metadata["attention_calls"]))


def _save(path: Path, reference: Reference) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logits = reference.logits.contiguous()
    metadata = {
        "attention_calls": str(reference.attention_calls),
        "sha256": hashlib.sha256(_bytes(logits)).hexdigest(),
    }
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    try:
        save_file({"logits": logits}, name, metadata=metadata)
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _trim(folder: Path, limit: int, *, keep: Path) -> None:
    """Delete the least recently used entries until ``limit`` bytes are kept; other processes may delete as well."""
    entries = []
    for path in folder.glob("*.safetensors"):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        entries.append((found.st_mtime, found.st_size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        if path != keep:
            path.unlink(missing_ok=True)
            total -= size
