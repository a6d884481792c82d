"""The scenarios that every port is run through: see the "shows" column of the fault catalogue.

Windows are 16 and original maxima 64 in the tiny models, so the lengths here sit at, over and across those.
"""

from __future__ import annotations

from gaudi_validate.scenarios.data import Scenario

_ONES = (1,) * 5

MATRIX: tuple[Scenario, ...] = (
    Scenario(id="single", lengths=(12,), axes=("prefill",)),
    Scenario(id="no-mask", lengths=(11, 11), mask_given=False, axes=("prefill", "no mask")),
    Scenario(id="left-mixed", lengths=(5, 13, 9), padding="left", axes=("prefill", "left padding")),
    Scenario(id="left-shortest-last", lengths=(13, 9, 4), padding="left", axes=("prefill", "left padding")),
    Scenario(id="right-mixed", lengths=(13, 5, 9), padding="right", axes=("prefill", "right padding")),
    Scenario(id="at-window", lengths=(16, 16), axes=("prefill", "window")),
    Scenario(id="over-window", lengths=(23, 37), padding="left", axes=("prefill", "window", "left padding")),
    Scenario(
        id="decode",
        lengths=(10, 18, 14),
        padding="left",
        chunks=(13, *_ONES),
        cache="dynamic",
        axes=("decode", "left padding", "window"),
    ),
    Scenario(
        id="decode-over-window",
        lengths=(25, 19),
        padding="left",
        chunks=(20, *_ONES),
        cache="dynamic",
        axes=("decode", "window", "left padding"),
    ),
    Scenario(
        id="continuation",
        lengths=(17, 12),
        padding="left",
        chunks=(9, 3, 5),
        cache="dynamic",
        axes=("chunked prefill", "continuation"),
    ),
    Scenario(
        id="chunked-prefill",
        lengths=(37,),
        chunks=(16, 7, 13, 1),
        cache="dynamic",
        axes=("chunked prefill", "window", "tail"),
    ),
    Scenario(
        id="static-tail",
        lengths=(9, 15),
        padding="left",
        chunks=(11, 1, 1, 2),
        cache="static",
        cache_length=40,
        axes=("decode", "static cache", "left padding"),
    ),
    Scenario(id="packed", lengths=(24,), packed_lengths=(7, 12, 5), mask_given=False, axes=("packed sequences",)),
    Scenario(
        id="past-original-maximum",
        lengths=(67, 58),
        padding="left",
        chunks=(62, *_ONES),
        cache="dynamic",
        axes=("decode", "rope scaling"),
    ),
    Scenario(id="odd-long", lengths=(261,), axes=("prefill", "tail", "rope scaling")),
    # The first call is past the original maximum: state that it leaves behind must not reach the second.
    Scenario(
        id="second-call",
        lengths=(9, 14),
        padding="left",
        calls=2,
        earlier_lengths=(60, 71),
        axes=("second call", "left padding", "rope scaling"),
    ),
)

# Past 8192 tokens, where ports that save memory switch over, with a tail after the default block of 1024. For
# "tiny-llama-one-layer", whose two heads keep eager's score matrix near 1 GiB in fp64; not part of the matrix.
PAST_8192 = Scenario(id="past-8192", lengths=(8197,), axes=("prefill", "tail", "long"))

BY_ID: dict[str, Scenario] = {scenario.id: scenario for scenario in (*MATRIX, PAST_8192)}


def applicable(features: frozenset[str]) -> tuple[Scenario, ...]:
    """Return the scenarios of the matrix that say something about a model with these ``ModelSpec.features``."""
    return tuple(scenario for scenario in MATRIX if scenario.needs <= features)
