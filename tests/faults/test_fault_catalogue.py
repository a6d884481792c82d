from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gaudi_validate.faults.catalogue import FAULTS
from gaudi_validate.models.catalogue import TINY
from gaudi_validate.scenarios.matrix import BY_ID

if TYPE_CHECKING:
    from gaudi_validate.faults.fault import Fault


def test_enough_faults_of_enough_classes() -> None:
    assert len(FAULTS) >= 14
    assert len({fault.cls for fault in FAULTS.values()}) >= 12


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.id)
def test_every_fault_is_well_formed(fault: Fault) -> None:
    assert fault.id[0] == fault.cls[0]
    assert fault.model in TINY
    assert {*fault.shows, *fault.silent} <= set(BY_ID)
    assert not set(fault.shows) & set(fault.silent)
    assert fault.check in {"logic parity", "memory"}
    assert bool(fault.shows) == (fault.check == "logic parity")
