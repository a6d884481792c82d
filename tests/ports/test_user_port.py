from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
import torch

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.catalogue import resolve
from gaudi_validate.ports.base import Port
from gaudi_validate.ports.resolve_port import resolve_port
from gaudi_validate.ports.transformers_port import TransformersPort
from gaudi_validate.ports.user_port import SIGNATURE, UserPort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gaudi_validate.ports.pool import ModelPool

CPU = torch.device("cpu")
GOOD = """
    from gaudi_validate.models.loading import load as plain

    def load(checkpoint, *, dtype, device):
        model = plain(checkpoint, dtype=dtype, device=device)
        model.marked = True
        return model.train()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Return a function that makes its text the module ``users_port``."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> Path:
        file = tmp_path / "users_port.py"
        file.write_text(textwrap.dedent(text))
        return file

    yield write
    sys.modules.pop("users_port", None)


def message_of(ports_pool: ModelPool, spec: str = "users_port:load") -> str:
    folder = ports_pool.checkpoint(resolve("tiny-llama-one-layer"))
    with pytest.raises(UserError) as caught:
        resolve_port(spec, None).load(folder, dtype=torch.float32, device=CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_loader_is_a_port(module: Callable[[str], Path], ports_pool: ModelPool) -> None:
    module(GOOD)
    port = resolve_port("users_port:load", None)
    assert isinstance(port, Port)
    assert (port.name, port.attention, port.load_key) == ("users_port:load", None, "users_port:load")
    spec = resolve("tiny-llama-one-layer")
    model = ports_pool.get(spec, port, torch.float32, CPU)
    assert model.marked
    assert not model.training
    assert ports_pool.get(spec, TransformersPort("eager"), torch.float32, CPU) is not model
    with port.active(model):
        assert model.config._attn_implementation == "eager"


def test_an_attention_is_switched_on_in_the_users_model(module: Callable[[str], Path], ports_pool: ModelPool) -> None:
    module(GOOD)
    port = resolve_port("users_port:load", "sdpa")
    assert port.name == "users_port:load+sdpa"
    model = ports_pool.get(resolve("tiny-llama-one-layer"), port, torch.float32, CPU)
    with port.active(model):
        assert model.config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "eager"


def test_a_missing_module(ports_pool: ModelPool) -> None:
    assert message_of(ports_pool, "no_such_pkg.port:load") == (
        "the port's module no_such_pkg is not found: no_such_pkg.port:load; install it, or set PYTHONPATH=."
    )


def test_a_module_that_lacks_an_import(module: Callable[[str], Path], ports_pool: ModelPool) -> None:
    file = module("import math\nimport no_such_dependency\n")
    assert message_of(ports_pool) == (
        "the port's module cannot be imported (ModuleNotFoundError: No module named 'no_such_dependency'): "
        f"users_port:load at {file}:2"
    )


def test_a_module_that_fails(module: Callable[[str], Path], ports_pool: ModelPool) -> None:
    file = module("\n\nraise RuntimeError('planted')\n")
    assert message_of(ports_pool) == (
        f"the port's module cannot be imported (RuntimeError: planted): users_port:load at {file}:3"
    )


def test_a_module_with_a_syntax_error(module: Callable[[str], Path], ports_pool: ModelPool) -> None:
    file = module("x = 1\ndef load(:\n")
    message = message_of(ports_pool)
    assert message.startswith("the port's module cannot be imported (SyntaxError: ")
    assert message.endswith(f": users_port:load at {file}:2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the port's module has no load: {file}"),
        ("load = 3", "the port's load is no function but of type int: users_port:load"),
        (
            "def load(checkpoint): pass",
            f"the port's loader cannot be called as {SIGNATURE} (got an unexpected keyword argument 'dtype'): "
            "users_port:load at {file}:1",
        ),
        (
            "\ndef load(checkpoint, *, dtype, device, more): pass",
            f"the port's loader cannot be called as {SIGNATURE} (missing a required argument: 'more'): "
            "users_port:load at {file}:2",
        ),
        (
            "def load(checkpoint, *, dtype, device):\n    return {'not': 'a model'}",
            "the port's loader returned dict, not a torch.nn.Module: users_port:load at {file}:1",
        ),
        (
            "import torch\ndef load(checkpoint, *, dtype, device):\n    return torch.nn.Linear(2, 2)",
            "the port's loader returned a module without a transformers config: users_port:load at {file}:2",
        ),
        (
            "def load(checkpoint, *, dtype, device):\n    raise KeyError('planted')",
            "the port's loader failed (KeyError: 'planted'): {file}:2",
        ),
        (
            "import torch\nfrom gaudi_validate.models.loading import load as plain\n"
            "def load(checkpoint, *, dtype, device):\n"
            "    return plain(checkpoint, dtype=torch.bfloat16, device=device)",
            "the port's loader was asked for torch.float32 and returned torch.bfloat16: users_port:load at {file}:3",
        ),
    ],
)
def test_a_loader_that_is_none_is_one_line(
    text: str, message: str, module: Callable[[str], Path], ports_pool: ModelPool
) -> None:
    file = module(text)
    # Python 3.12 says "keyword-only argument" where 3.11 says "argument".
    assert message_of(ports_pool).replace("required keyword-only", "required") == message.format(file=file)


@pytest.mark.parametrize("port", ["optimum", "pkg.module", "pkg.module:", ":load", "pkg module:load", "a:b:c", ""])
def test_an_unknown_port(port: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_port(port, None)
    assert str(caught.value) == f"unknown port: {port!r}; use transformers or pkg.module:load"


def test_no_port_is_transformers_with_the_attention() -> None:
    assert resolve_port(None, "sdpa") == TransformersPort("sdpa")
    assert resolve_port("transformers", "eager") == TransformersPort("eager")
    assert resolve_port(None, None) == TransformersPort("hpu_sliced")


def test_an_unknown_attention_is_one_line() -> None:
    with pytest.raises(UserError, match="no_such_attention"):
        resolve_port(None, "no_such_attention")


def test_methods_of_a_class_can_be_named(module: Callable[[str], Path]) -> None:
    module("class Ports:\n    @staticmethod\n    def load(checkpoint, *, dtype, device): ...\n")
    port = resolve_port("users_port:Ports.load", None)
    assert isinstance(port, UserPort)
    assert port.name == "users_port:Ports.load"
