"""Files that are there completely or not at all, whoever is killed: write beside, fsync, rename, fsync the folder."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import time
from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_NAME = ".lock"
LOCK_TIMEOUT_S = 60.0
_POLL_S = 0.02
_TEMPORARY = re.compile(r"\..+\.[0-9]+-[0-9a-f]{8}\.tmp")


def write(path: Path, data: bytes) -> None:
    """Make ``data`` the content of ``path``; its folder is created. A kill at any moment leaves the old or the new.

    Raises:
        UserError: it cannot be written (no space, no permission); the old file is as it was.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _create(temporary, data)
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with contextlib.suppress(OSError):  # gone after the rename; what a full disk left is cleaned
            temporary.unlink()


def unwritable(path: Path, error: OSError) -> UserError:
    """Return the one line for a file that could not be written."""
    return UserError(
        f"cannot write ({error.strerror or error})",
        where=str(path),
        do="what was there is as it was: make room or make the folder writable, and run again",
    )


def is_temporary(name: str) -> bool:
    """Return whether ``name`` is that of a file that :func:`write` has not finished."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left in ``folder``. Only under :func:`locked`, where no writer is alive."""
    for leftover in folder.glob(".*.tmp"):
        if is_temporary(leftover.name):
            leftover.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Keep other writers out of ``folder``, which is created. The system drops the lock when its holder dies.

    Raises:
        UserError: another process holds it for ``timeout_s``, the folder cannot be written, or the system has no flock.
    """
    path = folder / LOCK_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, time.monotonic() + timeout_s)
    except OSError as error:
        raise unwritable(path, error) from None
    try:
        yield
    finally:
        # Removed while it is held: who waits for the removed file sees another one under its name, and starts again.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, deadline: float) -> int:
    if sys.platform == "win32":
        raise UserError("goldens cannot be written on Windows", where=str(path), do="use WSL; reading works everywhere")
    import fcntl  # not there on Windows

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(path, descriptor):
                return descriptor
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() > deadline:
            raise UserError("another process is writing here", where=str(path.parent), do="wait for it and run again")
        time.sleep(_POLL_S)


def _is_file(path: Path, descriptor: int) -> bool:
    """Return whether ``descriptor`` still is the file under that name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _create(path: Path, data: bytes) -> None:
    # Not tempfile's 0600: goldens are shared files, the umask decides.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Put the rename on the disk. Windows cannot open folders."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
