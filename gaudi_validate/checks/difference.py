"""How far two results are apart, where neither NaN nor infinity is lost on the way."""

from __future__ import annotations

import torch


def absolute_difference(expected: torch.Tensor, obtained: torch.Tensor) -> torch.Tensor:
    """Return |expected - obtained|: 0 where both are NaN or the same infinity, infinite where only one is."""
    difference = (expected - obtained).abs()
    same = (expected == obtained) | (expected.isnan() & obtained.isnan())
    return torch.where(same, 0.0, difference).nan_to_num(nan=torch.inf, posinf=torch.inf)


def off(expected: torch.Tensor, obtained: torch.Tensor, divergence: float) -> bool:
    """Return whether any entry differs by more than ``divergence`` times the RMS of what is expected."""
    return bool((absolute_difference(expected, obtained) > divergence * rms(expected)).any())


def rms(tensor: torch.Tensor) -> float:
    """Return the root mean square of the finite entries, 0 for none."""
    finite = tensor[tensor.isfinite()].double()
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
