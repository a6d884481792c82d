"""One attention call of a given shape, made the way a transformers decoder makes it, mask included.

The mask function that is registered beside the attention function runs too: a [B, 1, T, S] mask is often the largest
tensor of the call. Queries, keys and values are laid out as a decoder hands them over: views of the projections in a
prefill, the contiguous cache in decoding.

Shapes: B batch, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface, create_causal_mask

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    AttentionFunction = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """The shape of a causal call: the last ``length`` (T) rows of ``kv_length`` (S; ``None``: the same) positions.

    ``padded``: a 2-D mask is given whose first row has left padding, so that no mask can be left out.
    """

    length: int
    heads: int
    kv_heads: int
    head_dim: int
    batch: int = 1
    kv_length: int | None = None
    dtype: torch.dtype = torch.bfloat16
    padded: bool = False

    @property
    def keys(self) -> int:
        """Keys a row attends over at most (S)."""
        return self.length if self.kv_length is None else self.kv_length

    @property
    def groups(self) -> int:
        """Query heads to a key/value head."""
        return self.heads // self.kv_heads

    def __str__(self) -> str:
        rows = f"{self.length}" if self.keys == self.length else f"{self.length} of {self.keys}"
        padded = ", left padding" if self.padded else ""
        return (
            f"batch {self.batch}, {self.heads}/{self.kv_heads} heads, head_dim {self.head_dim}, length {rows}, "
            f"{str(self.dtype).removeprefix('torch.')}{padded}"
        )


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """The tensors of one call; ``cache`` only says how many positions came before."""

    query_BHTD: torch.Tensor
    key_BKSD: torch.Tensor
    value_BKSD: torch.Tensor
    hidden_BTE: torch.Tensor
    position_T: torch.Tensor
    position_1T: torch.Tensor
    padding_BS: torch.Tensor | None
    cache: Any

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors that exist before the call."""
        found = (self.query_BHTD, self.key_BKSD, self.value_BKSD, self.hidden_BTE, self.position_T, self.padding_BS)
        return tuple(tensor for tensor in found if tensor is not None)


def decoder(shape: AttentionShape) -> PreTrainedModel:
    """Return a Llama of one layer with the heads of ``shape``, on the meta device: it costs no memory."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=shape.heads * shape.head_dim,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=max(shape.keys, 2048),
    )
    with torch.device("meta"):
        model: PreTrainedModel = LlamaForCausalLM(config)
    model.train(False)
    return model


def make_inputs(shape: AttentionShape, *, device: str = "cpu", seed: int = 0) -> AttentionInputs:
    """Return standard-normal tensors of ``shape``; inside a FakeTensorMode they are fake ones."""
    fake = isinstance(torch.empty(0), FakeTensor)
    generator = None if fake else torch.Generator(device).manual_seed(seed)

    def made(*size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=shape.dtype, device=device, generator=generator)

    batch, past = shape.batch, shape.keys - shape.length
    padding = None
    if shape.padded:
        padding = torch.ones(batch, shape.keys, dtype=torch.int64, device=device)
        padding[0, : max(1, shape.keys // 8)] = 0
    query = made(batch, shape.length, shape.heads, shape.head_dim).transpose(1, 2)
    if past:
        keys = [made(batch, shape.kv_heads, shape.keys, shape.head_dim) for _ in range(2)]
    else:
        keys = [made(batch, shape.keys, shape.kv_heads, shape.head_dim).transpose(1, 2) for _ in range(2)]
    cache = DynamicCache()
    if past:
        # Only its length is read: one byte a position.
        slots = torch.empty(1, 1, past, 1, dtype=torch.bool, device=device)
        cache.update(slots, slots, 0)
    hidden = made(batch, shape.length, 1).expand(-1, -1, shape.heads * shape.head_dim)
    return AttentionInputs(query, keys[0], keys[1], hidden, *_positions(shape, device, fake=fake), padding, cache)


def _positions(shape: AttentionShape, device: str, *, fake: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of the query rows, [T] and as a view [1, T]."""
    position_T = torch.arange(shape.keys - shape.length, shape.keys, device=device)
    position_1T = position_T[None]
    if fake:
        # Mask functions read the first position; it is known here, so the fake tensor may have its values.
        with unset_fake_temporarily():
            position_T.constant = torch.arange(shape.keys - shape.length, shape.keys)  # type: ignore[attr-defined]
    return position_T, position_1T


def make_mask(model: PreTrainedModel, inputs: AttentionInputs) -> Any:
    """Return the mask that ``model``'s attention implementation is given: of the function registered for it."""
    known = {
        "config": model.config,
        "inputs_embeds": inputs.hidden_BTE,
        "input_embeds": inputs.hidden_BTE,  # the name of transformers 4
        "attention_mask": inputs.padding_BS,
        "cache_position": inputs.position_T,
        "past_key_values": inputs.cache,
        "cache": inputs.cache,  # the name of later versions of 5
        "position_ids": inputs.position_1T,
    }
    taken = inspect.signature(create_causal_mask).parameters
    with _padding_is_real(model, inputs):
        return create_causal_mask(**{name: value for name, value in known.items() if name in taken})


def attend(model: PreTrainedModel, inputs: AttentionInputs) -> torch.Tensor:
    """Make the mask, call the attention function of ``model``'s implementation, return its output [B, T, H, D]."""
    return attend_with(attention_function(model), model, inputs, make_mask(model, inputs))


def attend_with(
    function: AttentionFunction, model: PreTrainedModel, inputs: AttentionInputs, mask: Any
) -> torch.Tensor:
    """Call ``function`` as ``model``'s first layer calls it, with a mask that is there, and return [B, T, H, D]."""
    module = model.model.layers[0].self_attn
    output, _ = function(
        module,
        inputs.query_BHTD,
        inputs.key_BKSD,
        inputs.value_BKSD,
        mask,
        dropout=0.0,
        scaling=module.scaling,
    )
    return output


def attention_function(model: PreTrainedModel) -> AttentionFunction:
    """Return the function registered for ``model``'s attention implementation.

    Raises:
        UserError: there is none under that name ("eager" is no entry but a function of each modeling file).
    """
    name = model.config._attn_implementation
    registry: dict[str, Any] = dict(AttentionInterface._global_mapping)
    if name not in registry:
        raise UserError("no such attention implementation", where=repr(name), do="register it with transformers first")
    found: AttentionFunction = registry[name]
    return found


@contextmanager
def _padding_is_real(model: PreTrainedModel, inputs: AttentionInputs) -> Iterator[None]:
    """Tell the mask function that no mask can be left out, where it would find that in the values of the padding.

    Fake tensors have no values to read. The padding of :func:`make_inputs` is there, so the answer is known.
    """
    registry: dict[str, Any] = AttentionMaskInterface._global_mapping
    name = model.config._attn_implementation
    original = registry.get(name)
    with ExitStack() as stack:
        if original is not None and inputs.padding_BS is not None:
            registry[name] = lambda *args, **kwargs: original(*args, **{**kwargs, "allow_is_causal_skip": False})
            stack.callback(registry.__setitem__, name, original)
        yield
