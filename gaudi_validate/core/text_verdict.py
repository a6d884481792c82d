"""Whether a text that differs from its golden is a tie or a defect: lists of numbers in, a verdict out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TextVerdict(str, Enum):
    """IDENTICAL: equal ids. TIE: differs only where the reference itself hardly decides. DIVERGED: all else."""

    IDENTICAL = "IDENTICAL"
    TIE = "TIE"
    DIVERGED = "DIVERGED"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One token that differs, the golden's tokens standing before it.

    ``golden`` and ``port`` are token ids, ``None`` where that text has ended. ``margin`` is the reference's logit of
    the golden's token minus that of the port's: negative where the reference sides with the port. ``allowed`` is the
    largest margin that is a tie.
    """

    step: int
    golden: int | None
    port: int | None
    margin: float
    allowed: float

    @property
    def tie(self) -> bool:
        """Whether the margin is within what is allowed; a text that ended and a NaN are none."""
        return self.golden is not None and self.port is not None and self.margin <= self.allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecision:
    """The verdict on one text. ``culprit`` is the difference that made it DIVERGED; ``most`` the ties it may have."""

    verdict: TextVerdict
    differences: tuple[Difference, ...]
    most: int
    culprit: Difference | None = None


def decide(tokens: int, differences: Sequence[Difference], *, share: float) -> TextDecision:
    """Judge a text whose golden has ``tokens`` tokens by its ``differences``.

    At most ``max(1, floor(share * tokens))`` differences, all of them ties, make a TIE. The culprit is the first
    difference that is no tie, else the first one too many.
    """
    most = max(1, math.floor(share * tokens))
    ordered = tuple(sorted(differences, key=lambda difference: difference.step))
    if not ordered:
        return TextDecision(verdict=TextVerdict.IDENTICAL, differences=(), most=most)
    culprit = next((one for one in ordered if not one.tie), None)
    if culprit is None and len(ordered) > most:
        culprit = ordered[most]
    verdict = TextVerdict.TIE if culprit is None else TextVerdict.DIVERGED
    return TextDecision(verdict=verdict, differences=ordered, most=most, culprit=culprit)


def worst_verdict(verdicts: Sequence[TextVerdict]) -> TextVerdict:
    """Return the gravest verdict, IDENTICAL for none."""
    order = list(TextVerdict)
    return max(verdicts, key=order.index, default=TextVerdict.IDENTICAL)


def first_difference(golden: Sequence[int], port: Sequence[int]) -> int | None:
    """Return the first step at which two texts differ, one of them having ended included; ``None`` for equal ones."""
    for step, (one, other) in enumerate(zip(golden, port, strict=False)):
        if one != other:
            return step
    return None if len(golden) == len(port) else min(len(golden), len(port))


def tie_allowance(logits: Sequence[float], naive_errors: Sequence[float], *, bits: int, factor: float) -> float:
    """Return the largest margin that is a tie: ``factor * max(ulp, naive's own |Δ|)``, over both tokens.

    Args:
        logits: the reference's logits of the tokens that compete.
        naive_errors: the naive path's logits of the same tokens minus the reference's.
        bits: of significand of the deployed dtype, the hidden one included.
        factor: how many of these errors a margin may take.
    """
    return factor * max(*(ulp(logit, bits) for logit in logits), *(abs(error) for error in naive_errors))


def ulp(value: float, bits: int) -> float:
    """Return the gap between ``value`` and its neighbour in a format of ``bits`` of significand; 0 for 0.

    2^(floor(log2 |value|) - bits + 1), the format's range not regarded. NaN for NaN and infinities.
    """
    if not math.isfinite(value):
        return math.nan
    _, exponent = math.frexp(value)  # |value| = m * 2^exponent with m in [0.5, 1)
    return math.ldexp(1.0, exponent - bits) if value else 0.0
