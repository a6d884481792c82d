"""Record, or stand in for, the calls that a model makes to its attention function.

Shapes: B batch, H query heads, K key/value heads, T query rows, S keys, D head_dim.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel

AttentionResult = tuple[torch.Tensor, "torch.Tensor | None"]
AttentionFunction = Callable[..., AttentionResult]

_EAGER = "eager"
_EAGER_FUNCTION = "eager_attention_forward"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One call of the attention function.

    ``index`` counts the calls within the context; ``layer`` is the module's ``layer_idx``. query_BHTD, key_BKSD,
    value_BKSD; ``mask`` is whatever the port's mask function made (4-D bool or additive, or ``None``); ``kwargs`` are
    the rest (scaling, dropout, sliding_window, softcap, ...). ``output_BTHD`` is what came back, ``None`` before.
    """

    index: int
    layer: int | None
    module: torch.nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    kwargs: dict[str, Any]
    output: torch.Tensor | None = None

    def run(self, function: AttentionFunction, **changes: Any) -> AttentionResult:
        """Call ``function`` with these arguments; ``changes`` replace fields (query=..., value=..., mask=...)."""
        call = replace(self, **changes)
        return function(call.module, call.query, call.key, call.value, call.mask, **call.kwargs)


Around = Callable[[Call, AttentionFunction], AttentionResult]


@contextmanager
def attention_calls(
    name: str,
    model: PreTrainedModel,
    *,
    around: Around | None = None,
    keep: bool = True,
    into: list[Call] | None = None,
) -> Iterator[list[Call]]:
    """Swap the attention function called ``name`` for a wrapper, and yield the list that its calls are added to.

    Masks stay those of the mask function registered under ``name``. Enter it inside ``port.active(model)``, so that
    what a port swaps at that moment is seen; the entry that was there comes back at the end.

    Args:
        name: a name in transformers' AttentionInterface, or "eager": that one is no entry but a function of the
            modeling file, so the files that ``model``'s modules come from are patched.
        model: the model whose calls are meant.
        around: called as ``around(call, original)`` in place of the original; returns (output_BTHD, weights or None).
            ``call.run(original)`` goes on as usual, ``call.run(original, query=...)`` with other inputs. The recorded
            call holds the inputs that the model passed, not those that ``around`` made of them.
        keep: keep copies of the tensors (a static cache is overwritten later). With False the list holds calls whose
            tensors are empty: enough to count, and to stream through ``around`` at no cost in memory.
        into: the list to use, by default a new one.

    Raises:
        UserError: ``name`` is no registered attention implementation.
    """
    calls: list[Call] = [] if into is None else into
    with attention_replaced(name, model, lambda original: _wrapper(original, calls, around, keep=keep)):
        yield calls


@contextmanager
def attention_replaced(
    name: str, model: PreTrainedModel, make: Callable[[AttentionFunction], AttentionFunction]
) -> Iterator[None]:
    """Put ``make(original)`` in the place of the attention function called ``name`` for the time of the context.

    ``name`` and errors as in :func:`attention_calls`.
    """
    with ExitStack() as stack:
        for mapping, slot in _slots(name, model):
            stack.enter_context(replaced(mapping, slot, make(mapping[slot])))
        yield


def _wrapper(original: AttentionFunction, calls: list[Call], around: Around | None, *, keep: bool) -> AttentionFunction:
    def attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *args: Any,
        **kwargs: Any,
    ) -> AttentionResult:
        if args:
            raise TypeError(f"{type(module).__name__} passes {5 + len(args)} arguments by position; 5 are known")
        call = Call(
            index=len(calls),
            layer=getattr(module, "layer_idx", None),
            module=module,
            query=query,
            key=key,
            value=value,
            mask=attention_mask,
            kwargs=kwargs,
        )
        kept = _copied(call) if keep else _emptied(call)
        calls.append(kept)
        result = call.run(original) if around is None else around(call, original)
        calls[call.index] = replace(kept, output=result[0].detach().clone()) if keep else kept
        return result

    return attention


def _copied(call: Call) -> Call:
    mask = call.mask
    if isinstance(mask, torch.Tensor) and type(mask) is torch.Tensor:
        mask = mask.detach().clone()
    key, value = call.key.detach().clone(), call.value.detach().clone()
    return replace(call, query=call.query.detach().clone(), key=key, value=value, mask=mask)


def _emptied(call: Call) -> Call:
    nothing = call.query.new_empty(0)
    return replace(call, query=nothing, key=nothing, value=nothing, mask=None, kwargs={})


@contextmanager
def replaced(mapping: MutableMapping[str, Any], key: str, value: Any) -> Iterator[None]:
    """Put ``value`` into ``mapping[key]`` for the time of the context, then put back what was there, or nothing."""
    missing = object()
    before = mapping.get(key, missing)
    mapping[key] = value
    try:
        yield
    finally:
        if before is missing:
            del mapping[key]
        else:
            mapping[key] = before


def attention_function(name: str, model: PreTrainedModel) -> AttentionFunction:
    """Return the function that ``model`` calls under ``name``; for "eager" the one of its modeling file.

    Raises:
        UserError: ``name`` is no registered attention implementation.
    """
    mapping, slot = _slots(name, model)[0]
    function: AttentionFunction = mapping[slot]
    return function


def _slots(name: str, model: PreTrainedModel) -> list[tuple[MutableMapping[str, Any], str]]:
    """Return the dictionaries, with the key in each, that hold the function ``model`` finds under ``name``."""
    # transformers 4.55 to 5.x look functions up in this class-wide mapping, which `register` writes.
    registry: dict[str, Any] = AttentionInterface._global_mapping
    if name in registry:
        return [(registry, name)]
    if name != _EAGER:
        raise UserError("no such attention implementation", where=repr(name), do="register it with transformers first")
    files = [vars(sys.modules[file]) for file in sorted({type(module).__module__ for module in model.modules()})]
    slots: list[tuple[MutableMapping[str, Any], str]] = [(f, _EAGER_FUNCTION) for f in files if _EAGER_FUNCTION in f]
    if not slots:
        raise UserError("no eager attention function found", where=type(model).__name__)
    return slots
