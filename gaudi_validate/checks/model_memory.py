"""Memory of a whole model's prefill or decoding step under a port, counted exactly, against the naive path."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from gaudi_validate.checks.forward import cache_argument
from gaudi_validate.checks.kept import MIB, Kept
from gaudi_validate.checks.memory import as_port
from gaudi_validate.checks.state import as_found
from gaudi_validate.core import gates
from gaudi_validate.core.evidence import Evidence, Measurement
from gaudi_validate.core.gates import mib
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.measure.device_memory import is_out_of_memory
from gaudi_validate.measure.live_bytes import LiveBytes, count
from gaudi_validate.models.loading import first_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

Phase = Literal["prefill", "decode"]
CHECK = "model memory"


@dataclass(frozen=True, slots=True)
class _Outcome:
    counts: tuple[LiveBytes, ...] = ()
    status: Status = Status.PASS
    reason: str = ""


# What the naive path took is the same for every port that is held against it.
_NAIVE: Kept[_Outcome] = Kept(MIB, lambda _: 0)


def model_peak(
    pool: ModelPool,
    port: Port,
    spec: ModelSpec,
    *,
    lengths: Sequence[int] = (128, 256, 512),
    batch: int = 2,
    phase: Phase = "prefill",
    dtype: torch.dtype = torch.float32,
    declared_ratio: float = 1.0,
    naive: Port | str = "naive",
    hardware: str = "cpu",
) -> Evidence:
    """Count the peak of ``spec``'s forward pass above weights and inputs, under ``port`` and under the naive path.

    Judged are the ratio at the longest length and, in a prefill, the growth with length: the last length's token
    columns are all computed, logits of the last one only. The first batch row has left padding.

    Args:
        pool: loads models, once a session.
        port: the port under test.
        spec: the model.
        lengths: rising padded lengths of the prompt, three or more for a prefill, the first at least the port's block
            of query rows. ``decode`` takes the last and counts one step on a cache of that length.
        batch: rows.
        phase: "prefill" or "decode".
        dtype: of the weights.
        declared_ratio: the most that the port's peak may be of naive's.
        naive: what to compare with.
        hardware: the key that the evidence carries.
    """
    started = time.perf_counter()
    reference = as_port(naive)
    lengths = lengths if phase == "prefill" else lengths[-1:]
    evidence = Evidence(
        check=CHECK,
        status=Status.NOT_MEASURED,
        reason="",
        model=spec.name,
        scenario=f"{phase}, batch {batch}, length {lengths[-1]}",
        port=port.name,
        hardware=hardware,
        dtype=str(dtype).removeprefix("torch."),
    )
    sizes = tuple((batch, length) for length in lengths)

    def counted(one: Port) -> _Outcome:
        return _counted(pool.get(spec, one, dtype, torch.device("cpu")), one, phase, sizes)

    key = (spec, reference.name, reference.load_key, dtype, phase, sizes)
    slow = _NAIVE.get(pool, key, lambda: counted(reference))
    fast = counted(port) if slow.status is Status.PASS else slow
    if fast.status is Status.PASS:
        evidence = _judged(evidence, lengths, slow.counts, fast.counts, declared_ratio)
    else:
        evidence = replace(evidence, status=fast.status, reason=fast.reason)
    return replace(evidence, duration_s=time.perf_counter() - started)


def _judged(
    evidence: Evidence, lengths: Sequence[int], slow: Sequence[LiveBytes], fast: Sequence[LiveBytes], declared: float
) -> Evidence:
    peaks = [c.above_bytes for c in fast]
    verdicts = [gates.memory_ratio(peaks[-1], slow[-1].above_bytes, declared)]
    if len(lengths) > 1:
        verdicts.append(gates.memory_slope(lengths, peaks))
    also = (
        Measurement(name="bytes allocated", value=fast[-1].allocated_bytes, unit="bytes"),
        Measurement(name="naive bytes allocated", value=slow[-1].allocated_bytes, unit="bytes"),
        Measurement(name="bytes kept", value=fast[-1].retained_bytes, unit="bytes"),
        Measurement(name="operations", value=fast[-1].ops, unit="operations"),
    )
    verdict = gates.combined(verdicts, also)
    details = [
        f"{name}: {mib(c.above_bytes)} at length {length}, at {c.peak_op}"
        for name, counts in ((evidence.port, fast), ("naive", slow))
        for length, c in zip(lengths, counts, strict=True)
    ]
    if opaque := sorted({op for c in fast for op in c.opaque_ops}):
        details.append(f"workspace inside {', '.join(opaque)} is not counted")
    return replace(
        evidence,
        status=verdict.status,
        reason=verdict.reason,
        measurements=verdict.measurements,
        details=tuple(details),
    )


def _counted(model: PreTrainedModel, port: Port, phase: Phase, sizes: Sequence[tuple[int, int]]) -> _Outcome:
    counts = []
    for batch, length in sizes:
        try:
            with torch.no_grad(), as_found(model), port.active(model):
                counts.append(_count(model, phase, batch, length))
        except UserError:
            raise
        except Exception as error:
            out = is_out_of_memory(error)
            reason = "out of memory" if out else f"{port.name} raised {first_line(error)}"
            return _Outcome(status=Status.FAIL, reason=f"{reason} at batch {batch}, length {length}")
    return _Outcome(counts=tuple(counts))


def _count(model: PreTrainedModel, phase: Phase, batch: int, length: int) -> LiveBytes:
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(0, model.config.get_text_config().vocab_size, (batch, length + 1), generator=generator)
    mask_BT = torch.ones(batch, length + 1, dtype=torch.int64)
    mask_BT[0, : max(1, length // 8)] = 0
    weights = [*model.parameters(), *model.buffers()]

    def run(ids: torch.Tensor, mask: torch.Tensor, cache: Any = None) -> Any:
        given = {} if cache is None else {cache_argument(model): cache}
        return model(ids, attention_mask=mask, use_cache=True, logits_to_keep=1, **given)

    prompt = ids_BT[:, :length].contiguous(), mask_BT[:, :length].contiguous()
    if phase == "prefill":
        return count(run, *prompt, before=weights)
    output = run(*prompt)
    # Newer versions of transformers 5 call it "cache".
    cache = next(output[name] for name in ("cache", "past_key_values") if name in output)
    del output
    return count(run, ids_BT[:, length:].contiguous(), mask_BT, cache, before=weights)
