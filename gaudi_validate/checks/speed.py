"""Speed of an attention call as a paired ratio, on the machine at hand.

A time on a CPU says nothing about a Gaudi: it shows whether the fast path avoids work that naive does, no more. On a
CPU the clock is therefore the processor time of one thread: on shared cores it varies by 4 to 12 % where the wall-clock
varies by 5 to 46 % (measured at three times as many runnable processes as cores). On a device it is the wall-clock.
Every piece of evidence names machine and clock.
"""

from __future__ import annotations

import platform
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.attention.naive import repeat_kv
from gaudi_validate.checks.memory import as_port
from gaudi_validate.core import gates
from gaudi_validate.core.evidence import Evidence, Measurement
from gaudi_validate.core.gates import Comparison, Verdict
from gaudi_validate.core.verdicts import Status
from gaudi_validate.measure import latency, statistics
from gaudi_validate.measure.attention_call import (
    AttentionShape,
    attend_with,
    attention_function,
    decoder,
    make_inputs,
    make_mask,
)
from gaudi_validate.measure.device_memory import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gaudi_validate.hardware.device import Device
    from gaudi_validate.measure.attention_call import AttentionInputs
    from gaudi_validate.measure.latency import Side, Timings
    from gaudi_validate.ports.base import Port

    Call = Callable[[], Any]

PREFILL, DECODE = "attention speed", "decode speed"
ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaCase:
    """One decode shape for each card, and the throughput ratio that was published for the whole model.

    ``ratio`` is tokens per second without ``repeat_kv`` over with it; ``None``: the source reports no gain.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    keys: int
    ratio: float | None
    source: str = "optimum-habana PR #626"


# Llama-2-70B has 64 query and 8 key/value heads of size 128, shared out over the cards; 7B has 32 of each. Keys: the
# longest that decoding reaches, input and new tokens together.
GQA_CASES: dict[str, GqaCase] = {
    case.name: case
    for case in (
        GqaCase(name="70b-tp4-128", batch=8, heads=16, kv_heads=2, keys=256, ratio=327.19 / 277.43),
        GqaCase(name="70b-tp4-512", batch=16, heads=16, kv_heads=2, keys=1024, ratio=589.21 / 288.13),
        GqaCase(name="70b-tp4-1024", batch=8, heads=16, kv_heads=2, keys=2048, ratio=313.45 / 140.25),
        GqaCase(name="70b-tp8-1024", batch=8, heads=8, kv_heads=1, keys=2048, ratio=None),
        GqaCase(name="7b-1024", batch=8, heads=32, kv_heads=32, keys=2048, ratio=None),
    )
}


def paired_speed(
    port: Port | str,
    shape: AttentionShape,
    *,
    against: Port | str = "naive",
    required: float | None = None,
    repetitions: int = latency.REPETITIONS,
    device: Device | None = None,
    hardware: str = "cpu",
) -> Evidence:
    """Time one attention call, its mask included, against another implementation of it.

    Args:
        port: the port under test, or the name of an attention implementation.
        shape: of the call.
        against: what to compare with.
        required: how many times as fast ``port`` has to be, judged with the ratio's interval; 0.8 lets it take 1.25
            times as long. ``None``: it must not be slower, judged by the rule for regressions.
        repetitions: timed repetitions a side and round.
        device: where to run; the CPU by default.
        hardware: the key that the evidence carries.
    """
    started = time.perf_counter()
    tested, other = as_port(port), as_port(against)
    evidence = _evidence(PREFILL, tested, shape, hardware)
    with ExitStack() as stack:
        calls = [_call(stack, one, shape, device) for one in (other, tested)]
        timed = _judge(_Pair(calls[0], calls[1], repetitions, device), required)
    return _ended(evidence, started, timed, f"compared with {other.name}")


def decode_gqa_speed(
    port: Port | str,
    case: GqaCase | str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    required: float | None = None,
    repetitions: int = latency.REPETITIONS,
    device: Device | None = None,
    hardware: str = "cpu",
) -> Evidence:
    """Time one decoding step of attention on grouped keys and values against the same on repeated ones.

    As in the source, keys and values are repeated only where 1 < KV heads < heads; elsewhere both sides do the same,
    and the ratio shows the noise. The published ratio, of a whole model on Gaudi2 cards, stands beside the measured one
    and is no limit.
    """
    started = time.perf_counter()
    case = GQA_CASES[case] if isinstance(case, str) else case
    tested = as_port(port)
    grouped = AttentionShape(
        length=1, kv_length=case.keys, heads=case.heads, kv_heads=case.kv_heads, head_dim=128, batch=case.batch,
        dtype=dtype,
    )  # fmt: skip
    evidence = _evidence(DECODE, tested, grouped, hardware)
    repeats = 1 < case.kv_heads < case.heads
    with ExitStack() as stack:
        calls = [_call(stack, tested, grouped, device, repeat=repeat) for repeat in (repeats, False)]
        timed = _judge(_Pair(calls[0], calls[1], repetitions, device), required)
    published = f"{case.ratio:.2f}x published for the whole model" if case.ratio else "no gain published"
    evidence = _ended(evidence, started, timed, f"{case.name}: {published} ({case.source})")
    beside = Measurement(name="published ratio, whole model", value=case.ratio, unit="x")
    return replace(
        evidence,
        reason=f"{evidence.reason}; {published}",
        measurements=(*evidence.measurements, beside),
    )


def machine() -> str:
    """Return the processor and the instruction set that torch uses of it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


@dataclass(frozen=True, slots=True)
class _Pair:
    before: Call
    after: Call
    repetitions: int
    device: Device | None


@dataclass(frozen=True, slots=True)
class _Timed:
    verdict: Verdict
    details: tuple[str, ...]
    cpu: bool


def _call(stack: ExitStack, port: Port, shape: AttentionShape, device: Device | None, *, repeat: bool = False) -> Call:
    """Return the attention call of ``shape`` under ``port``, which stays active until ``stack`` is closed.

    The mask is made once, as a model makes it once for all layers. ``repeat``: keys and values are repeated first.
    """
    inputs = make_inputs(shape, device="cpu" if device is None else str(device.torch_device()))
    model = decoder(replace(shape, kv_heads=shape.heads) if repeat else shape)
    stack.enter_context(port.active(model))
    function, mask = attention_function(model), make_mask(model, inputs)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return attend_with(function, model, _repeated(inputs, shape.groups) if repeat else inputs, mask)

    return run


def _repeated(inputs: AttentionInputs, groups: int) -> AttentionInputs:
    keys, values = repeat_kv(inputs.key_BKSD, groups), repeat_kv(inputs.value_BKSD, groups)
    return replace(inputs, key_BKSD=keys, value_BKSD=values)


def _judge(pair: _Pair, required: float | None) -> _Timed:
    """Time one round, and a second where the first shows a loss and nothing in particular is ``required``."""
    rounds: list[Comparison] = []
    details: list[str] = []
    on_cpu = pair.device is None
    try:
        with _one_thread() if on_cpu else nullcontext():
            rounds.append(_round(pair, "A", details))
            if required is None and gates.regressed(rounds[0]):
                rounds.append(_round(pair, "B", details))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return _Timed(Verdict(status=Status.FAIL, reason="out of memory"), tuple(details), on_cpu)
    verdict = gates.paired_speed(rounds) if required is None else gates.faster_than(rounds[0], required)
    return _Timed(verdict, tuple(details), on_cpu)


def _round(pair: _Pair, first: Side, details: list[str]) -> Comparison:
    """Return one round. One that is too noisy to judge is put aside and taken anew, ``ATTEMPTS`` in all at most.

    Noise alone decides that, never which side was faster, so no verdict is favoured. ``details`` is added to.
    """
    clock_ns, synchronise = time.process_time_ns, _nothing
    if pair.device is not None:
        clock_ns, synchronise = time.perf_counter_ns, pair.device.synchronise
    for attempt in range(1, ATTEMPTS + 1):
        timings = latency.paired(
            pair.before,
            pair.after,
            repetitions=pair.repetitions,
            first=first,
            synchronise=synchronise,
            clock_ns=clock_ns,
        )
        comparison = statistics.compare(timings.before_ns, timings.after_ns)
        if comparison.cv <= gates.LIMITS["cv"].value or attempt == ATTEMPTS:
            break
        details.append(f"put aside a round whose timings vary by {comparison.cv:.1%}")
    details += _describe(timings)
    return comparison


def _nothing() -> None:
    """Wait for nothing: the CPU queues nothing."""


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _describe(timings: Timings) -> list[str]:
    middle = [median(side) / 1e6 for side in (timings.before_ns, timings.after_ns)]
    lines = [
        f"medians {middle[0]:.3f} ms and {middle[1]:.3f} ms a call, order {timings.order}",
        f"before, ns: {', '.join(map(str, timings.before_ns))}",
        f"after, ns: {', '.join(map(str, timings.after_ns))}",
    ]
    restless = [name for name, warm in zip(("before", "after"), timings.warm_up, strict=True) if not warm.settled]
    return [*lines, f"never settled while warming up: {', '.join(restless)}"] if restless else lines


def _evidence(check: str, port: Port, shape: AttentionShape, hardware: str) -> Evidence:
    dtype = str(shape.dtype).removeprefix("torch.")
    return Evidence(
        check=check,
        status=Status.NOT_MEASURED,
        reason="",
        scenario=str(shape),
        port=port.name,
        hardware=hardware,
        dtype=dtype,
    )


def _ended(evidence: Evidence, started: float, timed: _Timed, what: str) -> Evidence:
    on = f"wall-clock on {evidence.hardware}"
    if timed.cpu:
        on = f"processor time of one thread on {machine()}: it says nothing about a Gaudi"
    return replace(
        evidence,
        status=timed.verdict.status,
        reason=timed.verdict.reason,
        measurements=timed.verdict.measurements,
        details=(what, on, *timed.details),
        duration_s=time.perf_counter() - started,
    )
