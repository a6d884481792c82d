"""Loaded models, each once a session: loading is the slowest part of most tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaudi_validate.models.checkpoints import checkpoint
from gaudi_validate.models.loading import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port


class ModelPool:
    """Models by (checkpoint, load key, dtype, device); whoever gets one must leave it as it was.

    Not thread-safe: a session runs its tests one after the other.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self._checkpoints: dict[ModelSpec, Path] = {}
        self._models: dict[tuple[Path, str, torch.dtype, torch.device], PreTrainedModel] = {}
        self._tokenizers: dict[Path, PreTrainedTokenizerBase] = {}

    def checkpoint(self, spec: ModelSpec) -> Path:
        """Return the checkpoint folder of ``spec``, built or fetched at the first call."""
        if spec not in self._checkpoints:
            self._checkpoints[spec] = checkpoint(spec, self.cache_dir)
        return self._checkpoints[spec]

    def get(self, spec: ModelSpec, port: Port, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Return the model that ``port`` loads; ports with one ``load_key`` share the object."""
        path = self.checkpoint(spec)
        key = (path, port.load_key, dtype, device)
        if key not in self._models:
            self._models[key] = port.load(path, dtype=dtype, device=device)
        return self._models[key]

    def tokenizer(self, spec: ModelSpec) -> PreTrainedTokenizerBase:
        """Return the tokenizer of ``spec``'s checkpoint folder."""
        path = self.checkpoint(spec)
        if path not in self._tokenizers:
            self._tokenizers[path] = load_tokenizer(path)
        return self._tokenizers[path]

    def clear(self) -> None:
        """Drop every loaded model; folders stay."""
        self._models.clear()
        self._tokenizers.clear()
