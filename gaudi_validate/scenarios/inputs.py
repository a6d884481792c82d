"""Tensors of a scenario: made late, seeded, the same on every machine.

Shapes: B batch rows, W padded columns, C columns of one forward pass.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gaudi_validate.scenarios.data import Scenario


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pass:
    """What one forward pass is given.

    ``start`` is its first padded column. input_ids [B, C] and position_ids [B, C] cover its own columns,
    attention_mask [B, start + C] all columns so far, as in generation; ``None`` where the scenario gives none.
    """

    start: int
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor | None

    @property
    def columns(self) -> int:
        """Columns of this pass."""
        return self.input_ids.shape[1]

    def to(self, device: torch.device | str) -> Pass:
        """Return the pass with its tensors on ``device``."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=None if self.attention_mask is None else self.attention_mask.to(device),
            position_ids=None if self.position_ids is None else self.position_ids.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScenarioInputs:
    """The passes of every call, and ``real`` [B, W]: which (row, column) hold a real token."""

    scenario: Scenario
    calls: tuple[tuple[Pass, ...], ...]
    real: torch.Tensor

    def to(self, device: torch.device | str) -> ScenarioInputs:
        """Return the same inputs with every tensor of a pass on ``device``; ``real`` stays on the CPU."""
        calls = tuple(tuple(one.to(device) for one in passes) for passes in self.calls)
        return replace(self, calls=calls)


def make(scenario: Scenario, vocab_size: int) -> ScenarioInputs:
    """Return the inputs of ``scenario`` for a vocabulary of ``vocab_size`` tokens, on the CPU.

    Padded columns hold random tokens, not one pad id: a zero embedding would hide that padding is attended to.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(scenario.id.encode()) + scenario.seed)
    earlier = [_earlier(scenario)] * (scenario.calls - 1)
    calls = tuple(_call(one, vocab_size, generator) for one in (*earlier, scenario))
    return ScenarioInputs(scenario=scenario, calls=calls, real=real_tokens(scenario))


def real_tokens(scenario: Scenario) -> torch.Tensor:
    """Return bool [B, W], true where a row holds a real token, on the CPU."""
    column = torch.arange(scenario.width)[None, :]
    length = torch.tensor(scenario.lengths)[:, None]
    return column >= scenario.width - length if scenario.padding == "left" else column < length


def _earlier(scenario: Scenario) -> Scenario:
    lengths = scenario.earlier_lengths
    return replace(scenario, lengths=lengths, chunks=(), calls=1, earlier_lengths=()) if lengths else scenario


def _call(scenario: Scenario, vocab_size: int, generator: torch.Generator) -> tuple[Pass, ...]:
    ids = torch.randint(vocab_size, (len(scenario.lengths), scenario.width), generator=generator)
    mask = real_tokens(scenario).long() if scenario.mask_given else None
    return _passes(scenario.passes, ids, mask, _positions(scenario, mask))


def _positions(scenario: Scenario, mask: torch.Tensor | None) -> torch.Tensor | None:
    if scenario.packed_lengths:
        row = torch.cat([torch.arange(length) for length in scenario.packed_lengths])
        return row.expand(len(scenario.lengths), -1).contiguous()
    if mask is None:
        return None
    # As generation has it since transformers 5: padded columns get position 0.
    return (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)


def _passes(
    widths: tuple[int, ...], ids: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor | None
) -> tuple[Pass, ...]:
    passes, start = [], 0
    for width in widths:
        end = start + width
        passes.append(
            Pass(
                start=start,
                input_ids=ids[:, start:end],
                attention_mask=None if mask is None else mask[:, :end],
                position_ids=None if positions is None else positions[:, start:end],
            )
        )
        start = end
    return tuple(passes)
