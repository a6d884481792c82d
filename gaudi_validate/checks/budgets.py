"""The error budgets of precision, logits and text, each with the calibration that set it. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format: ``bits`` of significand, the hidden one included, and the gap between subnormals."""

    bits: int
    quantum: float


# IEEE 754 binary16 and binary32, and bfloat16: binary32's exponent with 8 bits of significand.
FORMATS: dict[str, Format] = {
    "bfloat16": Format(bits=8, quantum=2.0**-133),
    "float16": Format(bits=11, quantum=2.0**-24),
    "float32": Format(bits=24, quantum=2.0**-149),
}


@dataclass(frozen=True, slots=True)
class CallBudget:
    """Limits of G and W (see ``checks.errors.judge``) of one attention call."""

    g: float
    w: float


# bfloat16 and float16, calibrated on 180 bf16 calls of SmolLM2-135M: a correct key-blocked path has G <= 1.06 and
# W 1.6-2.6, torch's SDPA 0.48 and 1.15; a 1 % wrong scale in naive arithmetic has G 1.4-3.7 and W 4.4-17. All 180
# faulty calls exceed the limits, no correct one does. Seen again on the 150 calls of the eight prompts: hpu_sliced has
# G 0.56 and W 1.11, hpu_fused 0.53 and 0.86, in both dtypes; of a 1 % wrong scale all 150 calls are over in bf16, 139
# where the rest of the arithmetic is SDPA's. SDPA on the tiny models, 420 runs a dtype: G <= 0.58, W <= 1.13.
# float32: nothing is rounded but sums and exp, so that a row's naive error is now and then tiny by luck, and torch's
# SDPA takes an exp that is good to 20 ulp. Calibrated on the same: SDPA, hpu_sliced and hpu_fused have G <= 2.8 and
# W <= 21; a 0.3 % wrong scale has G over 9000, and TF32 or bf16 products are as visible.
_HALF = CallBudget(g=1.25, w=3.0)
CALLS: dict[str, CallBudget] = {"bfloat16": _HALF, "float16": _HALF, "float32": CallBudget(g=8.0, w=64.0)}

# Whole-model logits: correct paths have G 0.92-1.06 on SmolLM2 and <= 1.08 on the tiny models, four scenarios, every
# dtype. W is not judged there: bf16 rounding is chaotic through 30 layers, and W over logit rows reaches 6 for correct
# paths. Where tokens are routed to experts, near ties fall either way and correct paths reach G 5.5: such models are
# judged by logic parity and call by call.
LOGITS_G = 1.25

# Decoder layers, all passes of one taken together (a decode step alone has too few rows: 1.3). Calibrated on the same
# and on SmolLM2: correct paths have G <= 1.05 in half precision, 1.14 in float32, but for models with experts. A 1 %
# wrong scale has 2.3 and more in float16, over 4500 in float32, and stays within in bfloat16; a 5 % one has 1.6 there.
LAYERS: dict[str, float] = {"bfloat16": 1.25, "float16": 1.25, "float32": 2.0}

# Teacher-forced log-probabilities, |Δ| over the reference's top tokens: factors on naive's own, and one ulp on top.
TOP_TOKENS = 20
LOGPROB_QUANTILE = 0.95
LOGPROB_QUANTILE_FACTOR = 1.5
LOGPROB_MAX_FACTOR = 3.0
# The rule was set for samples of this size; with less it is reported and not judged, a quantile of few rows is noise.
LOGPROB_ROWS = 8 * 64

# Text: a differing token is a tie when the reference's margin is at most this times max(ulp, naive's own |Δ|): each of
# the two logits may be off by that much. So many of a text's tokens may be ties, and one in any case.
TIE_FACTOR = 2.0
TIE_SHARE = 0.05


def format_of(dtype: str) -> Format:
    """Return the format of ``dtype`` ("bfloat16", "float16", "float32"); any other is an error, never "exact"."""
    try:
        return FORMATS[dtype]
    except KeyError:
        raise ValueError(f"no error budget for {dtype}; there is one for {', '.join(FORMATS)}") from None
