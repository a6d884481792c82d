"""Tiny models as real checkpoints: config.json, model.safetensors and a byte tokenizer, the same bytes every time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaudi_validate.models import sharpen, tiny
from gaudi_validate.models.loading import quiet_transformers

if TYPE_CHECKING:
    from gaudi_validate.models.tiny import TinyModel

WEIGHTS = "model.safetensors"


def cache_key(model: TinyModel) -> str:
    """Return 16 hex digits that change with the model, the code that draws its weights, transformers and torch."""
    import torch
    import transformers

    code = [hashlib.sha256(Path(source).read_bytes()).hexdigest() for source in (__file__, sharpen.__file__)]
    versions = [transformers.__version__, str(torch.__version__)]
    text = json.dumps([{**asdict(model), "features": None}, code, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(model: TinyModel, folder: Path) -> None:
    """Write ``model`` into the empty ``folder`` in the layout that transformers itself saves, in fp32."""
    import transformers
    from safetensors import safe_open
    from safetensors.torch import save_file

    auto: Any = transformers.AutoModelForCausalLM
    config: Any = transformers.AutoConfig.for_model(model.model_type, **json.loads(json.dumps(model.config)))
    # transformers decides the names of what it saves (5.x keeps a MoE's experts in another layout than it runs them).
    with quiet_transformers():
        auto.from_config(config, attn_implementation="eager").save_pretrained(folder)
    with safe_open(folder / WEIGHTS, framework="pt") as saved:
        shapes = [(name, tuple(saved.get_slice(name).get_shape())) for name in sorted(saved.keys())]
    save_file(sharpen.weights(shapes, config, model.seed), folder / WEIGHTS, metadata={"format": "pt"})
    byte_tokenizer().save_pretrained(folder)


def byte_tokenizer() -> Any:
    """Return a tokenizer whose ids are the text's UTF-8 bytes, with pad, bos, eos and unknown after them."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: byte for byte, character in enumerate(_byte_alphabet())}
    special = {"<pad>": tiny.PAD, "<bos>": tiny.BOS, "<eos>": tiny.EOS, "<unk>": tiny.UNKNOWN}
    core = Tokenizer(models.BPE(vocab={**vocabulary, **special}, merges=[], unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _byte_alphabet() -> list[str]:
    """Return the 256 characters that byte-level BPE writes bytes as: printable Latin-1, the rest moved past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]
