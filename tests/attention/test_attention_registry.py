"""Names, variants and users' functions in transformers' two registries."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AttentionInterface, AttentionMaskInterface

from gaudi_validate.attention.masks import blockwise_mask
from gaudi_validate.attention.registry import NAMES, ensure, register
from gaudi_validate.core.messages import UserError

from .dense import OLD, Case

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTENTION: dict[str, Any] = vars(AttentionInterface)["_global_mapping"]
MASK: dict[str, Any] = vars(AttentionMaskInterface)["_global_mapping"]


@pytest.fixture(autouse=True)
def _registries_as_before() -> Iterator[None]:
    attention, mask = dict(ATTENTION), dict(MASK)
    yield
    for mapping, before in ((ATTENTION, attention), (MASK, mask)):
        mapping.clear()
        mapping.update(before)


def test_every_name_is_in_both_registries() -> None:
    register()
    register()
    assert NAMES == ("naive", "hpu_sliced", "hpu_fused")
    assert all(name in ATTENTION and name in MASK for name in NAMES)
    assert MASK["naive"] is MASK["eager"]
    assert MASK["hpu_sliced"] is MASK["hpu_fused"] is blockwise_mask


def test_what_has_taken_the_place_of_a_function_stays() -> None:
    register()
    ATTENTION["hpu_sliced"] = stand_in = object()
    assert ensure("hpu_sliced") == "hpu_sliced"
    assert ATTENTION["hpu_sliced"] is stand_in


@pytest.mark.parametrize("name", [*NAMES, "eager", "sdpa", "flash_attention_2"])
def test_known_names_are_returned(name: str) -> None:
    assert ensure(name) == name


def test_a_variant_is_registered_under_exactly_its_name() -> None:
    spec = "hpu_sliced[q_block_size=8, block_kernel=matmul]"
    assert ensure(spec) == spec
    assert ATTENTION[spec].keywords == {"q_block_size": 8, "block_kernel": "matmul"}
    assert MASK[spec] is blockwise_mask
    assert ATTENTION[ensure("hpu_fused[recompute=false,softmax_mode=fast]")].keywords == {
        "recompute": False,
        "softmax_mode": "fast",
    }


@pytest.fixture
def user_module() -> Iterator[ModuleType]:
    module = ModuleType("users_attention")
    exec("def attend(*a, **k): ...\ndef masked(*a, **k): ...\nattend.x = 1\nnumber = 7", vars(module))
    sys.modules["users_attention"] = module
    yield module
    del sys.modules["users_attention"]


def test_a_users_function_gets_its_own_mask_function_or_the_one_of_sdpa(user_module: ModuleType) -> None:
    spec = "users_attention:attend"
    assert ensure(spec) == spec
    assert ATTENTION[spec] is user_module.attend
    assert MASK[spec] is MASK["sdpa"]


@pytest.mark.parametrize("owner", ["function", "module"])
def test_a_users_mask_function_is_found(user_module: ModuleType, owner: str) -> None:
    holder = user_module.attend if owner == "function" else user_module
    vars(holder)["mask_function"] = user_module.masked
    assert MASK[ensure("users_attention:attend")] is user_module.masked


KNOWN = ", ".join(
    dict.fromkeys([*NAMES, "eager", *(name for name in ATTENTION if name not in NAMES and "[" not in name)])
)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("naive[x=1]", "unknown attention option: 'x' in 'naive[x=1]'; the options are none"),
        (
            "hpu_sliced[rows=1]",
            "unknown attention option: 'rows' in 'hpu_sliced[rows=1]'; the options are q_block_size, block_kernel",
        ),
        (
            "hpu_sliced[q_block_size=0]",
            "wrong attention option: 'q_block_size=0' in 'hpu_sliced[q_block_size=0]'; give a whole number above 0",
        ),
        (
            "hpu_sliced[q_block_size]",
            "wrong attention option: 'q_block_size' in 'hpu_sliced[q_block_size]'; give a whole number above 0",
        ),
        (
            "hpu_sliced[block_kernel=fast]",
            "wrong attention option: 'block_kernel=fast' in 'hpu_sliced[block_kernel=fast]'; "
            "give one of auto, sdpa, matmul",
        ),
        (
            "hpu_fused[recompute=maybe]",
            "wrong attention option: 'recompute=maybe' in 'hpu_fused[recompute=maybe]'; give one of true, false",
        ),
        (
            "no_such_package:attend",
            "cannot import the attention function: 'no_such_package:attend'; "
            "check it: No module named 'no_such_package'",
        ),
        (
            "users_attention:missing",
            "cannot import the attention function: 'users_attention:missing'; "
            "check it: module 'users_attention' has no attribute 'missing'",
        ),
        ("users_attention:number", "the attention function is not callable: 'users_attention:number'; name a function"),
    ],
)
def test_one_line_for_what_cannot_be_found(user_module: ModuleType, spec: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        ensure(spec)
    assert str(error.value) == message
    assert spec not in ATTENTION


@pytest.mark.parametrize("spec", ["hpu_slice", "hpu_slice[q_block_size=8]"])
def test_an_unknown_name(spec: str) -> None:
    with pytest.raises(UserError) as error:
        ensure(spec)
    what, _, do = str(error.value).partition("; ")
    assert what == "unknown attention implementation: 'hpu_slice'"
    assert do.startswith("use pkg.module:function or one of naive, hpu_sliced, hpu_fused, eager, ")


def test_a_registered_function_runs() -> None:
    import torch

    out = ATTENTION[ensure("hpu_sliced[q_block_size=3]")](torch.nn.Module(), *Case(t=4, mask="none").inputs(), None)[0]
    assert tuple(out.shape) == (2, 4, 4, 8)


@pytest.mark.skipif(OLD, reason="transformers 4.55 takes any name")
def test_a_name_that_transformers_would_take_for_its_own_is_refused() -> None:
    with pytest.raises(UserError) as error:
        ensure("port.flash:attend")
    assert str(error.value) == (
        "transformers takes an attention name with 'flash' in it for one of its own flash attention kernels: "
        "'port.flash:attend'; import the function under another name, and give that"
    )
