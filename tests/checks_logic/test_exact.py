from __future__ import annotations

import threading

import pytest
import torch

from gaudi_validate.checks.exact import exact_mode

X = torch.rand(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
WHOLE = torch.tensor([1, 3])


@pytest.mark.parametrize(
    ("name", "cast"),
    [
        ("float()", X.float),
        ("to(dtype)", lambda: X.to(torch.float32)),
        ("to(dtype=)", lambda: X.to(dtype=torch.float32)),
        ("type", lambda: X.type(torch.float32)),
        ("softmax", lambda: torch.nn.functional.softmax(X, dim=-1, dtype=torch.float32)),
        ("sum", lambda: X.sum(dtype=torch.float32)),
        ("zeros_like", lambda: torch.zeros_like(X, dtype=torch.float32)),
        ("empty", lambda: torch.empty(2, dtype=torch.float32)),
        ("zeros without dtype", lambda: torch.zeros(2)),
        ("tensor without dtype", lambda: torch.tensor([0.1])),
        ("integers divided", lambda: WHOLE / 7),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_float32_becomes_float64_and_only_inside(name: str, cast: object) -> None:
    assert callable(cast)
    with exact_mode():
        assert cast().dtype == torch.float64, name
    assert cast().dtype == torch.float32, name


def test_values_keep_all_their_bits() -> None:
    with exact_mode():
        assert torch.equal(X.float(), X)
        assert torch.equal(WHOLE / 7, WHOLE.double() / 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int32, torch.bool])
def test_other_casts_are_left_alone(dtype: torch.dtype) -> None:
    with exact_mode():
        assert X.to(dtype).dtype == dtype
        assert X.bfloat16().dtype == torch.bfloat16


def test_bits_are_not_reinterpreted_otherwise() -> None:
    with exact_mode():
        assert torch.zeros(2, dtype=torch.int32).view(torch.float32).dtype == torch.float32


def test_nesting_and_errors_put_the_default_back() -> None:
    with exact_mode():
        with pytest.raises(RuntimeError, match="planted"), exact_mode():
            raise RuntimeError("planted")
        assert torch.get_default_dtype() == torch.float64
        assert X.float().dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
    assert X.float().dtype == torch.float32


def test_the_casts_of_another_thread_are_its_own() -> None:
    seen: list[torch.dtype] = []
    with exact_mode():
        thread = threading.Thread(target=lambda: seen.append(X.float().dtype))
        thread.start()
        thread.join()
    assert seen == [torch.float32]
