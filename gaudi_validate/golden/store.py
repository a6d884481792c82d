"""Golden and baseline files by hardware, model and case: read strictly, written atomically, never outside golden/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gaudi_validate.core import atomic
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.names import checked, model_folder, model_of_folder
from gaudi_validate.golden.records import BaselineFile, TextGolden, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

SUFFIX = ".json"
TEXT, BASELINES = "text", "baselines"


@dataclass(frozen=True, slots=True)
class GoldenStore:
    """The folder ``golden/``. Every look-up names its hardware key; there is no fallback to another one.

    A name that cannot be one part of a path, and a symlink below ``root``, are a :class:`UserError`: neither may lead
    outside, nor to another hardware's file.
    """

    root: Path

    def text_path(self, hardware: str, model: str, case: str) -> Path:
        """Return where the golden text of ``case`` is kept."""
        parts = checked(hardware, "hardware key"), model_folder(model), checked(case, "case") + SUFFIX
        return self._inside(TEXT, *parts)

    def baseline_path(self, hardware: str) -> Path:
        """Return where the baselines of ``hardware`` are kept."""
        return self._inside(BASELINES, checked(hardware, "hardware key") + SUFFIX)

    def name_of(self, path: Path) -> str:
        """Return ``path`` as messages name it: below the golden folder's own name."""
        return f"{self.root.name}/{path.relative_to(self.root).as_posix()}"

    def text(self, hardware: str, model: str, case: str) -> TextGolden | None:
        """Return the golden text, ``None`` if there is none. Raises UserError for a file that cannot be read."""
        path = self.text_path(hardware, model, case)
        data = self._read(path)
        return None if data is None else decode(data, TextGolden, str(path))

    def baselines(self, hardware: str) -> BaselineFile | None:
        """Return the baselines of ``hardware``, ``None`` if there are none. Raises UserError as :meth:`text` does."""
        path = self.baseline_path(hardware)
        data = self._read(path)
        found = None if data is None else decode(data, BaselineFile, str(path))
        if found is not None and found.hardware != hardware:
            raise UserError(
                f"baselines of {found.hardware}, not of {hardware}",
                where=str(path),
                do="never copy another hardware's numbers: delete the file and record it with --update-golden",
            )
        return found

    def write_text(self, hardware: str, model: str, case: str, golden: TextGolden) -> Path:
        """Write a golden text atomically and return its path."""
        return self.write(self.text_path(hardware, model, case), encode(golden))

    def write_baselines(self, baselines: BaselineFile) -> Path:
        """Write a baseline file atomically and return its path."""
        return self.write(self.baseline_path(baselines.hardware), encode(baselines))

    def delete_text(self, hardware: str, model: str, case: str) -> None:
        """Delete a golden text."""
        path = self.text_path(hardware, model, case)
        try:
            path.unlink()
        except OSError as error:
            raise atomic.unwritable(path, error) from None

    def texts(self, hardware: str) -> list[tuple[str, str]]:
        """Return (model, case) of every golden text of ``hardware``."""
        folder = self._inside(TEXT, checked(hardware, "hardware key"))
        files = [path for path in folder.glob(f"*/*{SUFFIX}") if not _hidden(path)]
        return sorted((model_of_folder(path.parent.name), path.stem) for path in files)

    def hardware_keys(self) -> list[str]:
        """Return the hardware keys that have a golden or a baseline."""
        texts = {path.name for path in (self.root / TEXT).glob("*") if path.is_dir()}
        return sorted(texts | {path.stem for path in (self.root / BASELINES).glob(f"*{SUFFIX}") if not _hidden(path)})

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers out between reading and writing. Not re-entrant."""
        return atomic.locked(self.root)

    def remove_leftovers(self) -> None:
        """Remove what killed writers left. Only under :meth:`locked`."""
        for folder in self._folders():
            atomic.remove_leftovers(folder)

    def _folders(self) -> Iterator[Path]:
        yield self.root / BASELINES
        yield from (self.root / TEXT).glob("*/*/")

    def _inside(self, *parts: str) -> Path:
        path = self.root
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise UserError(
                    "a symlink in the golden folder", where=str(path), do="replace it by the file or folder itself"
                )
        return path

    def _read(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UserError(
                f"cannot read ({error.strerror or error})", where=str(path), do="make it a readable file"
            ) from None

    def write(self, path: Path, data: bytes) -> Path:
        """Write an encoded record to a path of this store, atomically, and return the path."""
        atomic.write(path, data)
        return path


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")
