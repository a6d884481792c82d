"""Put the attention implementations, their variants and users' own functions into transformers' two registries.

Both registries matter: transformers 4.55 to 5.x hand no mask to an implementation that only ``AttentionInterface``
knows, without a word (``_preprocess_mask_arguments`` in transformers/masking_utils.py).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.utils import generic

from gaudi_validate.attention.fused import SOFTMAX_MODES, fused_attention
from gaudi_validate.attention.masks import blockwise_mask
from gaudi_validate.attention.naive import naive_attention
from gaudi_validate.attention.sliced import KERNELS, sliced_attention
from gaudi_validate.core.messages import UserError

AttentionFunction = Callable[..., Any]
MaskFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """An attention function, the mask function that goes with it, and how the text of each option is read."""

    function: AttentionFunction
    mask_function: MaskFunction
    options: dict[str, Callable[[str], Any]] = field(default_factory=dict)


# transformers 4.55 to 5.x look names up in these class-wide mappings, which `register` writes.
_ATTENTION: Mapping[str, Any] = AttentionInterface._global_mapping
_MASKS: Mapping[str, Any] = AttentionMaskInterface._global_mapping

# New in transformers 5, and asked whenever a model's attention is set.
_TAKEN_FOR_FLASH = getattr(generic, "is_flash_attention_requested", None)


def _block_size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError("give a whole number above 0")
    return int(text)


def _true_or_false(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"give one of {', '.join(names)}")
        return text

    return read


IMPLEMENTATIONS: dict[str, Implementation] = {
    "naive": Implementation(function=naive_attention, mask_function=_MASKS["eager"]),
    "hpu_sliced": Implementation(
        function=sliced_attention,
        mask_function=blockwise_mask,
        options={"q_block_size": _block_size, "block_kernel": _one_of("auto", *KERNELS)},
    ),
    "hpu_fused": Implementation(
        function=fused_attention,
        mask_function=blockwise_mask,
        options={"recompute": _true_or_false, "softmax_mode": _one_of(*SOFTMAX_MODES)},
    ),
}
NAMES: tuple[str, ...] = tuple(IMPLEMENTATIONS)

_VARIANT = re.compile(r"(?P<name>\w+)\[(?P<options>.*)\]")


def register() -> None:
    """Register every implementation of :data:`NAMES` with transformers.

    Again is fine, and leaves alone what stands there: a capture or a planted fault may have taken a function's place.
    """
    for name, one in IMPLEMENTATIONS.items():
        if name not in _ATTENTION or name not in _MASKS:
            _put(name, one.function, one.mask_function)


def ensure(spec: str) -> str:
    """Make sure that transformers knows ``spec`` as an attention implementation, and return that name.

    ``spec`` is one of :data:`NAMES`; one of them with options, such as "hpu_sliced[q_block_size=8]"; a name that
    transformers has ("eager", "sdpa"); or "pkg.module:function", a user's attention function. The user's mask function
    is the attribute ``mask_function`` of the function or of its module, else the one of "sdpa" (bool 4-D, or ``None``
    where causal attention needs no mask).

    Raises:
        UserError: no such name, option, module or attribute.
    """
    register()
    if spec == "eager" or spec in _ATTENTION:
        return spec
    if variant := _VARIANT.fullmatch(spec):
        return _ensure_variant(spec, variant["name"], variant["options"])
    if ":" in spec:
        return _ensure_user_function(spec)
    raise _unknown(spec)


def _put(name: str, function: AttentionFunction, mask_function: MaskFunction) -> None:
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, mask_function)


def _unknown(name: str) -> UserError:
    known = ", ".join(dict.fromkeys([*NAMES, "eager", *_ATTENTION]))
    return UserError(
        "unknown attention implementation", where=repr(name), do=f"use pkg.module:function or one of {known}"
    )


def _ensure_variant(spec: str, name: str, options: str) -> str:
    if name not in IMPLEMENTATIONS:
        raise _unknown(name)
    one = IMPLEMENTATIONS[name]
    _put(spec, functools.partial(one.function, **_read_options(spec, one, options)), one.mask_function)
    return spec


def _read_options(spec: str, one: Implementation, text: str) -> dict[str, Any]:
    read: dict[str, Any] = {}
    known = ", ".join(one.options) or "none"
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if key not in one.options:
            raise UserError("unknown attention option", where=f"{key!r} in {spec!r}", do=f"the options are {known}")
        try:
            read[key] = one.options[key](value)
        except ValueError as error:
            raise UserError("wrong attention option", where=f"{item!r} in {spec!r}", do=str(error)) from None
        if not equals:
            raise UserError("attention option without a value", where=f"{key!r} in {spec!r}", do="write name=value")
    return read


def _ensure_user_function(spec: str) -> str:
    if _TAKEN_FOR_FLASH is not None and _TAKEN_FOR_FLASH(requested_attention_implementation=spec):
        what = "transformers takes an attention name with 'flash' in it for one of its own flash attention kernels"
        raise UserError(what, where=repr(spec), do="import the function under another name, and give that")
    module_name, _, path = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = functools.reduce(getattr, path.split("."), module)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise UserError("cannot import the attention function", where=repr(spec), do=f"check it: {error}") from error
    if not callable(function):
        raise UserError("the attention function is not callable", where=repr(spec), do="name a function")
    mask_function = getattr(function, "mask_function", getattr(module, "mask_function", _MASKS["sdpa"]))
    _put(spec, function, mask_function)
    return spec
