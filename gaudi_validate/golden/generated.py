"""What a port wrote, as it is held against a golden, and the plain comparison of the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from gaudi_validate.core.evidence import Evidence
from gaudi_validate.core.messages import UserError
from gaudi_validate.core.text_verdict import TextVerdict, first_difference
from gaudi_validate.core.verdicts import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gaudi_validate.golden.records import TextGolden

CHECK = "text"
FIELDS = ("text", "prompt", "ids", "prompt_ids", "margins", "dtype")


@runtime_checkable
class GeneratedText(Protocol):
    """Anything with these attributes can be compared with a golden; :class:`Generated` is the plain one.

    ``ids`` are the generated token ids without the prompt, ``margins`` the reference's top-2 logit margins at them
    (empty: unknown).
    """

    @property
    def text(self) -> str:
        """The generated text, without the prompt."""

    @property
    def prompt(self) -> str:
        """The prompt."""

    @property
    def ids(self) -> Sequence[int]:
        """The generated token ids."""

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt's token ids."""

    @property
    def margins(self) -> Sequence[float]:
        """The reference's top-2 logit margin at each generated token, or nothing."""

    @property
    def dtype(self) -> str:
        """The deployed dtype, such as "bfloat16"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A generated text as plain data."""

    text: str
    prompt: str
    ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    margins: tuple[float, ...] = ()
    dtype: str


# Turns a generated text and its golden into the verdict; the tie-aware one of the checks is handed in by the fixture.
Comparer = Callable[[Generated, "TextGolden"], Evidence]


def plain(value: object) -> Generated:
    """Return ``value`` as plain data, numpy's and torch's numbers made Python's. Raises UserError for other things."""
    if not isinstance(value, GeneratedText):
        raise UserError(
            f"a golden is compared with generated text, not with {type(value).__name__}",
            do=f"compare an object that has {', '.join(FIELDS)}, such as gaudi_validate.golden.generated.Generated",
        )
    return Generated(
        text=str(value.text),
        prompt=str(value.prompt),
        ids=tuple(int(one) for one in value.ids),
        prompt_ids=tuple(int(one) for one in value.prompt_ids),
        margins=tuple(float(one) for one in value.margins),
        dtype=str(value.dtype).removeprefix("torch."),
    )


def exact(generated: Generated, golden: TextGolden) -> Evidence:
    """Compare the ids: IDENTICAL passes, anything else is DIVERGED and fails."""
    step = first_difference(golden.ids, generated.ids)
    if step is None:
        reason = f"{TextVerdict.IDENTICAL}: {len(golden.ids)} of {len(golden.ids)} tokens"
        return Evidence(check=CHECK, status=Status.PASS, reason=reason)
    ours, theirs = _token(golden.ids, step), _token(generated.ids, step)
    reason = f"{TextVerdict.DIVERGED} at token {step} of {len(golden.ids)}: golden {ours}, this run {theirs}"
    return Evidence(check=CHECK, status=Status.FAIL, reason=reason)


def incomparable(generated: Generated, golden: TextGolden, hardware: str) -> Evidence | None:
    """Return the verdict where the golden is of something else: other hardware, dtype or prompt."""
    if golden.hardware != hardware:
        reason = f"the golden was recorded on {golden.hardware}, this run is on {hardware}"
        return Evidence(check=CHECK, status=Status.ENV_MISMATCH, reason=reason)
    if golden.dtype != generated.dtype:
        reason = f"the golden is of {golden.dtype}, this run is in {generated.dtype}"
        return Evidence(check=CHECK, status=Status.ENV_MISMATCH, reason=reason)
    if golden.prompt_ids == generated.prompt_ids:
        return None
    if golden.prompt == generated.prompt:
        step = first_difference(golden.prompt_ids, generated.prompt_ids)
        reason = f"the prompt is the golden's, and its ids differ at {step}: another tokenizer, or BOS twice"
    else:
        reason = f"another prompt: golden {golden.prompt!r}, this run {generated.prompt!r}"
    return Evidence(check=CHECK, status=Status.FAIL, reason=reason)


def _token(ids: Sequence[int], step: int) -> str:
    return str(ids[step]) if step < len(ids) else "the end"
