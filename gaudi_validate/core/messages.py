"""Errors that a user can act on, and the one form that their messages take."""

from __future__ import annotations


class UserError(Exception):
    """A user's mistake or environment: shown as one line (what, where, what to do), never as a traceback."""

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        self.what, self.where, self.do = what, where, do
        super().__init__(one_line(what, where, do))


def one_line(what: str, where: str = "", do: str = "") -> str:
    """Return ``what: where; do`` on a single line, the parts that are empty left out."""
    text = ": ".join(part for part in (what, where) if part)
    text = f"{text}; {do}" if do else text
    return " ".join(text.split())
