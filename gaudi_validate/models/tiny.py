"""The tiny models as data: transformers configurations and what each can exercise. No torch here.

Sizes follow the fault catalogue's measurements: windows of 16, original maximum positions of 64, 8 query and 2 KV
heads. RoPE settings are spelt the way that transformers 4.55 reads and 5.x still accepts (``rope_theta`` and
``rope_scaling`` rather than ``rope_parameters``). ``eos_token_id`` is unset, so that generation runs its full length;
checks of stopping pass their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WINDOW = 16
ORIGINAL_MAXIMUM = 64
PAD, BOS, EOS, UNKNOWN = 256, 257, 258, 259
VOCABULARY = 260
"""256 bytes and four special tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    """A configuration (``model_type`` and the arguments of its class), a seed for the weights, and features."""

    model_type: str
    config: dict[str, Any]
    features: frozenset[str]
    seed: int = 0


_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 1024,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def _tiny(model_type: str, features: tuple[str, ...] = (), *, gqa: bool = True, **config: Any) -> TinyModel:
    words = frozenset((*features, "gqa") if gqa else features)
    return TinyModel(model_type=model_type, config={**_COMMON, **config}, features=words)


def _scaled_llama(rope_type: str, *, maximum: int = 4 * ORIGINAL_MAXIMUM, **scaling: Any) -> TinyModel:
    rope = {"rope_type": rope_type, "factor": 4.0, **scaling}
    return _tiny("llama", ("rope scaling",), max_position_embeddings=maximum, rope_scaling=rope)


def _without(model: TinyModel, *keys: str) -> TinyModel:
    kept = {key: value for key, value in model.config.items() if key not in keys}
    return TinyModel(model_type=model.model_type, config=kept, features=model.features, seed=model.seed)


MODELS: dict[str, TinyModel] = {
    # Biases on every projection, so that a port that forgets one is seen.
    "tiny-llama": _tiny("llama", attention_bias=True, mlp_bias=True),
    "tiny-mistral": _tiny("mistral", ("window",), sliding_window=WINDOW, head_dim=16),
    "tiny-mixtral": _tiny(
        "mixtral", ("moe",), num_local_experts=8, num_experts_per_tok=2, sliding_window=None, intermediate_size=64
    ),
    "tiny-gemma2": _tiny(
        "gemma2",
        ("window", "alternate windows", "softcap", "own scale"),
        num_attention_heads=4,
        head_dim=32,
        query_pre_attn_scalar=24,
        sliding_window=WINDOW,
        # Low enough that scores of sd 3 reach it: dropping a softcap of 50 could not be seen here.
        attn_logit_softcapping=5.0,
        final_logit_softcapping=4.0,
        tie_word_embeddings=True,
    ),
    # head_dim differs from hidden_size / num_attention_heads, as in the published Qwen3 models.
    "tiny-qwen3": _tiny("qwen3", ("qk-norm",), head_dim=32),
    "tiny-qwen3-moe": _tiny(
        "qwen3_moe",
        ("qk-norm", "moe"),
        head_dim=32,
        num_experts=12,
        num_experts_per_tok=4,
        moe_intermediate_size=48,
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    "tiny-phi3": _tiny(
        "phi3",
        ("partial rotary", "rope scaling"),
        partial_rotary_factor=0.75,
        max_position_embeddings=4 * ORIGINAL_MAXIMUM,
        original_max_position_embeddings=ORIGINAL_MAXIMUM,
        rope_scaling={
            "type": "longrope",
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.4, 1.6],
            "long_factor": [1.0, 1.3, 1.8, 2.6, 3.4, 4.0],
        },
    ),
    "tiny-gpt-neox": _without(
        _tiny("gpt_neox", ("partial rotary",), gqa=False, rotary_pct=0.25, use_parallel_residual=True),
        "num_key_value_heads",
    ),
    "tiny-llama-linear": _scaled_llama("linear"),
    # transformers takes the original maximum of dynamic NTK from max_position_embeddings.
    "tiny-llama-dynamic": _scaled_llama("dynamic", maximum=ORIGINAL_MAXIMUM),
    "tiny-llama-yarn": _scaled_llama("yarn", original_max_position_embeddings=ORIGINAL_MAXIMUM),
    "tiny-llama-llama3": _scaled_llama(
        "llama3", original_max_position_embeddings=ORIGINAL_MAXIMUM, low_freq_factor=1.0, high_freq_factor=4.0
    ),
    "tiny-llama-mha": _tiny("llama", gqa=False, num_key_value_heads=8),
    "tiny-llama-mqa": _tiny("llama", ("mqa",), gqa=False, num_key_value_heads=1),
    "tiny-gpt2": _without(
        _tiny("gpt2", ("learned positions",), gqa=False, n_inner=256, n_positions=512, **_NO_DROPOUT),
        "num_key_value_heads",
        "intermediate_size",
        "max_position_embeddings",
    ),
    "tiny-gpt-oss": _tiny(
        "gpt_oss",
        ("window", "alternate windows", "sinks", "moe", "rope scaling"),
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        intermediate_size=64,
        sliding_window=WINDOW,
        max_position_embeddings=4 * ORIGINAL_MAXIMUM,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": ORIGINAL_MAXIMUM,
        },
    ),
    # For inputs past 8192 tokens: 2 heads keep the naive score matrix near 1 GiB in fp64.
    "tiny-llama-one-layer": _tiny(
        "llama",
        ("mqa",),
        gqa=False,
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
        max_position_embeddings=16384,
    ),
}
