"""What a run, or the evidence file of one, brings to an update of goldens and baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gaudi_validate.core import golden_rules as rules
from gaudi_validate.golden.records import ProvenanceRecord, provenance_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gaudi_validate.core.provenance import Provenance
    from gaudi_validate.golden.proposals import Proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run hands over: its evidence (``core.evidence.to_json`` each), provenance, and the reason for changes."""

    evidence: Sequence[Mapping[str, Any]]
    provenance: Provenance
    reason: str | None = None

    def refusal(self, proposal: Proposal) -> str | None:
        """Return why ``proposal`` may not be recorded whatever it says, ``None`` if it may."""
        return rules.wrong_hardware(proposal.hardware, self.provenance.hardware) or rules.gate(
            self.evidence, port=proposal.port, model=proposal.model
        )

    def stamp(self, samples: int = 1) -> ProvenanceRecord:
        """Return the provenance entry of what this run records."""
        return provenance_record(self.provenance, reason=rules.given(self.reason), samples=samples)
