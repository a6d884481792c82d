"""The hardware that goldens and baselines are kept for, with the public figures that checks use.

Sources: Intel Gaudi 2 and Gaudi 3 product pages and white papers; the memory available to a program on Gaudi2 is the
"total memory available" that optimum-habana's run_generation prints (optimum-habana PR #903).
"""

from __future__ import annotations

from dataclasses import dataclass

from gaudi_validate.core.messages import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A baseline key and what is publicly known of the card.

    ``device`` is the torch device type; ``memory_bytes`` what a program can use; ``e4m3_max`` the largest finite
    value of the card's fp8 e4m3 format; ``fp64`` whether the device computes in double precision.
    """

    key: str
    name: str
    device: str
    memory_bytes: int | None = None
    e4m3_max: float | None = None
    fp64: bool = True
    environment: str | None = None
    wall_clock: bool = True


GIB = 1024**3

TABLE: dict[str, Hardware] = {
    h.key: h
    for h in (
        Hardware(key="cpu", name="CPU", device="cpu"),
        Hardware(key="cuda", name="CUDA", device="cuda"),
        Hardware(key="gaudi", name="Gaudi", device="hpu", memory_bytes=32 * GIB, fp64=False, environment="GAUDI_CI"),
        Hardware(
            key="gaudi2",
            name="Gaudi2",
            device="hpu",
            memory_bytes=round(94.62 * GIB),
            e4m3_max=240.0,
            fp64=False,
            environment="GAUDI2_CI",
        ),
        Hardware(
            key="gaudi3",
            name="Gaudi3",
            device="hpu",
            memory_bytes=128 * 10**9,
            e4m3_max=448.0,
            fp64=False,
            environment="GAUDI3_CI",
        ),
    )
}


def lookup(key: str) -> Hardware:
    """Return the entry of ``key``; :class:`UserError` names the known keys."""
    try:
        return TABLE[key]
    except KeyError:
        known = ", ".join(TABLE)
        raise UserError("unknown hardware", where=repr(key), do=f"use one of {known}") from None
