"""Order, warm-up and bookkeeping of paired timing, on a clock that the test moves by hand."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from gaudi_validate.measure import latency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gaudi_validate.measure.latency import Side

MS = 1_000_000


class Clock:
    """A clock that callables move on by the times they are given; it notes who ran."""

    def __init__(self) -> None:
        self.now, self.ran = 0, ""

    def __call__(self) -> int:
        return self.now

    def taking(self, name: str, times_ns: Iterator[int]) -> Callable[[], None]:
        def run() -> None:
            self.ran += name
            self.now += next(times_ns)

        return run


def _steady(ns: int) -> Iterator[int]:
    while True:
        yield ns


@pytest.mark.parametrize(
    ("repetitions", "first", "order"),
    [
        (7, "A", "ABBAABBAABBAAB"),
        (7, "B", "BAABBAABBAABBA"),
        (6, "A", "ABBAABBAABBA"),
        (1, "A", "AB"),
    ],
)
def test_abba(repetitions: int, first: Side, order: str) -> None:
    assert latency.abba(repetitions, first) == order
    assert order.count("A") == order.count("B") == repetitions


def test_the_callables_run_in_that_order() -> None:
    clock = Clock()
    fast, slow = clock.taking("A", _steady(3 * MS)), clock.taking("B", _steady(5 * MS))
    timings = latency.paired(fast, slow, clock_ns=clock)
    # Two calls each to size a repetition, three each to warm up, then the order.
    assert clock.ran == "AABB" + "AAABBB" + "ABBAABBAABBAAB"
    assert timings.order == "ABBAABBAABBAAB"
    assert (timings.before_ns, timings.after_ns) == ((3 * MS,) * 7, (5 * MS,) * 7)
    assert timings.calls == (1, 1)


def test_drift_hits_both_sides_alike() -> None:
    clock = Clock()
    ticks = iter(range(10 * MS, 100 * MS, MS))
    timings = latency.paired(clock.taking("A", ticks), clock.taking("B", ticks), repetitions=6, clock_ns=clock)
    assert sum(timings.before_ns) == sum(timings.after_ns)


def test_warm_up_waits_for_three_within_five_percent() -> None:
    clock = Clock()
    cooling = iter([90 * MS, 60 * MS, *[t * MS for t in (40, 30, 22, 21, 21)], *[20 * MS] * 7])
    timings = latency.paired(clock.taking("A", cooling), clock.taking("B", _steady(20 * MS)), clock_ns=clock)
    assert timings.warm_up[0].samples_ns == tuple(t * MS for t in (40, 30, 22, 21, 21))
    assert timings.warm_up[0].settled
    assert timings.before_ns == (20 * MS,) * 7


def test_warm_up_gives_up_and_says_so() -> None:
    clock = Clock()
    restless = iter([t * MS for t in (10, 20) * 20])
    timings = latency.paired(
        clock.taking("A", restless), clock.taking("B", _steady(10 * MS)), warm_limit=6, clock_ns=clock
    )
    assert (len(timings.warm_up[0].samples_ns), timings.warm_up[0].settled) == (6, False)
    assert timings.warm_up[1].settled


@pytest.mark.parametrize(
    ("samples", "settled"),
    [([100, 105, 100], True), ([100, 106, 100], False), ([100, 100], False), ([900, 100, 101, 102], True)],
)
def test_settled(samples: list[int], settled: bool) -> None:
    assert latency.settled(samples) is settled


def test_short_calls_are_repeated_within_a_repetition() -> None:
    clock = Clock()
    timings = latency.paired(
        clock.taking("A", _steady(MS // 10)), clock.taking("B", _steady(MS)), repetitions=5, clock_ns=clock
    )
    assert timings.calls == (20, 2)
    assert (timings.before_ns, timings.after_ns) == ((MS // 10,) * 5, (MS,) * 5)


def test_the_device_is_waited_for_before_each_reading() -> None:
    clock = Clock()
    queued: list[int] = []

    def enqueue() -> None:
        queued.append(4 * MS)

    def synchronise() -> None:
        clock.now += sum(queued)
        queued.clear()

    timings = latency.paired(enqueue, enqueue, synchronise=synchronise, clock_ns=clock)
    assert timings.after_ns == (4 * MS,) * 7


def test_garbage_collection_is_off_within_and_as_before_after() -> None:
    seen: list[bool] = []
    clock = Clock()
    fast = clock.taking("A", _steady(3 * MS))

    def watch() -> None:
        seen.append(gc.isenabled())
        fast()

    latency.paired(watch, watch, clock_ns=clock)
    assert seen
    assert not any(seen)
    assert gc.isenabled()
    gc.disable()
    try:
        latency.paired(watch, watch, clock_ns=clock)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_turns_garbage_collection_on_again() -> None:
    def broken() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        latency.paired(broken, broken)
    assert gc.isenabled()
