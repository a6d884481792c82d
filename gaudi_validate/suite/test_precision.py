"""Does the port round no worse than naive attention? Call by call in the deployed dtype, on the reference's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gaudi_validate.fixture_objects import AssertParity

# A plain model, one with a window, one with softcap and its own scale, one with normed queries and keys.
MODELS = ("tiny-llama", "tiny-mistral", "tiny-gemma2", "tiny-qwen3")
DTYPES = ("bfloat16", "float16", "float32")

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_precision_parity(assert_parity: AssertParity, model: str, dtype: str, attention: str | None) -> None:
    """Prefill, chunk and decode calls of tiny models."""
    assert_parity(model, ("decode-over-window", "chunked-prefill"), rule="precision", dtype=dtype, port=attention)
