"""What a run says on the terminal: the header before, the summary after. Text only; pytest prints it."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from gaudi_validate import __version__
from gaudi_validate.core.verdicts import Status
from gaudi_validate.report.summary import Row, count_line, next_command, rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gaudi_validate.core.evidence import Evidence
    from gaudi_validate.core.settings import Settings

MAX_LINES, MAX_NOTES = 40, 12
_FRAME = 5  # the counts, the table's head, how many rows are left out, and the next command with its reason
_STYLE = {Status.PASS: "green", Status.IMPROVED: "green", Status.FAIL: "bold red", Status.NOT_MEASURED: "bold red"}


def header(
    settings: Settings,
    attention: str,
    versions: Mapping[str, str],
    missing: Sequence[tuple[str, str]],
    *,
    shipped_suite: str | None = None,
) -> list[str]:
    """Return the header's lines.

    ``missing``: (what is not measured here, why). ``shipped_suite``: the option that, without a path, made the shipped
    suite run.
    """
    port = f"port {settings.port or 'transformers'}, attention {attention}"
    fault = f", FAULT {settings.plant_fault} PLANTED" if settings.plant_fault else ""
    lines = [
        f"gaudi-validate {__version__}: hardware {settings.hardware} ({settings.hardware_source}), "
        f"{port}, model {settings.model}, {settings.dtype}{fault}",
        "versions: " + ", ".join(f"{package} {version}" for package, version in versions.items()),
    ]
    lines += [f"not measured here: {what}: {why}" for what, why in missing]
    if shipped_suite is not None:
        lines.append(f"suite: {shipped_suite} without a path runs the checks shipped in gaudi_validate.suite")
    return lines


def summary(
    evidence: Sequence[Evidence],
    *,
    strict: bool,
    record: str | None,
    width: int,
    colour: bool,
    notes: Sequence[str] = (),
) -> list[str]:
    """Return the summary's lines, :data:`MAX_LINES` at most; ``record`` as for :func:`next_command`."""
    grouped = rows(evidence)
    if len(notes) > MAX_NOTES:
        notes = [*notes[: MAX_NOTES - 1], f"... and {len(notes) - MAX_NOTES + 1} notes more"]
    shown = MAX_LINES - _FRAME - len(notes)
    lines = [count_line(evidence), *(_table(grouped[:shown], width, colour=colour) if grouped else ())]
    if len(grouped) > shown:
        lines.append(f"... and {len(grouped) - shown} rows more, none graver; --evidence PATH writes them all")
    lines += notes
    todo = next_command(evidence, strict=strict, record=record)
    if todo is not None:
        lines += [f"next ({todo[0]}):", f"  {todo[1]}"]
    return lines


def _table(grouped: Sequence[Row], width: int, *, colour: bool) -> list[str]:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [
        (
            str(row.status),
            row.check,
            row.model,
            row.port,
            row.dtype,
            f"{row.not_passed}/{row.cases}" if row.not_passed else str(row.cases),
        )
        for row in grouped
    ]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, name in enumerate(("verdict", "check", "model", "port", "dtype", "cases")):
        longest = max(len(name), *(len(row[index]) for row in cells))
        table.add_column(name, no_wrap=True, min_width=longest, justify="right" if name == "cases" else "left")
    # Only the last column gives way where the terminal is narrow.
    table.add_column("nearest to its limit", no_wrap=True, overflow="ellipsis")
    for row, words in zip(grouped, cells, strict=True):
        verdict = Text(words[0], style=_STYLE.get(row.status, "yellow"))
        table.add_row(verdict, *(Text(word) for word in words[1:]), Text(row.figure))
    out = StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]
