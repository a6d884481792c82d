"""Loading checkpoint folders: eval mode, exactly the dtype asked for, nothing missing, greedy generation."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def load(path: Path, *, dtype: torch.dtype, device: torch.device, attention: str = "eager") -> PreTrainedModel:
    """Return the causal language model of the folder ``path`` in eval mode, every parameter in ``dtype``.

    RoPE's ``inv_freq`` buffers stay the fp32 values that transformers computes, whatever ``dtype`` is: they are no
    weights, the model's own code reads them as fp32, and reference and port share them. Experts run in transformers'
    plain loop, since its grouped kernel has no fp64. ``attention`` must be registered. Raises :class:`UserError` for a
    folder that cannot be loaded, and for a checkpoint that lacks weights, which would be left random.
    """
    check_folder(path)
    model = _from_pretrained(path, dtype, attention)
    use_plain_experts(model)
    make_greedy(model)
    try:
        untyped: Any = model
        untyped.to(device=device).eval()
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"the model cannot be moved to {device} ({first_line(error)})", where=str(path)) from error
    return model


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the folder ``path``, padding on the left, with a padding token; :class:`UserError`."""
    from transformers import AutoTokenizer

    check_folder(path)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise UserError(f"the tokenizer cannot be loaded ({first_line(error)})", where=str(path)) from error
    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def check_folder(path: Path) -> dict[str, Any]:
    """Return the folder's config.json; :class:`UserError` when it is no checkpoint that may be loaded."""
    if not path.is_dir():
        raise UserError("no such model folder", where=str(path), do="give a folder with config.json and *.safetensors")
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("the model folder has no config.json", where=str(path)) from None
    except (OSError, ValueError) as error:
        raise UserError(f"config.json cannot be read ({first_line(error)})", where=str(file)) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UserError("config.json names no model_type", where=str(file))
    if not any(path.glob("*.safetensors")):
        raise UserError(
            "the model folder has no *.safetensors", where=str(path), do="convert it: pickled weights are never loaded"
        )
    return config


def make_greedy(model: PreTrainedModel) -> None:
    """Keep of the generation settings only the token ids: a checkpoint's temperature and top-p warn under greedy."""
    import transformers

    settings: Any = transformers.GenerationConfig
    old = model.generation_config
    ids = {name: getattr(old, name, None) for name in _TOKEN_IDS} if old is not None else {}
    eos = ids.get("eos_token_id")
    if ids.get("pad_token_id") is None:
        ids["pad_token_id"] = eos[0] if isinstance(eos, list) else eos
    model.generation_config = settings(**ids)


def use_plain_experts(model: PreTrainedModel) -> None:
    """Select the loop over experts where this version of transformers offers several implementations."""
    if getattr(model.config, "_experts_implementation", None) is not None:
        model.set_experts_implementation("eager")


def first_line(error: BaseException) -> str:
    """Return the error's first line that says something, cut to 200 characters, with its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    text = text if len(text) <= 200 else f"{text[:197]}..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _from_pretrained(path: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    try:
        with quiet_transformers():
            model, info = auto.from_pretrained(
                path,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                **{_dtype_argument(): dtype},
            )
    except Exception as error:
        # transformers, safetensors and huggingface_hub each raise their own kinds, and all mean: this is no model.
        damaged = type(error).__name__ == "SafetensorError"
        do = "the weights are damaged or cut off: get them again (in the cache: delete the folder)" if damaged else ""
        raise UserError(f"the model cannot be loaded ({first_line(error)})", where=str(path), do=do) from error
    for kind in ("missing_keys", "mismatched_keys"):
        if keys := sorted(str(key) for key in info.get(kind) or ()):
            words = f"the checkpoint has {len(keys)} {kind.replace('_', ' ')}, first {keys[0]}"
            raise UserError(words, where=str(path), do="is it complete, and of the architecture config.json names?")
    return model  # type: ignore[no-any-return]


def _dtype_argument() -> str:
    """Return ``dtype``, or the name it had before transformers 4.56; later versions warn of the old one."""
    import transformers
    from packaging.version import Version

    return "dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype"


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Switch off transformers' progress bars, and only for as long as this takes."""
    import transformers

    logging: Any = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
