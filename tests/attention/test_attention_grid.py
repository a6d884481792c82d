"""Every implementation against the plain computation of dense.py, in fp64, forward and backward."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gaudi_validate.attention import fused, kernels, online_softmax, sliced
from gaudi_validate.attention.fused import fused_attention
from gaudi_validate.attention.naive import naive_attention
from gaudi_validate.attention.sliced import sliced_attention

from .dense import GRID, Case, expected, weight

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT = 1e-12


def sliced_with(rows: int, kernel: str) -> Callable[..., Any]:
    return lambda *a, **k: sliced_attention(*a, **k, q_block_size=rows, block_kernel=kernel)


def fused_with(rows: int, keys: int, *, recompute: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        plan = online_softmax.Plan
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fused, "Plan", lambda **k: plan(**k, q_block_size=rows, k_block_size=keys))
            return fused_attention(*args, **kwargs, recompute=recompute)

    return run


VARIANTS: dict[str, Callable[..., Any]] = {
    "naive": naive_attention,
    "sliced 1": sliced_with(1, "auto"),
    "sliced 4": sliced_with(4, "auto"),
    "sliced 1024": sliced_with(1024, "auto"),
    "sliced 4 matmul": sliced_with(4, "matmul"),
    "sliced 5 matmul": sliced_with(5, "matmul"),
    "sliced 1024 matmul": sliced_with(1024, "matmul"),
    "fused 1024 512": fused_with(1024, 512, recompute=True),
    "fused 4 3": fused_with(4, 3, recompute=True),
    "fused 5 4, kept": fused_with(5, 4, recompute=False),
}


def supports(variant: str, case: Case) -> bool:
    return not (variant.startswith("fused") and (case.softcap or case.sinks))


def attention(variant: str, case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return [B, T, H, D]; rows that see nothing are set to 0, since naive attention has a mean there."""
    out = VARIANTS[variant](torch.nn.Module(), q, k, v, case.make_mask(), **case.kwargs())[0]
    assert isinstance(out, torch.Tensor)
    assert bool(torch.isfinite(out).all())
    empty = ~case.allowed().any(dim=-1).transpose(1, 2)[..., None]
    return out.masked_fill(empty, 0) if variant == "naive" or case.mask == "additive" else out


def forward_error(variant: str, case: Case) -> float:
    with torch.no_grad():
        return worst([attention(variant, case, *case.inputs())], expected(case)[:1])


def backward_error(variant: str, case: Case) -> float:
    inputs = [x.detach().requires_grad_() for x in case.inputs()]
    got = attention(variant, case, inputs[0], inputs[1], inputs[2])
    return worst([got, *torch.autograd.grad(got, inputs, weight(got))], expected(case))


def worst(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """Return the largest difference; NaN and a wrong shape or layout count as infinite."""
    assert all(g.shape == e.shape for g, e in zip(got, wanted, strict=True))
    error = max(float((g - e).detach().abs().max()) for g, e in zip(got, wanted, strict=True))
    return float("inf") if math.isnan(error) else error


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_is_the_plain_computation(variant: str) -> None:
    errors = {case: forward_error(variant, case) for case in GRID if supports(variant, case)}
    assert len(errors) >= 80
    assert {case: error for case, error in errors.items() if error > LIMIT} == {}


@pytest.mark.parametrize("variant", VARIANTS)
def test_backward_is_the_gradient_of_the_plain_computation(variant: str) -> None:
    errors = {case: backward_error(variant, case) for case in GRID if supports(variant, case)}
    assert {case: error for case, error in errors.items() if error > LIMIT} == {}


@pytest.mark.parametrize("mask", ["rule", "bool"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "naive"])
def test_nan_in_unused_slots_stays_unseen(variant: str, mask: str) -> None:
    for t, past in ((7, 0), (1, 6), (3, 4)):
        case = Case(t=t, past=past, tail=5, padding=(3, 0), mask=mask)
        q, k, v = case.inputs()
        wanted = expected(case)[:1]
        for x in (k, v):
            x[:, :, past + t :] = float("nan")
            x[0, :, :3] = float("nan")  # left padding of batch row 0
        with torch.no_grad():
            assert worst([attention(variant, case, q, k, v)], wanted) <= LIMIT
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        grads = torch.autograd.grad(attention(variant, case, inputs[0], inputs[1], inputs[2]).sum(), inputs)
        assert all(bool(torch.isfinite(g).all()) for g in grads)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtype_and_layout_of_the_output_are_those_of_eager(variant: str, dtype: torch.dtype) -> None:
    case = Case(t=6, past=2, padding=(3, 0))
    out = VARIANTS[variant](torch.nn.Module(), *case.inputs(dtype), case.make_mask(dtype))[0]
    assert (out.dtype, tuple(out.shape), out.is_contiguous()) == (dtype, (2, 6, 4, 8), True)


def test_bidirectional_attention_without_a_mask() -> None:
    case = Case(t=5, past=4, mask="none")
    q, k, v = case.inputs()
    module: Any = torch.nn.Module()
    module.is_causal = False
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
    for variant in VARIANTS.values():
        assert worst([variant(module, q, k, v, None)[0]], [plain]) <= LIMIT
        module.is_causal = True
        assert worst([variant(module, q, k, v, None, is_causal=False)[0]], [plain]) <= LIMIT
        module.is_causal = False


def test_an_additive_bias_is_added_where_the_kernel_takes_one() -> None:
    case = Case(t=6, past=3, mask="additive")
    q, k, v = case.inputs()
    bias = torch.linspace(-2, 1, 4 * 6 * 9, dtype=torch.float64).reshape(1, 4, 6, 9)
    mask = case.make_mask()
    assert mask is not None
    wanted = naive_attention(torch.nn.Module(), q, k, v, mask + bias)[0]
    for variant in VARIANTS.values():
        assert worst([variant(torch.nn.Module(), q, k, v, mask + bias)[0]], [wanted]) <= LIMIT


def test_rows_are_never_more_than_the_block_size() -> None:
    seen: list[int] = []
    case = Case(t=11, mask="none")
    q, k, v = case.inputs()
    original = kernels.attend

    def attend(*args: Any) -> torch.Tensor:
        seen.append(args[1].shape[2])
        return original(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliced, "attend", attend)
        sliced_attention(torch.nn.Module(), q, k, v, None, q_block_size=4, block_kernel="matmul")
    assert seen == [4, 4, 3]


def row_errors(out: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return (out.double() - reference).square().mean(dim=-1).sqrt()


def low_precision(variant: str, dtype: torch.dtype) -> tuple[float, float]:
    """Return G and W, as precision parity defines them, of one call with mild scores: 8 heads / 2, head_dim 64."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn((1, h, 96, 64), generator=generator).to(dtype) for h in (8, 2, 2))
    plain = torch.nn.functional.scaled_dot_product_attention
    reference = plain(q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True).transpose(1, 2)
    with torch.no_grad():
        outs = (VARIANTS[name](torch.nn.Module(), q, k, v, None)[0] for name in ("naive", variant))
        naive, own = (row_errors(out, reference) for out in outs)
    floor = 2.0 ** -{torch.bfloat16: 8, torch.float16: 11}[dtype] * reference.square().mean(dim=-1).sqrt()
    g = own.square().mean().sqrt() / torch.maximum(naive.square().mean().sqrt(), floor.square().mean().sqrt())
    return float(g), float((own / torch.maximum(naive, floor)).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "naive"])
def test_low_precision_is_no_worse_than_naive(variant: str, dtype: torch.dtype) -> None:
    g, w = low_precision(variant, dtype)
    assert g <= 1.25
    assert w <= 3


def test_a_share_rounded_to_bf16_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    lerp = torch.lerp
    monkeypatch.setattr(torch, "lerp", lambda a, b, share: lerp(a, b, share.bfloat16().float()))
    assert low_precision("sliced 4", torch.bfloat16)[1] > 3
