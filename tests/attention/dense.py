"""An attention written for nothing but being plainly right, and the cases that every implementation is held to.

Shapes: B batch rows, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionMaskInterface, masking_utils

from gaudi_validate.attention.masks import blockwise_mask

MASKS: dict[str, Any] = dict(AttentionMaskInterface._global_mapping)
OLD = "cache_position" in inspect.signature(masking_utils.sdpa_mask).parameters


@dataclass(frozen=True, kw_only=True)
class Case:
    """T queries of which the first stands at position ``past``; ``tail`` unused keys after the last query's own.

    ``padding``: how many keys of each of the two batch rows are padding, on the left, or on the right if negative.
    ``mask``: the form in which it is passed.
    """

    t: int
    past: int = 0
    tail: int = 0
    heads: tuple[int, int] = (4, 2)
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None
    padding: tuple[int, int] = (0, 0)
    mask: str = "rule"
    layout: str = "contiguous"

    @property
    def s(self) -> int:
        return self.past + self.t + self.tail

    def padding_mask(self) -> torch.Tensor | None:
        """Return bool [B, past + T], or nothing."""
        if self.padding == (0, 0):
            return None
        column = torch.arange(self.past + self.t)
        return torch.stack([column >= n if n >= 0 else column < len(column) + n for n in self.padding])

    @functools.cache  # noqa: B019 - a few cases, kept on purpose
    def allowed(self) -> torch.Tensor:
        """Return bool [B, 1, T, S], written down from the definition."""
        allowed = torch.zeros(2, 1, self.t, self.s, dtype=torch.bool)
        real = self.padding_mask()
        for row in range(2):
            for t in range(self.t):
                here = self.past + t
                first = 0 if self.window is None else max(0, here - self.window + 1)
                for key in range(first, here + 1):
                    allowed[row, 0, t, key] = real is None or bool(real[row, key])
        return allowed

    def inputs(self, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return query [B, H, T, D], key and value [B, K, S, D] with sharp scores, in the case's memory layout."""
        generator = torch.Generator().manual_seed(7)
        (h, k), d = self.heads, 8
        q = torch.randn(2, self.t, h, d, generator=generator, dtype=torch.float64) * 2
        key, value = (torch.randn(2, self.s, k, d, generator=generator, dtype=torch.float64) for _ in range(2))
        made = [x.to(dtype).transpose(1, 2) for x in (q, key, value)]
        if self.layout == "contiguous":
            made = [x.contiguous() for x in made]
        if self.layout == "expanded":  # one sequence for both batch rows, without a copy
            made = [x[:1].expand(2, -1, -1, -1) for x in made]
        if self.layout == "sliced":  # the front of longer rows, as a cache hands them out
            made = [torch.cat([x, x], dim=-1)[..., :d] for x in made]
        return made[0], made[1], made[2]

    def sinks_h(self) -> torch.Tensor | None:
        return torch.linspace(-1, 2, self.heads[0], dtype=torch.float64) if self.sinks else None

    def kwargs(self) -> dict[str, Any]:
        return {"scaling": self.scale, "softcap": self.softcap, "s_aux": self.sinks_h(), "sliding_window": self.window}

    def make_mask(self, dtype: torch.dtype = torch.float64) -> torch.Tensor | None:
        """Return the mask as transformers makes it for an implementation that takes this form."""
        if self.mask == "none":
            assert self.tail == 0
            assert self.padding == (0, 0)
            return None
        makers = {"rule": blockwise_mask, "bool": masking_utils.sdpa_mask, "additive": MASKS["eager"]}
        function = masking_utils.causal_mask_function
        if self.window is not None:
            function = masking_utils.sliding_window_causal_mask_function(self.window)
        made: torch.Tensor | None = makers[self.mask](
            batch_size=2,
            kv_length=self.s,
            mask_function=function,
            attention_mask=self.padding_mask(),
            allow_is_causal_skip=False,
            dtype=dtype,
            **positions(self.t, self.past),
        )
        return made


def positions(t: int, past: int, *, on_device: bool = False) -> dict[str, Any]:
    """Return the query positions as this version of transformers passes them to a mask function."""
    if OLD:
        return {"cache_position": torch.arange(past, past + t)}
    return {"q_length": t, "q_offset": torch.tensor(past) if on_device else past, "use_vmap": False}


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case) -> torch.Tensor:
    """Return [B, T, H, D]; rows that see nothing are 0. One head and one row at a time, exponentials by hand."""
    allowed, (h, kv), sinks = case.allowed(), case.heads, case.sinks_h()
    scale = q.shape[-1] ** -0.5 if case.scale is None else case.scale
    rows = []
    for row in range(2):
        heads = []
        for head in range(h):
            own_k, own_v = k[row, head // (h // kv)], v[row, head // (h // kv)]
            for t in range(case.t):
                seen = allowed[row, 0, t].nonzero()[:, 0]
                logits = own_k[seen] @ q[row, head, t] * scale
                if case.softcap is not None:
                    logits = case.softcap * (logits / case.softcap).tanh()
                exponentials = (logits - 30).exp()
                total = exponentials.sum() + (0 if sinks is None else (sinks[head] - 30).exp())
                heads.append(exponentials @ own_v[seen] / total if len(seen) else own_v[0] * 0)
        rows.append(torch.stack(heads).reshape(h, case.t, -1))
    return torch.stack(rows).transpose(1, 2)


GRID: tuple[Case, ...] = (
    *(Case(t=t, mask="none", heads=heads) for t in (1, 13) for heads in ((4, 2), (4, 1), (3, 3), (6, 2))),
    *(
        Case(t=t, past=past, mask=m)
        for t, past in ((1, 9), (5, 9), (13, 1))
        for m in ("none", "rule", "bool", "additive")
    ),
    *(
        Case(t=t, past=past, window=w, mask=m)
        for t, past in ((13, 0), (3, 9), (1, 9))
        for w in (1, 4, 10, 99)
        for m in ("none", "rule")
    ),
    *(Case(t=13, softcap=2.0, mask=m) for m in ("none", "rule", "additive")),
    *(Case(t=t, past=4, sinks=True, heads=(6, 2), mask=m) for t in (1, 9) for m in ("none", "rule")),
    Case(t=9, softcap=1.5, sinks=True, window=4, padding=(3, 0)),
    *(Case(t=9, scale=s, mask="none") for s in (0.1, 1.0)),
    *(
        Case(t=t, past=past, padding=p, mask=m)
        for t, past in ((11, 0), (1, 10), (4, 7))
        for p in ((5, 0), (0, 8), (-3, 0), (-2, 4))
        for m in ("rule", "bool", "additive")
        if not (m == "additive" and t == 1)
    ),
    *(Case(t=11, window=3, padding=p) for p in ((5, 0), (-4, 2))),
    *(
        Case(t=t, past=past, tail=6, window=w, padding=p, mask=m)
        for t, past in ((7, 0), (1, 8), (3, 5))
        for w in (None, 4)
        for p in ((0, 0), (3, 0))
        for m in ("rule", "bool")
    ),
    *(Case(t=t, past=3, layout=layout, mask="none") for t in (1, 9) for layout in ("transposed", "expanded", "sliced")),
)


@functools.cache
def expected(case: Case) -> tuple[torch.Tensor, ...]:
    """Return the output of :func:`dense` and the gradients of its sum weighted by :func:`weight`."""
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in case.inputs()]
        out = dense(inputs[0], inputs[1], inputs[2], case)
        return (out.detach(), *torch.autograd.grad(out, inputs, weight(out)))


def weight(out: torch.Tensor) -> torch.Tensor:
    """Return the gradient that is sent back through an output: no two elements alike."""
    return torch.sin(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
