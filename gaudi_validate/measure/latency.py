"""Paired timing of two callables in ABBA order: what drifts over the run hits both alike."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Side = Literal["A", "B"]

REPETITIONS = 7
WARM_REPETITIONS = 3
WARM_SPREAD = 0.05
WARM_LIMIT = 15
# Below this a repetition is several calls: a clock read and a loop turn cost about 0.1 us, and a timer interrupt 10 us.
SHORTEST_REPETITION_NS = 2_000_000


def _nothing() -> None:
    """Wait for nothing: the CPU queues nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """The repetitions before the timed ones, in ns a call; ``settled``: the last three lay within 5 %."""

    samples_ns: tuple[int, ...]
    settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Raw samples of A and B in ns a call, in the order in which they were taken.

    A repetition is ``calls`` calls in a row. ``order`` is the order of the repetitions, such as "ABBAABBA".
    """

    before_ns: tuple[int, ...]
    after_ns: tuple[int, ...]
    order: str
    calls: tuple[int, int]
    warm_up: tuple[WarmUp, WarmUp]


def paired(
    before: Callable[[], Any],
    after: Callable[[], Any],
    *,
    repetitions: int = REPETITIONS,
    first: Side = "A",
    warm_limit: int = WARM_LIMIT,
    synchronise: Callable[[], None] = _nothing,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> Timings:
    """Time ``before`` (A) and ``after`` (B), ``repetitions`` each, in the order ABBA ABBA ...

    Each side is warmed up until three repetitions in a row lie within 5 %, or ``warm_limit`` were made: on a machine
    that never settles the samples' own spread then decides. The garbage collector is off meanwhile.

    Args:
        before: the one that stands for "before", or the naive one.
        after: the one under test.
        repetitions: timed repetitions a side.
        first: "B" swaps the order to BAAB; a second round takes it, so that neither side always goes first.
        warm_limit: the most repetitions that a warm-up takes.
        synchronise: returns when the device has run all that was queued; called before each reading of the clock.
        clock_ns: a monotonic clock in ns.
    """
    sides = {"A": before, "B": after}
    collect = gc.isenabled()
    gc.disable()
    try:
        timer = _Timer(synchronise, clock_ns)
        calls = {side: timer.calls_for(fn) for side, fn in sides.items()}
        warm = {side: timer.warm_up(fn, calls[side], warm_limit) for side, fn in sides.items()}
        order = abba(repetitions, first)
        samples: dict[str, list[int]] = {"A": [], "B": []}
        for side in order:
            samples[side].append(timer.repetition(sides[side], calls[side]))
    finally:
        if collect:
            gc.enable()
    return Timings(
        before_ns=tuple(samples["A"]),
        after_ns=tuple(samples["B"]),
        order=order,
        calls=(calls["A"], calls["B"]),
        warm_up=(warm["A"], warm["B"]),
    )


def abba(repetitions: int, first: Side = "A") -> str:
    """Return the order of ``repetitions`` of each side: ABBA over and over, a half one (AB) last when it is odd."""
    four = "ABBA" if first == "A" else "BAAB"
    return (four * math.ceil(repetitions / 2))[: 2 * repetitions]


class _Timer:
    def __init__(self, synchronise: Callable[[], None], clock_ns: Callable[[], int]) -> None:
        self._synchronise, self._clock_ns = synchronise, clock_ns

    def repetition(self, fn: Callable[[], Any], calls: int) -> int:
        """Return the time of one call in ns, over ``calls`` of them."""
        self._synchronise()
        start = self._clock_ns()
        for _ in range(calls):
            fn()
        self._synchronise()
        return (self._clock_ns() - start) // calls

    def calls_for(self, fn: Callable[[], Any]) -> int:
        """Return how many calls make a repetition that is long enough. The first call, which may compile, is thrown."""
        self.repetition(fn, 1)
        once = max(self.repetition(fn, 1), 1)
        return max(1, math.ceil(SHORTEST_REPETITION_NS / once))

    def warm_up(self, fn: Callable[[], Any], calls: int, limit: int) -> WarmUp:
        """Repeat ``fn`` until it settles, ``limit`` times at most."""
        samples: list[int] = []
        while len(samples) < limit:
            samples.append(self.repetition(fn, calls))
            if settled(samples):
                return WarmUp(samples_ns=tuple(samples), settled=True)
        return WarmUp(samples_ns=tuple(samples), settled=False)


def settled(samples_ns: list[int]) -> bool:
    """Return whether the last three repetitions lie within 5 % of the shortest of them."""
    last = samples_ns[-WARM_REPETITIONS:]
    return len(last) == WARM_REPETITIONS and max(last) <= (1 + WARM_SPREAD) * min(last)
