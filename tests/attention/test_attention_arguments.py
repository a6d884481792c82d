"""What may change the numbers is used or refused by name; the messages are asserted whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gaudi_validate.attention.arguments import HARMLESS, REJECTED, UnsupportedArgument
from gaudi_validate.attention.fused import fused_attention, fused_sdpa
from gaudi_validate.attention.naive import naive_attention
from gaudi_validate.attention.sliced import sliced_attention
from gaudi_validate.core.messages import UserError

from .dense import Case

FUNCTIONS: dict[str, Any] = {"naive": naive_attention, "hpu_sliced": sliced_attention, "hpu_fused": fused_attention}
ANY = torch.ones(2, 3)
VARLEN = "pass position_ids that restart at each packed sequence, without a cache and without an attention_mask"


def call(name: str, **kwargs: Any) -> torch.Tensor:
    out = FUNCTIONS[name](torch.nn.Module(), *Case(t=4, mask="none").inputs(), None, **kwargs)[0]
    assert isinstance(out, torch.Tensor)
    return out


def message(name: str, **kwargs: Any) -> str:
    with pytest.raises(UnsupportedArgument) as error:
        call(name, **kwargs)
    assert isinstance(error.value, ValueError)
    assert isinstance(error.value, UserError)
    return str(error.value)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    ("kwargs", "end"),
    [
        (
            {"position_bias": ANY},
            "position_bias: a tensor of shape (2, 3); use attn_implementation='eager', "
            "or add it to a 4-D additive attention_mask",
        ),
        ({"head_mask": ANY}, "head_mask: a tensor of shape (2, 3); use attn_implementation='eager'"),
        ({"cu_seq_lens_q": ANY}, f"cu_seq_lens_q: a tensor of shape (2, 3); {VARLEN}"),
        ({"max_length_k": 7}, f"max_length_k: 7; {VARLEN}"),
        ({"sinks": ANY}, "sinks: a tensor of shape (2, 3); pass one sink a head as s_aux"),
        (
            {"relative_slopes": ANY},
            "relative_slopes: a tensor of shape (2, 3); leave it out, or use attn_implementation='eager' "
            "if that knows it",
        ),
        (
            {"temperature": 0.5},
            "temperature: 0.5; leave it out, or use attn_implementation='eager' if that knows it",
        ),
    ],
)
def test_what_would_change_the_numbers_is_refused(name: str, kwargs: dict[str, Any], end: str) -> None:
    assert message(name, **kwargs) == f"attention implementation {name!r} does not support {end}"


def test_dropout_is_for_naive_only() -> None:
    for name in ("hpu_sliced", "hpu_fused"):
        assert message(name, dropout=0.1) == (
            f"attention implementation {name!r} does not support dropout: 0.1; "
            "set attention_dropout=0.0, or use attn_implementation='naive'"
        )
    assert call("naive", dropout=0.1).shape == (2, 4, 4, 8)


def test_softcap_and_sinks_are_refused_by_kernels_without_them() -> None:
    assert message("hpu_fused", softcap=30.0) == (
        "attention implementation 'hpu_fused' does not support softcap; use attn_implementation='hpu_sliced'"
    )
    assert message("hpu_fused", s_aux=torch.zeros(4)) == (
        "attention implementation 'hpu_fused' does not support s_aux; use attn_implementation='hpu_sliced'"
    )
    assert message("hpu_sliced", softcap=30.0, block_kernel="sdpa") == (
        "attention implementation 'hpu_sliced' does not support softcap with block_kernel='sdpa'; "
        "use block_kernel='auto' or 'matmul'"
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_changes_nothing_is_taken(name: str) -> None:
    plain = call(name)
    assert torch.equal(call(name, **dict.fromkeys(HARMLESS, ANY)), plain)
    assert torch.equal(call(name, **dict.fromkeys(REJECTED), unheard_of=None), plain)
    assert torch.equal(call(name, unheard_of=True, output_attentions=False, is_causal=True), plain)


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        (
            {"dropout_p": 0.1},
            "FusedSDPA outside of an HPU does not support dropout_p: 0.1; pass 0.0",
        ),
        ({"softmax_mode": "slow"}, "unknown softmax_mode of FusedSDPA: 'slow'; use one of 'None', 'fast', 'fp32'"),
        ({"padding_side": "top"}, "unknown padding_side of FusedSDPA: 'top'; use 'left' or 'right'"),
        (
            {"is_causal": True, "attn_mask": torch.ones(2, 1, 4, 4, dtype=torch.bool)},
            "FusedSDPA takes attn_mask or is_causal: both were given; put the triangle in the mask",
        ),
        (
            {"valid_seq_len": torch.tensor([2, 3]), "attn_mask": torch.ones(2, 1, 4, 4, dtype=torch.bool)},
            "FusedSDPA takes attn_mask or valid_seq_len: both were given; leave out one",
        ),
    ],
)
def test_arguments_of_fused_sdpa(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError) as error:
        fused_sdpa(*Case(t=4, mask="none").inputs(), **kwargs)
    assert str(error.value) == text
