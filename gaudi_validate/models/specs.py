"""What is known of a model before anything is loaded: its name, where it comes from, what it can exercise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Source = Literal["tiny", "wheel", "hub", "path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model by name. No weights, no torch.

    ``features`` are the words that ``Scenario.needs`` may ask for: "window", "alternate windows", "softcap",
    "own scale", "qk-norm", "moe", "rope scaling", "partial rotary", "gqa".
    ``location``: the hub id or local folder where ``source`` is "hub" or "path".
    """

    name: str
    source: Source
    features: frozenset[str] = field(default_factory=frozenset)
    location: str | None = None
