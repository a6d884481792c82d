"""Where the project keeps what it can make again: built and converted models, reference results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "gaudi-validate"


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return the cache folder; it need not exist yet.

    ``$GAUDI_VALIDATE_CACHE`` as it is, else ``$XDG_CACHE_HOME/gaudi-validate``, else ``~/.cache/gaudi-validate``. A
    relative XDG_CACHE_HOME is ignored, as the XDG base directory specification asks; an empty variable counts as unset.
    """
    if own := environ.get("GAUDI_VALIDATE_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = environ.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / FOLDER
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / FOLDER
