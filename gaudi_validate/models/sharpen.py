"""Weights for tiny models that make attention faults show: sharp attention, no zero bias, no norm of ones.

At the usual initialisation (standard deviation 0.02) attention is nearly uniform, and wrong scales, positions and RoPE
cost 0.03 of a logit's standard deviation. Here each weight is drawn from a generator seeded by its own name, so a
model's weights do not depend on the order in which a version of transformers creates them.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARPNESS = 3.0
"""The standard deviation that attention logits are given: at 0.3 most faults cost less than 0.1 of a logit's."""

_QK = ("q_proj.weight", "k_proj.weight", "qkv_proj.weight", "query_key_value.weight", "c_attn.weight")
_QK_NORM = ("q_norm.weight", "k_norm.weight")
_EMBEDDINGS = ("embed_tokens.weight", "embed_in.weight", "wte.weight", "wpe.weight")
_INPUTS_FIRST = ("c_proj.weight", "c_fc.weight", "experts.gate_up_proj", "experts.down_proj")
"""Matrices that are stored as [..., in, out]."""


def weights(shapes: Iterable[tuple[str, tuple[int, ...]]], config: Any, seed: int) -> dict[str, torch.Tensor]:
    """Return fp32 weights by name for a model of ``config``, a transformers configuration."""
    return {name: _draw(name, shape, config, seed) for name, shape in shapes}


def _draw(name: str, shape: tuple[int, ...], config: Any, seed: int) -> torch.Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    mean, deviation = _moments(name, shape, config)
    return (_bell(shape, generator) * deviation + mean).float()


def _bell(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return fp64 numbers of mean 0 and variance 1: sums of four uniform 16-bit integers.

    Integers are the same on every processor; ``torch.randn`` differs in the last bit with the vector instructions.
    """
    terms, values = 4, 1 << 16
    total = torch.randint(0, values, (terms, *shape), generator=generator).sum(dim=0)
    centre, deviation = terms * (values - 1) / 2, math.sqrt(terms * (values**2 - 1) / 12)
    return (total.double() - centre) / deviation


def _moments(name: str, shape: tuple[int, ...], config: Any) -> tuple[float, float]:
    """Return mean and standard deviation of the entries of one parameter."""
    if len(shape) == 1 or name.endswith("bias"):
        return _moments_of_vector(name, gemma=_is_gemma(config))
    return 0.0, _matrix_deviation(name, shape, config)


def _moments_of_vector(name: str, *, gemma: bool) -> tuple[float, float]:
    if name.endswith("bias"):
        return 0.0, 0.2
    if name.endswith(".sinks"):
        return 2.0, 1.0
    if name.endswith(_QK_NORM):
        # q and k have unit RMS times these weights, so the logits' sd is their mean square at a scale of d^-0.5.
        return math.sqrt(SHARPNESS), 0.2
    if gemma:
        # Gemma multiplies by 1 + weight. Its last norm makes up for the small output matrix, see below.
        return 15.0 if name == "model.norm.weight" else 0.0, 0.2
    return 1.0, 0.2


def _matrix_deviation(name: str, shape: tuple[int, ...], config: Any) -> float:
    if name.endswith(_QK):
        return _qk_deviation(config)
    if name.endswith(_EMBEDDINGS):
        # Gemma multiplies embeddings by sqrt(hidden_size), and its output matrix is the same one: small, so that the
        # layers outweigh the embedding, or greedy text would repeat its last token for ever.
        return 0.01 if _is_gemma(config) else 1.0
    # Twice the variance-preserving value: layers add as much as they find, and output logits have an sd of about 2.
    return 2.0 / math.sqrt(shape[-2] if name.endswith(_INPUTS_FIRST) else shape[-1])


def _is_gemma(config: Any) -> bool:
    return bool(config.model_type.startswith("gemma"))


def _qk_deviation(config: Any) -> float:
    """Return the sd of q/k weights that gives attention logits the sd :data:`SHARPNESS`.

    With inputs of unit RMS, q and k have entries of sd ``s * sqrt(hidden)`` and a logit ``scale * sum over d`` of their
    products has sd ``scale * sqrt(d) * s^2 * hidden``.
    """
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scale = getattr(config, "query_pre_attn_scalar", head_dim) ** -0.5
    return float(math.sqrt(SHARPNESS / (scale * math.sqrt(head_dim) * config.hidden_size)))
