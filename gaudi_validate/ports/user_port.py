"""A port that the user brings: a function ``load(checkpoint, *, dtype, device)`` in a module of theirs."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaudi_validate.core.messages import UserError
from gaudi_validate.models.loading import first_line, make_greedy
from gaudi_validate.ports.transformers_port import attention_set

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from transformers import PreTrainedModel

SIGNATURE = "load(checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel"


@dataclass(frozen=True, slots=True)
class UserPort:
    """The model that the user's ``loader`` returns; ``attention``, when given, is switched on in it as well."""

    spec: str
    loader: Callable[..., Any]
    attention: str | None = None

    @property
    def name(self) -> str:
        """``pkg.module:load``, and the attention implementation where one was given."""
        return self.spec if self.attention is None else f"{self.spec}+{self.attention}"

    @property
    def load_key(self) -> str:
        """The loader: each has its own models."""
        return self.spec

    def load(self, checkpoint: Path, *, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Call the loader and check what it returns; :class:`UserError` names the loader and the place that failed."""
        import torch

        try:
            model = self.loader(checkpoint, dtype=dtype, device=device)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"the port's loader failed ({first_line(error)})", where=_place(error)) from error
        where = _definition(self.spec, self.loader)
        if not isinstance(model, torch.nn.Module):
            raise UserError(f"the port's loader returned {type(model).__name__}, not a torch.nn.Module", where=where)
        if not hasattr(model, "config"):
            raise UserError("the port's loader returned a module without a transformers config", where=where)
        _check_dtype(model, dtype, where)
        if hasattr(model, "generation_config"):
            make_greedy(model)  # type: ignore[arg-type]
        return model.eval()  # type: ignore[return-value]

    def active(self, model: PreTrainedModel) -> contextlib.AbstractContextManager[None]:
        """Return a context that switches the attention implementation where one was given, or does nothing."""
        return contextlib.nullcontext() if self.attention is None else attention_set(model, self.attention)


def import_loader(spec: str) -> Callable[..., Any]:
    """Return the function that ``pkg.module:name`` means; :class:`UserError` for anything that cannot be one."""
    module_name, _, attribute = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(spec, error) from error
        raise UserError(
            f"the port's module {error.name} is not found", where=spec, do="install it, or set PYTHONPATH=."
        ) from None
    except Exception as error:
        raise _import_failed(spec, error) from error
    loader: Any = module
    for part in attribute.split("."):
        loader = getattr(loader, part, None)
    if loader is None:
        raise UserError(f"the port's module has no {attribute}", where=str(getattr(module, "__file__", module_name)))
    if not callable(loader):
        raise UserError(f"the port's {attribute} is no function but of type {type(loader).__name__}", where=spec)
    _check_signature(spec, loader)
    return loader  # type: ignore[no-any-return]


def _import_failed(spec: str, error: Exception) -> UserError:
    return UserError(f"the port's module cannot be imported ({first_line(error)})", where=f"{spec} at {_place(error)}")


def _check_signature(spec: str, loader: Callable[..., Any]) -> None:
    """Bind the arguments that the call will use, before a long run starts."""
    try:
        signature = inspect.signature(loader)
    except ValueError:
        return  # some built-in callables have none to look at: the call itself will tell
    try:
        signature.bind(Path(), dtype=None, device=None)
    except TypeError as error:
        raise UserError(
            f"the port's loader cannot be called as {SIGNATURE} ({error})", where=_definition(spec, loader)
        ) from None


def _check_dtype(model: torch.nn.Module, dtype: torch.dtype, where: str) -> None:
    """A loader that ignores ``dtype`` would be judged by another precision's budget."""
    floating = [(name, value.dtype) for name, value in model.named_parameters() if value.is_floating_point()]
    wrong = [(name, found) for name, found in floating if found != dtype]
    if floating and len(wrong) == len(floating):
        raise UserError(f"the port's loader was asked for {dtype} and returned {wrong[0][1]}", where=where)


def _definition(spec: str, loader: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(loader), "__code__", None)
    return spec if code is None else f"{spec} at {code.co_filename}:{code.co_firstlineno}"


def _place(error: Exception) -> str:
    """Return file:line of the innermost frame, which a syntax error carries itself."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "an unknown place"
