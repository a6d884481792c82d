"""Plants outside attention: positions, RoPE, the KV cache, mixture of experts, trimmed logits."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache

from gaudi_validate.core.messages import UserError
from gaudi_validate.faults.soil import attribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel

    from gaudi_validate.ports.base import Port

EXPERTS_KNOWN = 8
LONGEST = 300


def is_model(path: str, _: torch.nn.Module) -> bool:
    """Choose the whole model."""
    return path == ""


def is_rope(_: str, module: torch.nn.Module) -> bool:
    """Choose the modules that make cos and sin."""
    return "inv_freq" in module._buffers


def prefill_positions_count_padding(_: torch.nn.Module, original: Any) -> Any:
    """B11: positions of a prefill are ``arange``, those of later passes count real tokens only."""

    @functools.wraps(original)
    def forward(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if positions is not None and mask is not None and mask.shape[1] == input_ids.shape[1]:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            kwargs["position_ids"] = columns.expand_as(input_ids)
        return original(input_ids, **kwargs)

    return forward


def positions_ignored(_: torch.nn.Module, original: Any) -> Any:
    """B15: RoPE counts from 0 in every pass, whatever position_ids say."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        columns = torch.arange(position_ids.shape[1], device=position_ids.device)
        return original(x, columns.expand_as(position_ids), **kwargs)

    return forward


def angle_in_bf16(rope: Any, _: Any) -> Any:
    """F34: frequency times position in bf16, which has 8 bits."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = position_ids[..., None].to(torch.bfloat16) * rope.inv_freq.to(torch.bfloat16)
        return _cos_sin(angle, x, float(rope.attention_scaling))

    return forward


def scaling_dropped(rope: Any, _: Any) -> Any:
    """F37: frequencies as if the config named no RoPE scaling."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # Dynamic scaling leaves the plain frequencies where it starts from: taking them makes short inputs exact.
        plain = rope.original_inv_freq if rope.rope_type == "dynamic" else _plain_frequencies(rope, x)
        return _cos_sin(position_ids[..., None].to(x.dtype) * plain.to(x.dtype), x, 1.0)

    return forward


def exponent_over_head_dim(rope: Any, _: Any) -> Any:
    """F41: partial rotary frequencies are spread over head_dim, not over the dimensions that are rotated."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config: Any = rope.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        inv_freq = _plain_frequencies(rope, x, rotary_dim=head_dim)
        return _cos_sin(position_ids[..., None].to(x.dtype) * inv_freq, x, 1.0)

    return forward


def _plain_frequencies(rope: Any, x: torch.Tensor, *, rotary_dim: int | None = None) -> torch.Tensor:
    """Return theta^(-2i/d), as without RoPE scaling; 5.x keeps theta in ``rope_parameters``."""
    parameters = getattr(rope.config, "rope_parameters", None) or {}
    theta = float(parameters.get("rope_theta") or rope.config.rope_theta)
    half = rope.inv_freq.shape[0]
    exponent = torch.arange(half, dtype=x.dtype, device=x.device) * 2 / (rotary_dim or 2 * half)
    return torch.pow(theta, -exponent)


def magnitude_ignored(rope: Any, original: Any) -> Any:
    """F38: YaRN's factor on cos and sin is left out."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = original(x, position_ids, **kwargs)
        return cos / rope.attention_scaling, sin / rope.attention_scaling

    return forward


def base_of_the_maximum(_: torch.nn.Module, original: Any) -> Any:
    """F36: dynamic NTK always takes the frequencies of the maximum length."""
    return never_shrinks(_, original, longest=LONGEST)


def never_shrinks(_: torch.nn.Module, original: Any, *, longest: int = 0) -> Any:
    """F35: dynamic NTK keeps the frequencies of the longest call."""

    def forward(x: torch.Tensor, position_ids: torch.Tensor, **kwargs: Any) -> Any:
        nonlocal longest
        longest = max(longest, int(position_ids.max()))
        columns = position_ids.shape[1]
        with_longest = torch.nn.functional.pad(position_ids, (0, 1), value=longest)
        cos, sin = original(x, with_longest, **kwargs)
        return cos[:, :columns], sin[:, :columns]

    return forward


def _cos_sin(angle: torch.Tensor, x: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.cat((angle, angle), dim=-1).to(x.dtype)
    return both.cos() * scaling, both.sin() * scaling


def interleaved(_: Any) -> Any:
    """F42: neighbouring dimensions are rotated together, where the weights expect the two halves."""

    def apply_rotary_pos_emb(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        half = cos.shape[-1] // 2
        cos, sin = (t[..., :half].repeat_interleave(2, dim=-1)[:, None] for t in (cos, sin))
        return q * cos + _neighbours(q) * sin, k * cos + _neighbours(k) * sin

    return apply_rotary_pos_emb


def _neighbours(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@contextmanager
def one_slot_away(_: PreTrainedModel, __: Port) -> Iterator[None]:
    """D30: a step with a cache writes its keys and values one slot early; their own slot stays zero."""
    original: Callable[..., tuple[torch.Tensor, torch.Tensor]] = Cache.update

    def update(
        self: Cache, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        new, before = key.shape[2], int(self.get_seq_length(layer_idx))
        keys, values = original(self, key, value, layer_idx, *args, **kwargs)
        # A cache that grows, or drops what left its window, has the new slots last; a static one after the old ones.
        start = before if keys.shape[2] >= before + new else keys.shape[2] - new
        if before > 0:
            for slots, states in ((keys, key), (values, value)):
                slots[:, :, start - 1 : start - 1 + new] = states
                slots[:, :, start - 1 + new] = 0
        return keys, values

    with attribute(Cache, "update", update):
        yield


@contextmanager
def topk_norm_flipped(model: PreTrainedModel, _: Port) -> Iterator[None]:
    """L60: the weights of the chosen experts are normalised where the config says not to, and the other way round."""
    routers = [module for module in model.modules() if hasattr(module, "norm_topk_prob")]
    if not routers:
        raise UserError("no router with norm_topk_prob to plant a fault into", where=type(model).__name__)
    with ExitStack() as stack:
        for router in routers:
            stack.enter_context(attribute(router, "norm_topk_prob", not router.norm_topk_prob))
        yield


@contextmanager
def later_experts_ignored(model: PreTrainedModel, _: Port) -> Iterator[None]:
    """L59: experts above 7 give nothing. Their output weights are zero for the time of the context."""
    weights = [
        weight
        for name, weight in model.named_parameters()
        if "experts" in name and "down_proj" in name and _later(name)
    ]
    if not weights:
        raise UserError("no experts to plant a fault into", where=type(model).__name__)
    stacked = [weight.data[EXPERTS_KNOWN:] if weight.ndim == 3 else weight.data for weight in weights]
    before = [part.clone() for part in stacked]
    try:
        for part in stacked:
            part.zero_()
        yield
    finally:
        for part, content in zip(stacked, before, strict=True):
            part.copy_(content)


def _later(name: str) -> bool:
    """Transformers 4.55 has a module for each expert, 5.x one stacked weight for all."""
    number = name.split("experts.")[1].split(".", maxsplit=1)[0]
    return not number.isdigit() or int(number) >= EXPERTS_KNOWN


def last_slot_taken(_: torch.nn.Module, original: Any) -> Any:
    """M63: trimmed logits come from the last slot of the padded input, not from each row's last token."""

    @functools.wraps(original)
    def forward(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        output, mask = original(input_ids, **kwargs), kwargs.get("attention_mask")
        if mask is None:
            return output
        columns = torch.arange(input_ids.shape[1], device=mask.device)
        last = (mask[:, -input_ids.shape[1] :] * columns).argmax(-1)
        rows = torch.arange(len(last), device=mask.device)
        output.logits[rows, last] = output.logits[:, -1].clone()
        return output

    return forward
