"""Live bytes of a callable, counted exactly: every storage by its birth and its death.

A dispatch mode sees each tensor operation below autograd. The storage of a result that was not seen before is born
there; a weak reference tells when the last tensor on it is gone. Views share a storage and cost nothing. The count is
of bytes asked for, without an allocator's rounding, and is the same on a laptop, on fake tensors and on a device.

What it cannot see is workspace inside one operation: :data:`OPAQUE` names the operations that are known to have some,
and those that were met are in ``LiveBytes.opaque_ops``, so that a report can say so.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from gaudi_validate.measure.fakes import fake_mode, to_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

# Operations with workspace that no dispatch mode sees, by the start of their name. Operations outside of _TRANSPARENT
# (custom kernels, higher-order operators) are opaque as well, whatever they are called.
OPAQUE: tuple[str, ...] = (
    "aten::_scaled_dot_product_flash_attention",  # a tile of scores and of output for each thread
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention",
    "aten::_flash_attention",
    "aten::_efficient_attention",
    "aten::_cudnn_attention",
    "aten::_native_multi_head_attention",
    "aten::_transformer_encoder_layer",
    "aten::convolution",  # an unfolded input on some paths
    "aten::_convolution",
    "aten::mkldnn_",
    "aten::lstm",
    "aten::gru",
    "aten::sort",  # keys and indices are copied
    "aten::topk",
    "aten::unique",
    "aten::_unique",
    "aten::_grouped_mm",
)
_TRANSPARENT = ("aten", "prims", "prim")
# torch.tensor() and torch.from_numpy() hand a tensor in that no earlier operation made.
_LIFTS = frozenset({"aten::lift_fresh", "aten::lift_fresh_copy"})
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTensor:
    """A storage that was alive at the peak; ``op`` made it ("before": it was there first), ``shape`` at its birth."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """What a callable kept alive, in bytes.

    ``before_bytes`` are the storages that existed at the start and were named or touched; ``peak_bytes`` counts them
    in and ``above_bytes`` is the rest of the peak. ``allocated_bytes`` sums up all that was ever born, whether or not
    it lived at the same time; ``retained_bytes`` is what is still alive at the end with the result held, less before.
    ``peak_tensors`` are the largest storages alive at the peak, born at the operations named; ``timeline`` holds
    (operation, live bytes after it) when asked for.
    """

    peak_bytes: int
    before_bytes: int
    above_bytes: int
    allocated_bytes: int
    retained_bytes: int
    peak_op: str
    peak_tensors: tuple[LiveTensor, ...]
    ops: int
    opaque_ops: tuple[str, ...]
    timeline: tuple[tuple[str, int], ...] = ()


class _Record:
    __slots__ = ("birth", "dtype", "nbytes", "op", "shape")

    def __init__(self, nbytes: int, op: str, shape: tuple[int, ...], dtype: torch.dtype, birth: int) -> None:
        self.nbytes, self.op, self.shape, self.dtype, self.birth = nbytes, op, shape, dtype, birth


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    __slots__ = ("key", "record")
    key: int
    record: _Record


@dataclass(frozen=True, slots=True)
class _OpFacts:
    name: str
    mutable: bool
    opaque: bool
    lifts: bool
    ignored: bool


class LiveByteCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts while it is entered; :meth:`report` may be called at any time, also after an error.

    Python's cycle collector is off within the context: when it would run depends on what ran earlier in the process,
    and the count has to be the same every time. Cyclic garbage therefore stays alive, as it may in a real run.
    """

    supports_higher_order_operators = True

    def __init__(self, *, timeline: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._refs: dict[int, _StorageRef] = {}
        self._facts: dict[Any, _OpFacts] = {}
        self._wrapper_types: dict[type, bool] = {}
        self._died_since_peak: list[_Record] = []
        self._clock = self._live = self._peak = self._before = self._allocated = self._ops = 0
        self._peak_clock, self._peak_op = 0, ""
        self._opaque: dict[str, None] = {}
        self._timeline: list[tuple[str, int]] | None = [] if timeline else None
        self._depth = 0
        self._collect = False

    def __enter__(self) -> LiveByteCounter:
        if self._depth == 0:
            self._collect = gc.isenabled()
            gc.disable()
            self._resize = torch.UntypedStorage.resize_
            torch.UntypedStorage.resize_ = self._patched_resize()  # type: ignore[assignment, method-assign]
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._depth -= 1
        if self._depth == 0:
            torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
            if self._collect:
                gc.enable()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for kind in types:
            if self._is_wrapper(kind):
                # A wrapper has no storage of its own: what it does inside is counted, operation by operation.
                with self:
                    result = kind.__torch_dispatch__(func, types, args, kwargs)  # type: ignore[attr-defined]
                if result is not NotImplemented:
                    return result
        facts = self._facts.get(func) or self._learn(func)
        if facts.ignored:
            return func(*args, **kwargs)
        self._ops += 1
        if facts.opaque:
            self._opaque[facts.name] = None
        if not facts.lifts:
            self._see(args, None)
            if kwargs:
                self._see(kwargs.values(), None)
        result = func(*args, **kwargs)
        if facts.mutable:
            self._see(args, facts.name)
            self._see(kwargs.values(), facts.name)
        self._see((result,), facts.name)
        if self._timeline is not None:
            self._timeline.append((facts.name, self._before + self._live))
        return result

    def add_before(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count ``tensors`` among those that exist at the start, whether or not an operation touches them."""
        self._see(tensors, None)

    def report(self) -> LiveBytes:
        """Return the count so far."""
        return LiveBytes(
            peak_bytes=self._before + self._peak,
            before_bytes=self._before,
            above_bytes=self._peak,
            allocated_bytes=self._allocated,
            retained_bytes=self._live,
            peak_op=self._peak_op,
            peak_tensors=self._peak_tensors(),
            ops=self._ops,
            opaque_ops=tuple(self._opaque),
            timeline=tuple(self._timeline or ()),
        )

    def _see(self, values: Iterable[Any], op: str | None) -> None:
        """Note the storages of ``values``; new ones were born at ``op``, or before the count when that is None."""
        for value in values:
            if isinstance(value, torch.Tensor):
                if type(value) is not torch.Tensor and self._is_wrapper(type(value)):
                    self._see(_inner(value), op)
                elif value.layout is torch.strided:
                    self._see_storage(value, op)
                else:
                    self._see(_sparse_parts(value), op)
            elif isinstance(value, (list, tuple)):
                self._see(value, op)
            elif isinstance(value, dict):
                self._see(value.values(), op)

    def _see_storage(self, tensor: torch.Tensor, op: str | None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        ref = self._refs.get(key)
        if ref is not None:
            if op is not None and storage.nbytes() != ref.record.nbytes:
                self._resized(ref, storage.nbytes(), op)
            return
        ref = self._refs[key] = _StorageRef(storage, self._died)
        ref.key = key
        nbytes = storage.nbytes()
        if op is None:
            self._before += nbytes
            ref.record = _Record(nbytes, "before", tuple(tensor.shape), tensor.dtype, 0)
        else:
            ref.record = self._born(nbytes, op, tuple(tensor.shape), tensor.dtype)

    def _resized(self, ref: _StorageRef, nbytes: int, op: str) -> None:
        # The old memory is copied into the new and freed after that: both are alive for a moment.
        old = ref.record
        ref.record = self._born(nbytes, op, (nbytes,), torch.uint8)
        self._buried(old)

    def _born(self, nbytes: int, op: str, shape: tuple[int, ...], dtype: torch.dtype) -> _Record:
        self._clock += 1
        self._allocated += nbytes
        self._live += nbytes
        if self._live > self._peak:
            self._peak, self._peak_clock, self._peak_op = self._live, self._clock, op
            self._died_since_peak.clear()
        return _Record(nbytes, op, shape, dtype, self._clock)

    def _died(self, ref: weakref.ref[torch.UntypedStorage]) -> None:
        if isinstance(ref, _StorageRef) and self._refs.pop(ref.key, None) is not None:
            self._buried(ref.record)

    def _buried(self, record: _Record) -> None:
        self._clock += 1
        self._live -= record.nbytes
        if record.birth <= self._peak_clock:
            self._died_since_peak.append(record)

    def _peak_tensors(self) -> tuple[LiveTensor, ...]:
        alive = [ref.record for ref in self._refs.values() if ref.record.birth <= self._peak_clock]
        largest = sorted((*alive, *self._died_since_peak), key=lambda r: (-r.nbytes, r.birth))[:_SHOWN]
        return tuple(
            LiveTensor(op=r.op, shape=r.shape, dtype=str(r.dtype).removeprefix("torch."), bytes=r.nbytes)
            for r in largest
            if r.nbytes
        )

    def _learn(self, func: Any) -> _OpFacts:
        schema = getattr(func, "_schema", None)
        name = schema.name if schema is not None else f"higher_order::{func}"
        opaque = name.startswith(OPAQUE) or name.partition("::")[0] not in _TRANSPARENT
        mutable = schema is None or schema.is_mutable
        facts = self._facts[func] = _OpFacts(name, mutable, opaque, name in _LIFTS, name.startswith("prim::"))
        return facts

    def _is_wrapper(self, kind: type) -> bool:
        known = self._wrapper_types.get(kind)
        if known is None:
            dispatches = getattr(kind, "__torch_dispatch__", _NO_DISPATCH) is not _NO_DISPATCH
            known = self._wrapper_types[kind] = dispatches and not issubclass(kind, FakeTensor)
        return known

    def _patched_resize(self) -> Callable[[torch.UntypedStorage, int], torch.UntypedStorage]:
        """Return a storage's own ``resize_`` that is seen: it is no operation, so no mode is told of it."""
        original, counter = self._resize, self

        def resize_(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            result: torch.UntypedStorage = original(storage, size)
            ref = counter._refs.get(storage._cdata)
            if ref is not None:
                counter._resized(ref, storage.nbytes(), "storage.resize_")
            return result

        return resize_


def count(
    fn: Callable[..., Any],
    *args: Any,
    fake: bool | FakeTensorMode = False,
    before: Iterable[torch.Tensor] = (),
    timeline: bool = False,
    **kwargs: Any,
) -> LiveBytes:
    """Return the live bytes of ``fn(*args, **kwargs)``.

    Args:
        fn: called once. A module's parameters and buffers are counted among what existed before.
        args: its arguments. Tensors among them, however nested, existed before.
        fake: run on fake tensors, which have shapes and no data, so that full-size shapes fit anywhere. Real and meta
            tensors among the arguments become fake ones; pass the mode itself when ``fn`` holds fake tensors.
        before: further tensors that exist already (a cache, weights); those that ``fn`` touches are found unasked.
        timeline: keep the live bytes after each operation.
        kwargs: its keyword arguments.

    Raises:
        UserError: under ``fake``, ``fn`` reads a tensor's value.
    """
    counter = LiveByteCounter(timeline=timeline)
    with fake_mode(fake, (fn, args, kwargs)) as mode:
        if mode is not None:
            args, kwargs = to_fake(mode, args), to_fake(mode, kwargs)
        modules = [fn, *args, *kwargs.values()]
        weights = [t for m in modules if isinstance(m, torch.nn.Module) for t in (*m.parameters(), *m.buffers())]
        counter.add_before([*weights, *before, *_tensors((args, kwargs))])
        with counter:
            result = fn(*args, **kwargs)
        report = counter.report()
        del result
    return report


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _inner(wrapper: torch.Tensor) -> list[torch.Tensor]:
    flatten = getattr(wrapper, "__tensor_flatten__", None)
    if flatten is not None:
        return [getattr(wrapper, name) for name in flatten()[0]]
    held = list(vars(wrapper).values())
    held += [getattr(one, f.name) for one in held if is_dataclass(one) for f in fields(one)]
    return list(_tensors(held))


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    raise NotImplementedError(f"live bytes of a tensor with layout {tensor.layout} are not counted")
