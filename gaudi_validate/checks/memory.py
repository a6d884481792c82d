"""Memory of an attention implementation, counted exactly, on fake tensors of full size unless asked otherwise.

Every check makes the call as transformers makes it, with the mask function that is registered beside the attention
function, so that a mask tensor counts. Shapes: B batch, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gaudi_validate.attention.registry import ensure
from gaudi_validate.core import gates
from gaudi_validate.core.evidence import Evidence, Measurement
from gaudi_validate.core.gates import LIMITS, Verdict, mib
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.measure.attention_call import AttentionShape, attend, decoder, make_inputs, make_mask
from gaudi_validate.measure.device_memory import is_out_of_memory
from gaudi_validate.measure.live_bytes import LiveBytes, count
from gaudi_validate.models.loading import first_line
from gaudi_validate.ports.transformers_port import TransformersPort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gaudi_validate.ports.base import Port

SCALING, MASK, DECODE = "attention memory", "mask memory", "decode memory"
# The memory-saving path at length 8192 against naive: from the job this project was made for (6 times less).
DECLARED_RATIO = 1 / 6
# An implementation that may hand its blocks to an opaque kernel, and the variant of it that hides nothing.
UPPER_BOUND = {"hpu_sliced": "hpu_sliced[block_kernel=matmul]"}
# Copies of the cache that a decoding step may allocate, block by block and never all at once. The stand-in for the
# fused kernel widens each block to fp32 and blanks unseen keys in fp32 (2 + 2 in bf16, counted); the kernel does not.
BLOCKWISE_COPIES = {"hpu_fused": 4.1}


@dataclass(frozen=True, slots=True)
class Failed:
    """A count that did not come about, and how it ended."""

    status: Status
    reason: str


def memory_scaling(
    port: Port | str,
    *,
    lengths: Sequence[int] = (2048, 4096, 8192),
    heads: int = 32,
    kv_heads: int = 8,
    head_dim: int = 128,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    padded: bool = True,
    declared_ratio: float = DECLARED_RATIO,
    naive: Port | str = "naive",
    fake: bool = True,
    hardware: str = "cpu",
) -> Evidence:
    """Return whether a memory-saving prefill keeps its promise: the ratio to naive, and growth with length.

    Peaks are those above the call's inputs, the mask among them. Where :data:`UPPER_BOUND` names a variant without
    opaque kernels, that one is counted and judged too.

    Args:
        port: the port under test, or the name of an attention implementation.
        lengths: three or more rising lengths, the shortest longer than the implementation's block of query rows.
        heads: query heads.
        kv_heads: key/value heads.
        head_dim: the size of a head.
        batch: rows of the batch.
        dtype: of queries, keys and values.
        padded: give a 2-D mask with left padding, so that no mask can be left out.
        declared_ratio: the most that the peak at the longest length may be of naive's.
        naive: what to compare with.
        fake: count on fake tensors; else run, which takes the memory it counts.
        hardware: the key that the evidence carries.
    """
    started = time.perf_counter()
    longest = AttentionShape(
        length=lengths[-1], heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch, dtype=dtype, padded=padded
    )
    evidence = _evidence(SCALING, port, longest, hardware)
    shapes = [replace(longest, length=length) for length in lengths]
    ports = {as_port(port).name: as_port(port)}
    if (bound := UPPER_BOUND.get(as_port(port).name)) is not None:
        ports[bound] = as_port(bound)
    reference = count_each(as_port(naive), shapes, attend, fake=fake)
    if isinstance(reference, Failed):
        return _ended(evidence, started, _failed(reference))
    verdicts, details = [], []
    for name, tested in ports.items():
        counts = count_each(tested, shapes, attend, fake=fake)
        if isinstance(counts, Failed):
            verdicts.append(_failed(counts))
            continue
        verdicts.append(_judge(name, shapes, _above(counts), _above(reference), declared_ratio))
        details += _describe(name, lengths, counts)
    verdicts.append(gates.naive_slope(lengths, _above(reference)))
    details += _describe(f"compared with {as_port(naive).name}", lengths, reference)
    return _ended(evidence, started, gates.combined(verdicts), details)


def mask_memory(
    port: Port | str,
    *,
    batch: int = 12,
    length: int = 32768,
    fake: bool = True,
    hardware: str = "cpu",
) -> Evidence:
    """Return whether the mask function keeps within a bool mask [B, 1, T, S], and builds it within two of them.

    The shape is that of optimum-habana PR #1302, whose integer mask took 48 GiB where 12 do. The measurements hold
    the bytes kept and the peak.
    """
    started = time.perf_counter()
    shape = AttentionShape(length=length, heads=1, kv_heads=1, head_dim=1, batch=batch, padded=True)
    evidence = _evidence(MASK, port, shape, hardware)
    counts = count_each(as_port(port), [shape], make_mask, fake=fake)
    if isinstance(counts, Failed):
        return _ended(evidence, started, _failed(counts))
    boolean = batch * length * shape.keys
    kept, peak = counts[0].retained_bytes, counts[0].above_bytes
    verdict = gates.combined(
        [
            gates.within(
                Measurement(name="mask", value=kept / boolean, unit="bool masks", limit=LIMITS["mask_kept"].value),
                f"the mask takes {mib(kept)}, {kept / boolean:.3g} of a bool one",
            ),
            gates.within(
                Measurement(name="mask peak", value=peak / boolean, unit="bool masks", limit=LIMITS["mask_peak"].value),
                f"building it takes {mib(peak)}, {peak / boolean:.3g} of a bool one",
            ),
        ],
        also=(
            Measurement(name="mask bytes", value=kept, unit="bytes"),
            Measurement(name="mask peak bytes", value=peak, unit="bytes"),
        ),
    )
    details = [f"a bool mask of this shape takes {mib(boolean)}", *_largest(counts[0])]
    return _ended(evidence, started, verdict, details)


def decode_allocation(
    port: Port | str,
    *,
    heads: int = 64,
    kv_heads: int = 8,
    head_dim: int = 128,
    length: int = 2048,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
    allowed_copies: float | None = None,
    fake: bool = False,
    hardware: str = "cpu",
) -> Evidence:
    """Return how many times one decoding step copies the KV cache, counted exactly: with grouped views not once.

    Bytes that the step allocates are counted at length S and 2 S with head_dim D and 2 D. What grows with both, in
    copies of keys and values, is ``(a(2S,2D) - a(2S,D) - a(S,2D) + a(S,D)) / cache(S,D)``: scores grow with S alone
    and outputs with D alone, and fall out. ``repeat_kv`` shows the number of query heads to a key/value head, an
    upcast of the cache to fp32 shows 2 in bf16. The same difference of the peaks shows what is alive at once.

    Real tensors by default: the call is small, and an implementation may copy only where it finds reason in the values.
    ``fake`` shows what it does where the host does not read them, as on an HPU. ``allowed_copies`` are those allocated
    block by block; by default none, or the implementation's entry in :data:`BLOCKWISE_COPIES`.
    """
    started = time.perf_counter()
    base = AttentionShape(
        length=1, kv_length=length, heads=heads, kv_heads=kv_heads, head_dim=head_dim, batch=batch, dtype=dtype
    )
    evidence = _evidence(DECODE, port, base, hardware)
    cache = 2 * batch * kv_heads * length * head_dim * dtype.itemsize
    if allowed_copies is None:
        name = (as_port(port).attention or "").partition("[")[0]
        allowed_copies = BLOCKWISE_COPIES.get(name, LIMITS["cache_copies"].value)
    verdicts, details = [], []
    for padded in (False, True):
        sizes = [(s, d) for s in (1, 2) for d in (1, 2)]
        shapes = [replace(base, kv_length=length * s, head_dim=head_dim * d, padded=padded) for s, d in sizes]
        counts = count_each(as_port(port), shapes, attend, fake=fake)
        if isinstance(counts, Failed):
            verdicts.append(_failed(counts))
            continue
        verdicts.append(_judge_decode(counts, cache, allowed_copies, "with padding" if padded else "without padding"))
        details += _describe(str(shapes[0]), (length,), counts[:1])
    return _ended(evidence, started, gates.combined(verdicts), details)


def _judge_decode(counts: list[LiveBytes], cache: int, allowed: float, name: str) -> Verdict:
    copies = _mixed_difference([c.allocated_bytes for c in counts]) / cache
    at_once = round(_mixed_difference([c.above_bytes for c in counts]) / cache, 2)
    what = f"a decoding step {name}"
    return gates.combined(
        [
            gates.within(
                Measurement(name=f"KV cache copies ({name})", value=copies, unit="copies a step", limit=allowed),
                f"{what} copies the KV cache of {mib(cache)} {copies:g} times",
            ),
            gates.within(
                Measurement(
                    name=f"KV cache copies alive at once ({name})",
                    value=at_once,
                    unit="copies",
                    limit=LIMITS["cache_copies"].value,
                ),
                f"{what} has {at_once:g} copies of it alive at once",
            ),
        ],
        also=(
            Measurement(name=f"bytes allocated ({name})", value=counts[0].allocated_bytes, unit="bytes"),
            Measurement(name=f"peak ({name})", value=counts[0].above_bytes, unit="bytes"),
        ),
    )


def count_each(
    port: Port,
    shapes: Sequence[AttentionShape],
    run: Callable[[Any, Any], Any],
    *,
    fake: bool,
) -> list[LiveBytes] | Failed:
    """Count ``run(model, inputs)`` at each of ``shapes`` with ``port`` active; running out of memory is an outcome."""
    counts = []
    for shape in shapes:
        mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
        model = decoder(shape)
        try:
            with torch.no_grad(), port.active(model), mode or nullcontext():
                inputs = make_inputs(shape)
                counts.append(count(run, model, inputs, fake=mode or False, before=inputs.tensors))
        except UserError as error:
            return Failed(Status.NOT_MEASURED, str(error))
        except Exception as error:
            if is_out_of_memory(error):
                return Failed(Status.FAIL, f"out of memory at {shape}")
            return Failed(Status.FAIL, f"{port.name} raised {first_line(error)} at {shape}")
    return counts


def _judge(
    name: str, shapes: Sequence[AttentionShape], peaks: Sequence[int], reference: Sequence[int], declared: float
) -> Verdict:
    lengths = [shape.length for shape in shapes]
    verdict = gates.combined(
        [
            gates.memory_ratio(peaks[-1], reference[-1], declared),
            gates.memory_slope(lengths, peaks),
            gates.memory_pairs(lengths, peaks, shapes[-1].batch),
        ]
    )
    measurements = tuple(replace(m, name=f"{m.name} ({name})") for m in verdict.measurements)
    return replace(verdict, reason=f"{name}: {verdict.reason}", measurements=measurements)


def _describe(name: str, lengths: Sequence[int], counts: Sequence[LiveBytes]) -> list[str]:
    peaks = ", ".join(f"{mib(c.above_bytes)} at {length}" for length, c in zip(lengths, counts, strict=True))
    lines = [f"{name}: peak above the inputs {peaks}, at {counts[-1].peak_op or 'no operation'}"]
    lines += [f"{name}: {line}" for line in _largest(counts[-1])]
    if opaque := sorted({op for c in counts for op in c.opaque_ops}):
        lines.append(f"{name}: workspace inside {', '.join(opaque)} is not counted")
    return lines


def _largest(counted: LiveBytes) -> list[str]:
    tensors = [t for t in counted.peak_tensors if t.op != "before"][:3]
    return [f"alive at the peak: {mib(t.bytes)} {t.dtype} {list(t.shape)} of {t.op}" for t in tensors]


def _above(counts: Sequence[LiveBytes]) -> list[int]:
    return [c.above_bytes for c in counts]


def _mixed_difference(values: Sequence[int]) -> int:
    """Return f(2S, 2D) - f(2S, D) - f(S, 2D) + f(S, D) of the values at (S, D), (S, 2D), (2S, D), (2S, 2D)."""
    small, wide, long, both = values
    return both - long - wide + small


def _failed(failed: Failed) -> Verdict:
    return Verdict(status=failed.status, reason=failed.reason)


def as_port(port: Port | str) -> Port:
    """Return ``port``, or the port of the attention implementation of that name, registered."""
    if not isinstance(port, str):
        return port
    return TransformersPort(ensure(port))


def _evidence(check: str, port: Port | str, shape: AttentionShape, hardware: str) -> Evidence:
    return Evidence(
        check=check,
        status=Status.NOT_MEASURED,
        reason="",
        scenario=str(shape),
        port=as_port(port).name,
        hardware=hardware,
        dtype=str(shape.dtype).removeprefix("torch."),
    )


def _ended(evidence: Evidence, started: float, verdict: Verdict, details: Sequence[str] = ()) -> Evidence:
    return replace(
        evidence,
        status=verdict.status,
        reason=verdict.reason,
        measurements=verdict.measurements,
        details=tuple(details),
        duration_s=time.perf_counter() - started,
    )
