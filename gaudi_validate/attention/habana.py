"""The one place that looks for the fused kernel of a real Gaudi, ``habana_frameworks.torch.hpex.kernels.FusedSDPA``.

Interface from Gaudi's public documentation and from public ports that call it; no source of the vendor was read.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

FusedKernel = Callable[..., Any]


def fused_kernel() -> FusedKernel | None:
    """Return ``FusedSDPA.apply`` where habana_frameworks has it, else ``None``.

    A habana_frameworks that is installed and cannot be imported is an error, not an absence: it is raised.
    """
    if importlib.util.find_spec("habana_frameworks") is None:
        return None
    kernels = importlib.import_module("habana_frameworks.torch.hpex.kernels")
    kernel: FusedKernel = kernels.FusedSDPA.apply
    return kernel
