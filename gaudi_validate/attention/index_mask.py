"""Masks known by a rule on indices: any block of one is made when it is needed, and most need none.

Shapes: B batch rows, H query heads, T query rows, S keys; t and s are the rows and keys of one block. Rows and columns
are counted within the call, positions within the sequence: position = row + first row's position, and likewise for
keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

# (batch, head, query position, key position) -> bool, elementwise with broadcasting: transformers' mask functions.
Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What is known of a rule without evaluating it.

    ``causal``: no query sees a later key. ``window``: nor one ``window`` or more positions before it. ``exact``: these
    two are all there is, so a block that they leave alone is fully visible.
    """

    causal: bool = False
    window: int | None = None
    exact: bool = False


class Block(NamedTuple):
    """The mask of one block of the scores.

    ``allowed``: bool, broadcastable to [B, H, t, s], ``None`` when everything is seen. ``bias``: added to the scores,
    likewise. ``causal``: the block is square and its diagonal is the mask's, so a kernel's own causal flag does.
    ``empty_rows`` and ``dead_columns``: some row may see nothing, some key may be seen by no row.
    """

    allowed: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    causal: bool = False
    empty_rows: bool = False
    dead_columns: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexMask:
    """A mask [B, 1, T, S] as a rule.

    ``start``: position of row 0, or a tensor [T] of positions where the host cannot know it (a static cache's length
    is on the device). ``key_start``: position of key 0. ``padding``: bool [B, S] on the same keys, false where a key
    is padding. ``rule``: the predicate; ``None`` where ``pattern`` is exact and says it all.
    """

    batch: int
    rows: int
    columns: int
    device: torch.device
    pattern: Pattern
    start: int | torch.Tensor = 0
    key_start: int = 0
    padding: torch.Tensor | None = None
    rule: Rule | None = None

    def key_range(self, first: int, last: int) -> tuple[int, int]:
        """Return the columns [from, to) that rows [first, last) may see: at least one, and never fewer than they do."""
        if not isinstance(self.start, int):
            return 0, self.columns
        shift = self.start - self.key_start
        begin, end = 0, self.columns
        if self.pattern.causal:
            end = min(end, shift + last)
        if self.pattern.window is not None:
            begin = max(begin, shift + first - self.pattern.window + 1)
        end = max(end, 1)
        return min(begin, end - 1), end

    def block(self, first: int, last: int, begin: int, end: int) -> Block:
        """Return the mask of rows [first, last) and columns [begin, end)."""
        if self._known() and self._all_seen(first, last, begin, end):
            return Block()
        allowed = self._evaluate(first, last, begin, end)
        if not self._known():
            return Block(allowed=allowed, empty_rows=True, dead_columns=True)
        tight = (begin, end) == self.key_range(first, last)
        return Block(
            allowed=allowed,
            causal=self._is_diagonal(first, last, begin, end),
            empty_rows=not (tight and self._each_row_sees_itself(first, last)),
            dead_columns=not tight,
        )

    def hides_nothing(self) -> bool:
        """Return whether every row is known to see every column."""
        return self._known() and self._all_seen(0, self.rows, 0, self.columns)

    def is_triangle(self) -> bool:
        """Return whether the mask is known to be the causal one of as many rows as columns."""
        return self._known() and self._is_diagonal(0, self.rows, 0, self.columns)

    def window_of(self, first: int, last: int, begin: int, end: int) -> IndexMask:
        """Return the mask of rows [first, last) and columns [begin, end), unevaluated."""
        start = self.start + first if isinstance(self.start, int) else self.start[first:last]
        return replace(
            self,
            rows=last - first,
            columns=end - begin,
            start=start,
            key_start=self.key_start + begin,
            padding=None if self.padding is None else self.padding[:, begin:end],
        )

    def dense(self) -> torch.Tensor:
        """Return the whole mask: bool [B, 1, T, S], contiguous."""
        allowed = self._evaluate(0, self.rows, 0, self.columns)
        return allowed.expand(self.batch, 1, self.rows, self.columns).contiguous()

    def causal_only(self) -> bool:
        """Return whether rows see every key up to their own, each row has one, and no window ends before the first."""
        if not self._known() or not self.pattern.causal or not self._each_row_sees_itself(0, self.rows):
            return False
        _, q_last, k_first, _ = self._relative(0, self.rows, 0, self.columns)
        return self.pattern.window is None or k_first > q_last - self.pattern.window

    def _known(self) -> bool:
        return self.pattern.exact and self.padding is None and isinstance(self.start, int)

    def _relative(self, first: int, last: int, begin: int, end: int) -> tuple[int, int, int, int]:
        assert isinstance(self.start, int)
        return self.start + first, self.start + last - 1, self.key_start + begin, self.key_start + end - 1

    def _all_seen(self, first: int, last: int, begin: int, end: int) -> bool:
        q_first, q_last, k_first, k_last = self._relative(first, last, begin, end)
        window = self.pattern.window
        return (not self.pattern.causal or k_last <= q_first) and (window is None or k_first > q_last - window)

    def _is_diagonal(self, first: int, last: int, begin: int, end: int) -> bool:
        q_first, q_last, k_first, k_last = self._relative(first, last, begin, end)
        window = self.pattern.window
        inside = window is None or k_first > q_last - window
        return self.pattern.causal and inside and q_first == k_first and q_last == k_last

    def _each_row_sees_itself(self, first: int, last: int) -> bool:
        q_first, q_last, k_first, k_last = self._relative(first, last, 0, self.columns)
        return k_first <= q_first and q_last <= k_last and (self.pattern.window is None or self.pattern.window > 0)

    def _evaluate(self, first: int, last: int, begin: int, end: int) -> torch.Tensor:
        """Return bool, broadcastable to [B, 1, t, s]."""
        q_T1 = self._positions(first, last)[:, None]
        k_S = torch.arange(self.key_start + begin, self.key_start + end, device=self.device)
        allowed = self._rule(q_T1[None, None], k_S[None, None, None, :])
        if self.padding is not None:
            allowed = allowed & self.padding[:, None, None, begin:end]
        return allowed.expand(-1, -1, last - first, end - begin)

    def _positions(self, first: int, last: int) -> torch.Tensor:
        if isinstance(self.start, int):
            return torch.arange(self.start + first, self.start + last, device=self.device)
        return self.start[first:last]

    def _rule(self, q_11T1: torch.Tensor, k_111S: torch.Tensor) -> torch.Tensor:
        if self.rule is not None:
            batch_B111 = torch.arange(self.batch, device=self.device)[:, None, None, None]
            head_1111 = torch.zeros((1, 1, 1, 1), dtype=torch.long, device=self.device)
            return self.rule(batch_B111, head_1111, q_11T1, k_111S)
        allowed = k_111S <= q_11T1 if self.pattern.causal else (k_111S >= self.key_start)
        return allowed if self.pattern.window is None else allowed & (k_111S > q_11T1 - self.pattern.window)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorMask:
    """A mask that a caller passed as a tensor [B or 1, H or 1, T, S]: bool, or additive in ``bias`` with it."""

    allowed: torch.Tensor
    bias: torch.Tensor | None = None

    def key_range(self, first: int, last: int) -> tuple[int, int]:
        """Return all columns: what a tensor hides is known only by reading it."""
        return 0, self.allowed.shape[-1]

    def block(self, first: int, last: int, begin: int, end: int) -> Block:
        """Return the mask of rows [first, last) and columns [begin, end)."""
        bias = None if self.bias is None else self.bias[:, :, first:last, begin:end]
        return Block(allowed=self.allowed[:, :, first:last, begin:end], bias=bias, empty_rows=True, dead_columns=True)


Mask = IndexMask | TensorMask


def readable(tensor: torch.Tensor) -> bool:
    """Return whether the host may read values of ``tensor`` without breaking a graph or stalling a device's queue."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)
