"""Fake tensors for counting: full-size shapes on a machine that could not hold the data."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@contextmanager
def fake_mode(fake: bool | FakeTensorMode, values: Any) -> Iterator[FakeTensorMode | None]:
    """Enter the mode of the fake tensors among ``values``, else a new one; nothing when ``fake`` is False.

    Real tensors that a closure holds are taken as fake ones of the same shape.

    Raises:
        UserError: something inside reads a tensor's value, which fake tensors do not have.
    """
    if fake is False:
        yield None
        return
    mode = fake if isinstance(fake, FakeTensorMode) else _mode_of(values) or FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode:
            yield mode
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = f"{error.func} reads a tensor's value, which fake tensors do not have"
        raise UserError(what, do="count on real tensors of a smaller shape") from error


def to_fake(mode: FakeTensorMode, values: T) -> T:
    """Return ``values`` with each tensor, however nested, as one of ``mode``; meta tensors come to lie on the CPU."""
    converted: T = pytree.tree_map_only(torch.Tensor, lambda tensor: _fake(mode, tensor), values)
    return converted


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    if tensor.is_meta:
        with mode:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            return made.requires_grad_(tensor.requires_grad)
    return mode.from_tensor(tensor)


def _mode_of(values: Any) -> FakeTensorMode | None:
    for leaf in pytree.tree_leaves(values):
        tensors = leaf.parameters() if isinstance(leaf, torch.nn.Module) else (leaf,)
        for tensor in tensors:
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    return None
