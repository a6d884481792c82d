"""Tiny models as real checkpoints: config.json, model.safetensors and a byte tokenizer, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gaudi_validate.models import bpe, sharpen
from gaudi_validate.models.digest import sha256_of_sources
from gaudi_validate.models.loading import quiet_transformers

if TYPE_CHECKING:
    from pathlib import Path

    from gaudi_validate.models.tiny import TinyModel

WEIGHTS = "model.safetensors"


def cache_key(model: TinyModel) -> str:
    """Return 16 hex digits that change with the model, the code that draws its weights, transformers and torch."""
    import torch
    import transformers

    code = sha256_of_sources(sys.modules[__name__], sharpen, bpe)
    versions = [transformers.__version__, str(torch.__version__)]
    text = json.dumps([{**asdict(model), "features": None}, code, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(model: TinyModel, folder: Path) -> None:
    """Write ``model`` into the empty ``folder`` in the layout that transformers itself saves, in fp32."""
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.torch import save_file

    auto: Any = transformers.AutoModelForCausalLM
    config: Any = transformers.AutoConfig.for_model(model.model_type, **json.loads(json.dumps(model.config)))
    # transformers decides the names of what it saves (5.x keeps a MoE's experts in another layout than it runs them).
    # Its random initialisation is thrown away, and must not move the caller's random numbers.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        auto.from_config(config, attn_implementation="eager").save_pretrained(folder)
    with safe_open(folder / WEIGHTS, framework="pt") as saved:
        shapes = [(name, tuple(saved.get_slice(name).get_shape())) for name in sorted(saved.keys())]
    save_file(sharpen.weights(shapes, config, model.seed), folder / WEIGHTS, metadata={"format": "pt"})
    bpe.write_bytes(folder)
