"""Exact mode: run a model in fp64 without the fp32 islands that models contain.

Norms, RoPE and softmax upcast to fp32 whatever the model's dtype, which in an fp64 run is a downcast that leaves 1e-6
of noise: as much as a small logic fault. In exact mode these casts go to fp64, and correct paths agree to 1e-14.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Reinterprets bits; with another dtype it would mean other numbers, not more exact ones.
_LEFT_ALONE = frozenset({torch.Tensor.view})
# The default dtype belongs to the process, so one thread at a time may be in exact mode.
_LOCK = threading.RLock()


class _Float32AsFloat64(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LEFT_ALONE:
            return func(*args, **kwargs)
        if func is torch.Tensor.float:
            return torch.Tensor.double(*args, **kwargs)
        return func(
            *(torch.float64 if a is torch.float32 else a for a in args),
            **{k: torch.float64 if v is torch.float32 else v for k, v in kwargs.items()},
        )


@contextmanager
def exact_mode() -> Iterator[None]:
    """Turn every request for float32 into one for float64 for the time of the context.

    That is ``.float()``, ``.to(torch.float32)``, ``softmax(dtype=torch.float32)``, factories with that dtype, and,
    through the default dtype, factories with none and integers divided. Casts to bf16 and fp16 are left alone: they
    are faults that must stay visible. The mode holds for this thread; the default dtype is the process's, so other
    threads that want exact mode wait. Nesting is fine.
    """
    with _LOCK:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Float32AsFloat64():
                yield
        finally:
            torch.set_default_dtype(before)
