"""What the shipped suite runs on: the port or attention of the command line, else all that this package ships."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gaudi_validate.options import settings_of

if TYPE_CHECKING:
    import pytest

# Blocks of 8 make tiny inputs cross block borders, which the defaults of 1024 rows would not.
SHIPPED = (
    "naive",
    "hpu_sliced",
    "hpu_sliced[q_block_size=8]",
    "hpu_sliced[q_block_size=8,block_kernel=matmul]",
    "hpu_fused",
)
# One entry an implementation: for what takes long or measures the defaults.
DEFAULTS = ("naive", "hpu_sliced", "hpu_fused")
SAVING = ("hpu_sliced", "hpu_fused")
# Without a Gaudi hpu_fused stands in for the arithmetic of the card's kernel, not for its speed.
TIMED = ("hpu_sliced",)
THE_CHOSEN = None
SHIPPED_FOR = {
    "attention": SHIPPED,
    "default_attention": DEFAULTS,
    "saving_attention": SAVING,
    "timed_attention": TIMED,
}


def implementations(config: pytest.Config, fixture: str) -> tuple[str | None, ...]:
    """Return the attention implementations that a test of the suite takes; ``None`` is the port that was chosen."""
    settings = settings_of(config)
    if settings.port is not None or settings.attention is not None:
        return (THE_CHOSEN,)
    return SHIPPED_FOR[fixture]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every implementation that its fixture stands for."""
    for fixture in SHIPPED_FOR:
        if fixture in metafunc.fixturenames:
            chosen = implementations(metafunc.config, fixture)
            metafunc.parametrize(fixture, chosen, ids=[name or "chosen" for name in chosen])
