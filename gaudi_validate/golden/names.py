"""Names in files: what may become a part of a path below golden/, and how a hub id or a test becomes such a name."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError

if TYPE_CHECKING:
    from pathlib import Path

MAX_LENGTH = 120
_SLUG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.+=@-]*[A-Za-z0-9_+=@-])?")
_SEPARATOR = "--"  # stands for the slash of a hub id, as in the hub's own cache folders
_HASH_LENGTH = 8


def checked(name: str, what: str) -> str:
    """Return ``name`` when it can be one part of a path; ``what`` ("case", "model", "hardware key") is for the error.

    Raises:
        UserError: it is empty, too long, starts or ends with a dot, or holds anything but letters, digits and _.+=@-.
    """
    if len(name) <= MAX_LENGTH and _SLUG.fullmatch(name):
        return name
    raise UserError(
        f"{what} cannot be a file name",
        where=repr(name),
        do=f"use up to {MAX_LENGTH} letters, digits and _.+=@-, first a letter or digit, last no dot",
    )


def model_folder(name: str) -> str:
    """Return the folder of a model: its name, with "--" for the slash of a hub id. Two models never share one.

    Raises:
        UserError: the name is a path or holds what a folder cannot.
    """
    if _SEPARATOR in name:
        raise UserError("model name cannot hold '--'", where=repr(name), do="give the model another name")
    owner, slash, rest = name.partition("/")
    if not slash:
        return checked(name, "model name")
    return checked(owner, "model name") + _SEPARATOR + checked(rest, "model name")


def model_of_folder(folder: str) -> str:
    """Return the model whose folder this is: the inverse of :func:`model_folder`."""
    return folder.replace(_SEPARATOR, "/")


def check_apart(golden_dir: Path, snapshot_dirname: str | Path) -> None:
    """Refuse a golden folder inside a folder that syrupy takes for its own: it deletes there what it does not know.

    Raises:
        UserError: ``snapshot_dirname`` (--snapshot-dirname) names a folder that holds ``golden_dir``, or is it.
    """
    snapshots = PurePath(snapshot_dirname).name
    if snapshots in golden_dir.absolute().parts:
        raise UserError(
            f"--snapshot-dirname {snapshots} is a folder that holds goldens, and syrupy deletes what it does not know",
            where=str(golden_dir),
            do="choose another --snapshot-dirname or --golden-dir",
        )


def case_of_test(test: str) -> str:
    """Return the case for a test that gives no name: its own, made fit for a file, different for different tests."""
    if len(test) <= MAX_LENGTH and _SLUG.fullmatch(test):
        return test
    digest = hashlib.sha256(test.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    readable = re.sub(r"[^A-Za-z0-9_]+", "-", test)[: MAX_LENGTH - _HASH_LENGTH - 1].strip("-_") or "test"
    return f"{readable}-{digest}"
