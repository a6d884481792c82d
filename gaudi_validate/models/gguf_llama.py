"""A Llama in a GGUF file, as a safetensors checkpoint.

transformers reads such files too, but each version makes another config and another tokenizer of the same file (4.55
adds BOS and takes it for EOS, 4.55 and 5.24 leave out the digit split). Here the files are the same under every
version, and the weights are bit for bit those that transformers computes.

Weights are stored in fp32, the dtype that dequantising computes in: a Q4_1 weight ``d * q + m`` (fp16 d and m, q of 4
bits) and a Q8_0 weight ``d * q`` need more bits than bf16 or fp16 have.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gaudi_validate.models import bpe
from gaudi_validate.models.digest import sha256_of_tensors

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from gguf import GGUFReader

_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


def convert(gguf: Path, folder: Path) -> str:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer of ``gguf`` into ``folder``.

    Returns the sha256 over the names and values of the weights.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(gguf)
    config = _config(reader)
    weights = tensors(reader, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _write_tokenizer(reader, config, folder)
    return sha256_of_tensors(weights)


def tensors(reader: GGUFReader, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the dequantised fp32 weights by their names in transformers' Llama, the tied output matrix left out."""
    import torch
    from gguf.quants import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    named = {}
    for tensor in reader.tensors:
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else tensor.name
        weight = dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            weight = _half_split(weight, heads[kind])
        named[_name(tensor.name)] = torch.from_numpy(weight.copy())
    return named


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows from GGUF's interleaved RoPE pairs to the half-split ones of transformers; [heads * D, hidden]."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _name(gguf_name: str) -> str:
    if gguf_name in _OUTER:
        return _OUTER[gguf_name]
    _, layer, kind, what = gguf_name.split(".")
    return f"model.layers.{layer}.{_INNER[kind]}.{what}"


def _config(reader: GGUFReader) -> dict[str, Any]:
    """Return a config.json spelt the way that transformers 4.55 reads and 5.x still accepts."""
    hidden, heads = _value(reader, "llama.embedding_length"), _value(reader, "llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _value(reader, "llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rms_norm_eps": _value(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _value(reader, "llama.rope.freq_base"),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _value(reader, "tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _write_tokenizer(reader: GGUFReader, config: dict[str, Any], folder: Path) -> None:
    tokens = _value(reader, "tokenizer.ggml.tokens")
    kinds = _value(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _value(reader, "tokenizer.ggml.merges")]
    names = {
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[_value(reader, "tokenizer.ggml.unknown_token_id")],
        "model_max_length": config["max_position_embeddings"],
        "chat_template": _value(reader, "tokenizer.chat_template"),
    }
    bpe.write(
        folder,
        {token: index for index, token in enumerate(tokens)},
        merges,
        [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN],
        names,
        # The pre-tokenizer that GGUF calls "smollm": each digit stands alone.
        split_digits=_value(reader, "tokenizer.ggml.pre") == "smollm",
    )


def _value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise KeyError(f"the GGUF file has no {key}")
    return field.contents()
