"""What evidence says of an exception that a port raised."""

from __future__ import annotations

import traceback

from gaudi_validate.models.loading import first_line


def raised(error: Exception) -> str:
    """Return one line: that the port raised, and what."""
    return f"the port raised {first_line(error)}"


def frames(error: Exception) -> tuple[str, ...]:
    """Return the three innermost frames of ``error``, the place first."""
    found = traceback.extract_tb(error.__traceback__)[-3:]
    return tuple(f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in reversed(found))
