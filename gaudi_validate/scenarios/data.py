"""Scenarios as frozen data with stable ids. No torch here: collection must stay cheap.

A scenario is a batch of token rows fed to a causal language model in one or more forward passes ("chunks"). The rows
are padded to one length, then the padded columns are cut into chunks; later chunks use the cache that earlier ones
left. Logits are collected for every column, so a defect at an intermediate position is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Padding = Literal["none", "left", "right"]
CacheKind = Literal["none", "dynamic", "static"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One input of the trigger matrix.

    ``lengths``: real tokens a row, the columns decoded later included. ``chunks``: how many padded columns each
    forward pass takes, their sum is the padded length; empty means all in one pass. ``cache_length``: slots of a
    static cache, more than are used, so that the tail must stay unseen. ``packed``: rows are several sequences laid
    end to end, positions restart at each of ``packed_lengths``. ``calls``: the whole scenario is run that many times
    on one object, with other tokens each time, and the last is judged; the calls before it are prefills of
    ``earlier_lengths`` where these are given, so that state which a longer call leaves behind is seen. ``needs``:
    features that a model must have (see ``ModelSpec.features``) for the scenario to say anything about it. ``axes``:
    what the scenario exercises, for diagnosis.
    """

    id: str
    lengths: tuple[int, ...]
    padding: Padding = "none"
    mask_given: bool = True
    chunks: tuple[int, ...] = ()
    cache: CacheKind = "none"
    cache_length: int | None = None
    packed_lengths: tuple[int, ...] = ()
    calls: int = 1
    earlier_lengths: tuple[int, ...] = ()
    seed: int = 0
    needs: frozenset[str] = field(default_factory=frozenset)
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        width = max(self.lengths)
        if self.padding == "none" and min(self.lengths) != width:
            raise ValueError(f"scenario {self.id}: rows of different lengths need a padding side")
        if self.chunks and sum(self.chunks) != width:
            raise ValueError(f"scenario {self.id}: chunks {self.chunks} do not add up to {width} columns")
        if len(self.chunks) > 1 and self.cache == "none":
            raise ValueError(f"scenario {self.id}: several chunks need a cache")
        if (self.cache == "static") != (self.cache_length is not None):
            raise ValueError(f"scenario {self.id}: a static cache, and only that, has a cache_length")
        if self.earlier_lengths and (self.calls < 2 or len(self.earlier_lengths) != len(self.lengths)):
            raise ValueError(f"scenario {self.id}: earlier_lengths need a second call and one length a row")
        if self.packed_lengths and sum(self.packed_lengths) != width:
            raise ValueError(f"scenario {self.id}: packed_lengths do not add up to {width} columns")

    @property
    def width(self) -> int:
        """Padded columns a row."""
        return max(self.lengths)

    @property
    def passes(self) -> tuple[int, ...]:
        """Columns of each forward pass."""
        return self.chunks or (self.width,)
