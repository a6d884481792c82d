from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.models.checkpoints import HUB_PATTERNS, checkpoint, fingerprint
from gaudi_validate.models.loading import load, load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gaudi_validate.ports.pool import ModelPool

CPU = torch.device("cpu")
DAMAGED = "; the weights are damaged or cut off: get them again (in the cache: delete the folder)"
INCOMPLETE = "; is it complete, and of the architecture config.json names?"
MISSING = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(models_pool: ModelPool, tmp_path: Path) -> Path:
    copy = tmp_path / "model"
    shutil.copytree(models_pool.checkpoint(resolve("tiny-llama")), copy)
    return copy


def message_of(folder: Path, device: torch.device = CPU) -> str:
    with pytest.raises(UserError) as caught:
        load(folder, dtype=torch.float32, device=device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def configure(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def cut(length: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:length])

    return change


def drop_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[MISSING]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def only_a_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def test_a_whole_copy_loads(folder: Path) -> None:
    model = load(folder, dtype=torch.bfloat16, device=CPU)
    assert not model.training
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


def test_a_missing_folder(tmp_path: Path) -> None:
    assert message_of(tmp_path / "none") == (
        f"no such model folder: {tmp_path / 'none'}; give a folder with config.json and *.safetensors"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "the model folder has no config.json: {folder}"),
        (
            lambda folder: (folder / "config.json").write_text("{torn"),
            "config.json cannot be read (JSONDecodeError: Expecting property name enclosed in double quotes: line 1 "
            "column 2 (char 1)): {folder}/config.json",
        ),
        (
            lambda folder: (folder / "config.json").write_text('{"a": 1}'),
            "config.json names no model_type: {folder}/config.json",
        ),
        (
            only_a_pickle,
            "the model folder has no *.safetensors: {folder}; convert it: pickled weights are never loaded",
        ),
        (
            cut(100_000),
            "the model cannot be loaded (SafetensorError: Error while deserializing header: incomplete metadata, file "
            "not fully covered): {folder}" + DAMAGED,
        ),
        (
            cut(0),
            "the model cannot be loaded (SafetensorError: Error while deserializing header: header too small): "
            "{folder}" + DAMAGED,
        ),
        (drop_a_weight, f"the checkpoint has 1 missing keys, first {MISSING}: {{folder}}" + INCOMPLETE),
        (
            configure(num_hidden_layers=5),
            "the checkpoint has 16 missing keys, first model.layers.4.input_layernorm.weight: {folder}" + INCOMPLETE,
        ),
    ],
)
def test_what_is_no_checkpoint_is_one_line(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(folder)
    assert message_of(folder) == message.format(folder=folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        # The wording is transformers', and differs between its versions.
        (configure(model_type="gpt_neox", architectures=["GPTNeoXForCausalLM"]), "missing keys, first "),
        (configure(model_type="nonsense"), "model type `nonsense`"),
        (configure(model_type="vit", architectures=["ViTModel"]), "Unrecognized configuration class"),
        (configure(hidden_size=64), "the model cannot be loaded (RuntimeError: "),
        (
            configure(
                model_type="nonsense", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
            ),
            "contains custom code which must be executed",
        ),
    ],
)
def test_another_architecture_is_one_line(folder: Path, change: Callable[[Path], None], words: str) -> None:
    change(folder)
    message = message_of(folder)
    assert words in message
    assert str(folder) in message


def test_code_in_a_checkpoint_is_never_run(folder: Path, tmp_path: Path) -> None:
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    configure(model_type="nonsense", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})(folder)
    message_of(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a device that is not there")
def test_a_device_that_is_not_there_is_one_line(folder: Path) -> None:
    message = message_of(folder, torch.device("cuda"))
    assert (
        message == f"the model cannot be moved to cuda (AssertionError: Torch not compiled with CUDA enabled): {folder}"
    )


def test_sampling_settings_of_a_checkpoint_are_dropped(folder: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 7, "eos_token_id": [258, 3]}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    model = load(folder, dtype=torch.float32, device=CPU)
    config = model.generation_config
    assert config is not None
    assert not config.do_sample
    assert (config.eos_token_id, config.pad_token_id) == ([258, 3], 258)
    ids = torch.tensor([[72, 101]])
    made: Any = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2)  # type: ignore[operator]
    assert made.shape == (1, 4)


def test_a_broken_tokenizer_is_one_line(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{torn")
    with pytest.raises(UserError) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith("the tokenizer cannot be loaded (")
    assert str(caught.value).endswith(f"): {folder}")


def test_progress_bars_are_back_after_a_load(folder: Path) -> None:
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    load(folder, dtype=torch.float32, device=CPU)
    assert logging.is_progress_bar_enabled() == before


def test_a_local_folder_is_used_where_it_is(folder: Path, tmp_path: Path) -> None:
    assert checkpoint(resolve(str(folder)), tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_the_hub_is_asked_for_no_pickles_and_no_code() -> None:
    from fnmatch import fnmatch

    names = ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "modeling_own.py", "model.ckpt", "m.h5"]
    assert not [name for name in names if any(fnmatch(name, pattern) for pattern in HUB_PATTERNS)]


def test_an_unreachable_hub_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    # A port where nothing listens: the request fails as it does without a network.
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError) as caught:
        checkpoint(resolve("org/model-that-is-nowhere"), tmp_path)
    message = str(caught.value)
    assert message.startswith("the hub model cannot be fetched (")
    assert message.endswith(
        "): org/model-that-is-nowhere; check the id, the network and your access, or give a local folder"
    )


class TestFingerprint:
    def test_it_is_the_same_for_the_same_content_elsewhere(self, folder: Path, models_pool: ModelPool) -> None:
        assert fingerprint(folder) == fingerprint(models_pool.checkpoint(resolve("tiny-llama")))

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
    def test_it_changes_with_each_file(self, folder: Path, name: str) -> None:
        before = fingerprint(folder)
        file = folder / name
        file.write_text(file.read_text() + " ")
        assert fingerprint(folder) != before

    def test_it_changes_with_one_bit_of_the_weights(self, folder: Path) -> None:
        before = fingerprint(folder)
        file = folder / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        assert fingerprint(folder) != before

    def test_it_reads_nothing_again_while_size_and_time_stand(self, folder: Path) -> None:
        before = fingerprint(folder)
        file = folder / "model.safetensors"
        status = file.stat()
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        import os

        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert fingerprint(folder) == before

    def test_other_files_do_not_count(self, folder: Path) -> None:
        before = fingerprint(folder)
        (folder / "README.md").write_text("words")
        assert fingerprint(folder) == before

    def test_a_missing_folder_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no such model folder"):
            fingerprint(tmp_path / "none")
