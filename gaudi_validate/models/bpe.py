"""Byte-level BPE tokenizers, written as the two files that every version of transformers reads alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gaudi_validate.models.tiny import BOS, EOS, PAD, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def write(
    folder: Path,
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    special: Sequence[str],
    settings: Mapping[str, Any],
    *,
    split_digits: bool = False,
) -> None:
    """Write tokenizer.json and tokenizer_config.json into ``folder``.

    No token is added to a text by itself: chat templates write theirs out, and a second BOS is a fault. ``settings``
    are the entries of tokenizer_config.json (``bos_token``, ``chat_template``, ...).
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges), fuse_unk=False))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=bool(merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_]) if split_digits else bytes_
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    core.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        **settings,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_bytes(folder: Path) -> None:
    """Write the tiny models' tokenizer: ids are the text's UTF-8 bytes, then pad, bos, eos and unknown."""
    special = {"<pad>": PAD, "<bos>": BOS, "<eos>": EOS, "<unk>": UNKNOWN}
    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())} | special
    names = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    write(folder, vocabulary, [], list(special), names)


def byte_alphabet() -> list[str]:
    """Return the 256 characters that byte-level BPE writes bytes as: printable Latin-1, the rest moved past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]
