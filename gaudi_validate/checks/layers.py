"""Precision layer by layer: each decoder layer is given the reference's input, so that errors do not pile up.

This sees what a port does outside attention too (norms, RoPE, MLP, experts), and ports whose attention does not go
through transformers' interface. Shapes: B batch rows, T columns of a pass, M model width.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from gaudi_validate.checks import budgets, forward
from gaudi_validate.checks.diagnosis import phase
from gaudi_validate.checks.errors import judge
from gaudi_validate.checks.exact import exact_mode
from gaudi_validate.checks.kept import MIB, Kept
from gaudi_validate.checks.run import CPU, EXPERTS, NAIVE, chooses_experts, evidence_of, run_of
from gaudi_validate.checks.teacher import precise
from gaudi_validate.core.evidence import Location, Measurement
from gaudi_validate.core.verdicts import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from transformers import PreTrainedModel

    from gaudi_validate.checks.errors import Judged
    from gaudi_validate.checks.run import Run, What
    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.models.specs import ModelSpec
    from gaudi_validate.ports.base import Port
    from gaudi_validate.ports.pool import ModelPool

CHECK = "layer precision"
_INPUT = "hidden_states"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerYardstick:
    """Of each layer of each pass, in the order in which they run: input in fp32, truth, naive's output; [B, T, M]."""

    given: tuple[torch.Tensor, ...]
    truth: tuple[torch.Tensor, ...]
    naive: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors kept."""
        return sum(t.numel() * t.element_size() for t in (*self.given, *self.truth, *self.naive))


_YARDSTICKS: Kept[LayerYardstick] = Kept(256 * MIB, lambda yardstick: yardstick.nbytes)


def layer_parity(
    pool: ModelPool, port: Port, spec: ModelSpec, what: What, dtype: torch.dtype, *, hardware: str = "cpu"
) -> Evidence:
    """Return whether every decoder layer of ``port`` rounds no worse than the naive path's, by G alone.

    Arguments as for ``checks.precision.precision_parity``. The truth is the naive model with the same rounded weights
    and inputs in fp32, or in fp64 where fp32 is judged. NOT_MEASURED where the port's model has no list of as many
    layers as its config names, or they take other shapes; INCONCLUSIVE where experts may have been chosen otherwise.
    """
    run = run_of(pool, port, spec, what, dtype, hardware=hardware)
    run = replace(run, inputs=replace(run.inputs, calls=run.inputs.calls[-1:]))
    measure = _YARDSTICKS.get(pool, run.key(), lambda: _yardstick(run))

    def judge_run(evidence: Evidence) -> Evidence:
        outputs: list[torch.Tensor] = []
        with_inputs = _substituting(run.model(), run.dtype, measure.given, outputs)
        forward.run(run.model(), run.port, run.inputs.to(run.device), watch=lambda: with_inputs)
        if not outputs or [one.shape for one in outputs] != [one.shape for one in measure.truth]:
            reason = f"{len(outputs)} layer outputs seen, the reference has {len(measure.truth)}, or of other shapes"
            return replace(evidence, status=Status.NOT_MEASURED, reason=reason)
        return _verdict(evidence, run, measure, outputs)

    return evidence_of(CHECK, run, judge_run)


def decoder_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the decoder layers: the list of modules that is as long as the config says, empty when there is none."""
    count = model.config.get_text_config().num_hidden_layers
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == count]
    return list(lists[0]) if lists else []


def _yardstick(run: Run) -> LayerYardstick:
    given: list[torch.Tensor] = []
    model = run.pool.get(run.spec, NAIVE, torch.float32, CPU)
    forward.run(model, NAIVE, run.inputs, watch=lambda: _recording(model, given))
    naive: list[torch.Tensor] = []
    stock = run.naive().model()
    forward.run(stock, NAIVE, run.inputs.to(run.device), watch=lambda: _substituting(stock, run.dtype, given, naive))
    wide, truth = precise(run.dtype), list[torch.Tensor]()
    exact: PreTrainedModel = copy.deepcopy(stock).to(CPU, wide)  # type: ignore[arg-type]
    rounded = [one.to(run.dtype) for one in given]
    with exact_mode() if wide == torch.float64 else nullcontext():
        forward.run(exact, NAIVE, run.inputs, watch=lambda: _substituting(exact, wide, rounded, truth))
    return LayerYardstick(given=tuple(given), truth=tuple(truth), naive=tuple(naive))


@contextmanager
def _recording(model: PreTrainedModel, given: list[torch.Tensor]) -> Iterator[None]:
    def keep(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given.append((args[0] if args else kwargs[_INPUT]).detach().clone())

    with _hooked(model, before=keep):
        yield


@contextmanager
def _substituting(
    model: PreTrainedModel,
    dtype: torch.dtype,
    given: list[torch.Tensor] | tuple[torch.Tensor, ...],
    into: list[torch.Tensor],
) -> Iterator[None]:
    """Give each layer its input of ``given``, rounded to ``dtype``, and keep what it returns, on the CPU."""
    count = 0

    def give(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        nonlocal count
        own = args[0] if args else kwargs[_INPUT]
        if count < len(given) and own.shape == given[count].shape:
            own = given[count].to(device=own.device, dtype=dtype)
        count += 1
        return ((own, *args[1:]), kwargs) if args else (args, {**kwargs, _INPUT: own})

    def keep(_: torch.nn.Module, __: Any, output: Any) -> None:
        into.append((output[0] if isinstance(output, tuple) else output).detach().cpu())

    with _hooked(model, before=give, after=keep):
        yield


@contextmanager
def _hooked(
    model: PreTrainedModel, *, before: Callable[..., Any], after: Callable[..., Any] | None = None
) -> Iterator[None]:
    with ExitStack() as stack:
        for layer in decoder_layers(model):
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            if after is not None:
                stack.callback(layer.register_forward_hook(after).remove)
        yield


def _verdict(evidence: Evidence, run: Run, measure: LayerYardstick, outputs: list[torch.Tensor]) -> Evidence:
    count = len(outputs) // len(run.inputs.calls[-1])
    found = [_judge_layer(run, measure, outputs, layer, count) for layer in range(count)]
    limit = budgets.LAYERS[evidence.dtype]
    worst = max(range(count), key=lambda layer: found[layer].g)
    pattern, over = sum(one.pattern for one in found), sum(one.g > limit for one in found)
    evidence = replace(
        evidence,
        reason=f"G {found[worst].g:.3g}, limit {limit:g}, worst of {count} layers",
        measurements=(
            Measurement(name="worst G of a layer", value=found[worst].g, unit="naive's error", limit=limit),
            Measurement(name="NaN or infinite where naive is not", value=pattern, unit="values", limit=0),
            Measurement(name="layers judged", value=count, unit="layers"),
        ),
    )
    if not over:
        return evidence
    if not pattern and chooses_experts(run.model()):
        return replace(evidence, status=Status.INCONCLUSIVE, reason=f"{evidence.reason}; {EXPERTS}")
    return replace(evidence, status=Status.FAIL, location=_place(run, found[worst], worst, f"{over} of {count}"))


def _judge_layer(run: Run, measure: LayerYardstick, outputs: list[torch.Tensor], layer: int, count: int) -> Judged:
    """Judge one layer's rows of real tokens, of all passes together: a decode step alone has too few for an RMS."""

    def rows(of: Sequence[torch.Tensor]) -> torch.Tensor:
        parts = [
            of[index * count + layer][run.inputs.real[:, one.start : one.start + one.columns]]
            for index, one in enumerate(run.inputs.calls[-1])
        ]
        return torch.cat(parts)

    return judge(rows(outputs), rows(measure.naive), rows(measure.truth), run.format)


def _place(run: Run, judged: Judged, layer: int, share: str) -> Location:
    row = judged.row
    passes = run.inputs.calls[-1]
    for index, one in enumerate(passes):
        real = run.inputs.real[:, one.start : one.start + one.columns].nonzero()
        if row < len(real):
            batch_row, column = real[row].tolist()
            note = f"the worst row of the worst layer; {share} layers are over the limit"
            return Location(
                layer=layer, phase=phase(passes, index), batch_row=batch_row, query_row=one.start + column, note=note
            )
        row -= len(real)
    raise IndexError("no such row")
