"""What can be known of a mask function without evaluating it: transformers builds them of a few closures.

A part is recognised by the function that transformers' own factory returns (the code object is one for all its
closures) and by its closure cells. What is not recognised promises nothing, so that no key is skipped for it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from transformers import masking_utils

from gaudi_validate.attention.index_mask import Pattern

MaskFunction = Callable[..., Any]


def _inner_code(factory: str) -> CodeType | None:
    """Return the code of the function that ``masking_utils.<factory>`` defines and returns; ``None`` without one."""
    function = getattr(masking_utils, factory, None)
    if function is None:
        return None
    codes = [constant for constant in function.__code__.co_consts if isinstance(constant, CodeType)]
    named = [code for code in codes if not code.co_name.startswith("<")]
    return named[0] if len(named) == 1 else None


_AND, _OR = _inner_code("and_masks"), _inner_code("or_masks")
_WINDOW = _inner_code("sliding_window_overlay")
_PACKED = _inner_code("packed_sequence_mask_function")
_REMAP = _inner_code("remap_positions_for_packed_sequence")
# Elementwise in their indices, so they can be evaluated on a block by broadcasting; they bound nothing.
_ELEMENTWISE = {
    _PACKED,
    _inner_code("chunked_overlay"),
    _inner_code("blockwise_overlay"),
    _inner_code("padding_mask_function"),
    _inner_code("sliding_window_bidirectional_overlay"),
} - {None}
_CAUSAL = masking_utils.causal_mask_function
_BIDIRECTIONAL = getattr(masking_utils, "bidirectional_mask_function", None)


def index_based(mask_function: MaskFunction, *, promised: bool) -> bool:
    """Return whether ``mask_function`` may be evaluated by broadcasting indices over a block.

    ``promised``: transformers 5 says so itself (``use_vmap=False``); it says the opposite for functions that users
    passed to the mask creation. 4.55 says nothing, so there each part has to be a known one.
    """
    if promised:
        return True
    if mask_function is _CAUSAL or mask_function is _BIDIRECTIONAL:
        return True
    code = _code(mask_function)
    if code in {_AND, _OR}:
        return all(index_based(part, promised=False) for part in _cell(mask_function, "mask_functions"))
    return code is not None and (code is _WINDOW or code in _ELEMENTWISE)


def pattern_of(mask_function: MaskFunction) -> Pattern:
    """Return the causal and window bounds of ``mask_function``; none where they are not certain."""
    parts = list(_conjuncts(mask_function))
    # Within one packed sequence positions rise by one a token, so bounds on positions are bounds on indices.
    packed = any(_code(part) is _PACKED for part in parts)
    causal, window, exact = False, None, True
    for part in parts:
        code = _code(part)
        if part is _CAUSAL:
            causal = True
        elif code is not None and code is _WINDOW:
            size = int(_cell(part, "sliding_window"))
            window = size if window is None else min(window, size)
        elif code is not None and code is _REMAP and packed:
            inner = pattern_of(_cell(part, "mask_function"))
            causal, window, exact = causal or inner.causal, inner.window if window is None else window, False
        else:
            exact = exact and part is _BIDIRECTIONAL
    return Pattern(causal=causal, window=window, exact=exact)


def _conjuncts(mask_function: MaskFunction) -> list[MaskFunction]:
    if _AND is None or _code(mask_function) is not _AND:
        return [mask_function]
    return [leaf for part in _cell(mask_function, "mask_functions") for leaf in _conjuncts(part)]


def _code(function: MaskFunction) -> CodeType | None:
    return getattr(function, "__code__", None)


def _cell(function: MaskFunction, name: str) -> Any:
    names = function.__code__.co_freevars
    return (function.__closure__ or ())[names.index(name)].cell_contents
