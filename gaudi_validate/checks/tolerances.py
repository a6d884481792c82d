"""The constants of parity rules, each with the calibration that set it. An unknown dtype is an error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogicTolerance:
    """Limits of logic parity in one dtype.

    ``limit``: worst |Δlogit| in standard deviations of the reference's logits. ``divergence``: an intermediate result
    that is off by more than this times its own RMS has diverged; it only decides where a failure is located.
    """

    limit: float
    divergence: float


# float64: calibrated on the tiny models over the whole matrix, transformers 4.55.4 and 5.24: correct paths (sdpa,
# naive, hpu_sliced, hpu_fused) stay below 1e-13, the smallest fault of the catalogue shows 1e-3.
# float32 is for devices without fp64: casts in norms, RoPE and softmax leave about 1e-6 there.
LOGIC: dict[str, LogicTolerance] = {
    "float64": LogicTolerance(limit=1e-9, divergence=1e-10),
    "float32": LogicTolerance(limit=1e-4, divergence=1e-5),
}

# Keys whose attention probability is off by more than this share of the worst one count as its key range.
KEY_RANGE_SHARE = 0.1


def logic(dtype: str) -> LogicTolerance:
    """Return the limits for ``dtype``, "float64" or "float32"."""
    try:
        return LOGIC[dtype]
    except KeyError:
        raise ValueError(f"logic parity has no limit for {dtype}; it is judged in {', '.join(LOGIC)}") from None
