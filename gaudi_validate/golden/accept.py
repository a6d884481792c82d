"""``gaudi-validate accept``: takes goldens and baselines from the evidence file of a CI run, without its hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaudi_validate.core.evidence import to_json
from gaudi_validate.core.messages import UserError
from gaudi_validate.golden.store import GoldenStore
from gaudi_validate.golden.update import Run, apply
from gaudi_validate.report import evidence_file

if TYPE_CHECKING:
    from pathlib import Path

    from gaudi_validate.core.golden_rules import Decision


def accept(evidence_path: Path, golden_dir: Path, *, reason: str | None = None) -> list[Decision]:
    """Record what the run proposed, by the rules that the run itself would have been held to.

    Hardware and provenance are those of the run that measured. Nothing is pruned.

    Args:
        evidence_path: the file that ``--evidence`` wrote.
        golden_dir: the project's golden folder.
        reason: needed where a golden changes or a bar is loosened.

    Raises:
        UserError: the file is no evidence file or proposes nothing, or a golden cannot be written.
    """
    content = evidence_file.read(evidence_path)
    if not content.proposals:
        raise UserError(
            "no goldens or baselines in the evidence file",
            where=str(evidence_path),
            do="run the tests that use golden, memory_gate or perf_gate with --evidence",
        )
    run = Run(evidence=[to_json(one) for one in content.evidence], provenance=content.provenance, reason=reason)
    return apply(content.proposals, run, GoldenStore(golden_dir), not_full="accept never prunes")
