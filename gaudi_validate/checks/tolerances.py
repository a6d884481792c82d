"""The constants of parity rules, each with the calibration that set it. An unknown dtype is an error."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogicTolerance:
    """Limits of logic parity in one dtype.

    ``limit``: worst |Δlogit| in standard deviations of the reference's logits. ``noise_factor``: times the worst
    |Δlogit| of stock eager in that dtype itself, which is added to the limit; 0 where that is nothing. ``divergence``:
    an intermediate result that is off by more than this times its own RMS has diverged; it only decides where a failure
    is located.
    """

    limit: float
    noise_factor: float
    divergence: float

    def allowed(self, noise: float) -> float:
        """Return the limit for a model and scenario on which eager itself is off by ``noise`` sd."""
        return self.limit + self.noise_factor * noise


# Calibrated on the tiny models over the whole matrix, transformers 4.55.4 and 5.24, attention "sdpa" against eager.
# float64: logits within 9e-14 sd, intermediate results within 1.2e-13 RMS; the smallest fault of the catalogue
# (softmax in bf16) shows 1e-2 sd.
# float32 is for devices without fp64 and is compared with fp64 all the same: sharp models turn rounding into 4e-6 to
# 1.1e-4 sd and 1e-5 to 1.7e-4 RMS, eager as much as others, hence the share of eager's own error.
LOGIC: dict[str, LogicTolerance] = {
    "float64": LogicTolerance(limit=1e-9, noise_factor=0.0, divergence=1e-10),
    "float32": LogicTolerance(limit=1e-4, noise_factor=3.0, divergence=1e-3),
}

# Keys whose attention probability is off by more than this share of the worst one count as its key range.
KEY_RANGE_SHARE = 0.1


def logic(dtype: str) -> LogicTolerance:
    """Return the limits for ``dtype``, "float64" or "float32"."""
    try:
        return LOGIC[dtype]
    except KeyError:
        raise ValueError(f"logic parity has no limit for {dtype}; it is judged in {', '.join(LOGIC)}") from None
