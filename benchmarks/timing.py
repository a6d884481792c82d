"""What the benchmarks share: interleaved timing, paired ratios, the machine's name, a table for eyes and for files."""

from __future__ import annotations

import platform
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Callable


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each call in each round, after two that warm up; the order turns round by round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    with torch.inference_mode():
        for index in range(-2, rounds):
            shift = index % len(names)
            for name in names[shift:] + names[:shift]:
                started = time.perf_counter()
                calls[name]()
                elapsed = (time.perf_counter() - started) * 1e3
                if index >= 0:
                    times[name].append(elapsed)
    return times


def median(times: list[float]) -> float:
    """Return the median."""
    return statistics.median(times)


def paired_ratio(times: list[float], others: list[float]) -> float:
    """Return the median over rounds of one's time by the other's: what slows a whole round cancels out."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def machine() -> str:
    """Return cores in use, instruction set and versions on one line."""
    isa = torch.backends.cpu.get_cpu_capability()
    amx = ", AMX" if torch.cpu._is_amx_tile_supported() else ""
    return f"{torch.get_num_threads()} threads, {platform.machine()}, {isa}{amx}, torch {torch.__version__}"


@dataclass
class Table:
    """Rows of text under a title."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row."""
        self.rows.append(tuple(map(str, cells)))


def write(table: Table, caption: str, markdown: str | None) -> None:
    """Print the table, and write it to the file ``markdown`` when there is one."""
    shown = RichTable(*table.columns, title=table.title, caption=caption)
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)
    if markdown is None:
        return
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    Path(markdown).write_text(f"**{table.title}** ({caption})\n\n{text}\n", encoding="utf-8")
