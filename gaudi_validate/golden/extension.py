"""The ``golden`` fixture as a syrupy extension: ``assert generated == golden(name="he-has-a")``.

How a fixture makes one::

    context = GoldenContext(
        settings=settings,            # core.settings.Settings
        model="smollm2-135m",         # name or hub id: golden/text/<hardware>/<model>/<case>.json
        port=port.name,
        record=judge.record,          # takes an Evidence (check "text"); called once a comparison, before any failure
        propose=propose,              # takes JSON primitives that ride on the test's report to the controller
        invocation="pytest -m slow",  # the command of this run, for messages
        test=request.node.nodeid,
        compare=exact,                # (Generated, TextGolden) -> Evidence; checks/text.py has a tie-aware one
    )
    return golden_assertion(request, context)

In a test, ``golden`` takes ``name``, and ``model``, ``port``, ``compare`` where they differ from the fixture's. The
other side is any object with text, prompt, ids, prompt_ids, margins and dtype (``golden.generated.GeneratedText``).

A verdict that fails the test raises :class:`GoldenMismatch`, an AssertionError whose text is the whole message: pytest
would cut the explanation of an assertion that is merely false after eight lines, and the command to run next stands
last. A missing golden is NO_BASELINE, recorded, and fails only with --strict-verdicts.

syrupy never touches golden files: its --snapshot-update writes none, and its search for unused snapshots finds none.
Its summary counts comparisons that passed or failed; what is missing or proposed is in gaudi-validate's own summary.
Nothing here writes a file, so that it works the same in a pytest-xdist worker.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from syrupy.assertion import AssertionResult, SnapshotAssertion
from syrupy.data import SnapshotCollection, SnapshotCollections
from syrupy.extensions.base import AbstractSyrupyExtension
from syrupy.location import PyTestLocation

from gaudi_validate.core.messages import UserError
from gaudi_validate.core.verdicts import Status
from gaudi_validate.golden.generated import plain
from gaudi_validate.golden.judging import GoldenContext, Judged, judge
from gaudi_validate.golden.names import case_of_test, check_apart

if TYPE_CHECKING:
    import pytest

    from gaudi_validate.golden.generated import Comparer

__all__ = ["GoldenAssertion", "GoldenContext", "GoldenExtension", "GoldenMismatch", "golden_assertion"]


class GoldenMismatch(AssertionError):
    """A text that fails against its golden; the message is for the reader of the test report."""


class GoldenExtension(AbstractSyrupyExtension):
    """Where goldens are, for syrupy; it neither finds, writes nor deletes them."""

    context: GoldenContext | None = None

    @classmethod
    def get_location(cls, **_options: Any) -> str:
        """Refuse: only syrupy's own assertion asks, when a test gives it this extension."""
        raise UserError("goldens are not snapshots", do="use the golden fixture instead of snapshot.use_extension")

    def serialize(self, data: Any, **_options: Any) -> str:
        """Return the text, for syrupy's report."""
        return plain(data).text

    def discover_snapshots(self, **_options: Any) -> SnapshotCollections:
        """Find none: what syrupy finds and no test used, it deletes."""
        return SnapshotCollections()

    def delete_snapshots(self, *, snapshot_location: str, snapshot_names: set[str]) -> None:
        """Refuse."""
        raise _not_by_syrupy(snapshot_location)

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        """Return an empty collection."""
        return SnapshotCollection(location=snapshot_location)

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_options: Any) -> str | None:
        """Refuse: goldens are read by :func:`judge`."""
        raise _not_by_syrupy(snapshot_location)

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: SnapshotCollection, **_options: Any) -> None:
        """Refuse."""
        raise _not_by_syrupy(snapshot_collection.location)

    # syrupy 4 has these names.
    _read_snapshot_collection = read_snapshot_collection
    _read_snapshot_data_from_location = read_snapshot_data_from_location
    _write_snapshot_collection = write_snapshot_collection


def _not_by_syrupy(location: str) -> UserError:
    return UserError("goldens are not syrupy's to change", where=location, do="use --update-golden or --prune-golden")


class GoldenAssertion(SnapshotAssertion):
    """A syrupy assertion whose verdict comes from :func:`judge`. Only ``==`` compares."""

    _once: dict[str, Any] | None = None

    def __call__(  # type: ignore[override] # syrupy's filters and matchers have no meaning for a golden
        self,
        *,
        name: str | None = None,
        model: str | None = None,
        port: str | None = None,
        compare: Comparer | None = None,
        **unknown: object,
    ) -> GoldenAssertion:
        """Set, for the next comparison, the case's name, and what differs from the fixture's context."""
        if unknown:
            raise UserError(f"golden does not take {', '.join(unknown)}", do="it takes name, model, port and compare")
        if name is not None:
            super().__call__(name=name)
        given = {"model": model, "port": port, "compare": compare}
        self._once = {**(self._once or {}), **{key: value for key, value in given.items() if value is not None}}
        return self

    def with_defaults(self, **_options: object) -> GoldenAssertion:
        """Refuse: a golden has its own extension."""
        raise UserError("golden has its own extension", do="use syrupy's snapshot fixture for other snapshots")

    @property
    def name(self) -> str:
        """The case that the next comparison is with."""
        index = self.index
        if isinstance(index, str):
            return index
        case = case_of_test(self.test_location.snapshot_name)
        return f"{case}.{index}" if index else case

    def __eq__(self, other: object) -> bool:
        """Return True, or raise :class:`GoldenMismatch` with the whole message."""
        __tracebackhide__ = True
        return self._assert(other)

    __hash__ = None  # type: ignore[assignment] # as for every snapshot

    def __ne__(self, other: object) -> bool:
        """Refuse: what would a test know that a text does not match?"""
        raise UserError("a golden is compared with ==", do="write assert generated == golden")

    def _assert(self, data: object) -> bool:
        __tracebackhide__ = True
        case, context = self.name, replace(_context(self), **(self._once or {}))
        try:
            judged = judge(plain(data), case, context)
            self._tell_syrupy(judged, f"{context.model}/{case}")
        finally:
            self._executions += 1
            self._once = None
            self._post_assert()
        if judged.message is not None:
            raise GoldenMismatch(judged.message)
        return True

    def _tell_syrupy(self, judged: Judged, name: str) -> None:
        """Put a comparison that passed or failed on syrupy's report."""
        if judged.golden is None or judged.evidence.status not in (Status.PASS, Status.FAIL):
            return
        self._execution_results[self._executions] = AssertionResult(
            snapshot_location=str(judged.path),
            snapshot_name=name,
            asserted_data=None,
            recalled_data=judged.golden.text,
            created=False,
            updated=False,
            success=judged.message is None,
            exception=None,
            test_location=self.test_location,
        )


def _context(assertion: SnapshotAssertion) -> GoldenContext:
    context = assertion.extension.context  # type: ignore[attr-defined] # golden_assertion made it
    if not isinstance(context, GoldenContext):
        raise TypeError("golden_assertion makes golden assertions")
    return context


def golden_assertion(request: pytest.FixtureRequest, context: GoldenContext) -> GoldenAssertion:
    """Return the assertion for the test of ``request``.

    Raises:
        UserError: syrupy's plugin is off, or its snapshot folder is one that holds the goldens.
    """
    session = getattr(request.config, "_syrupy", None)
    if session is None:
        raise UserError("golden needs syrupy's pytest plugin", do="run without -p no:syrupy")
    chosen = request.config.option
    # syrupy 4.9 has no --snapshot-dirname.
    check_apart(context.settings.golden_dir, getattr(chosen, "snapshot_dirname", "__snapshots__"))
    asked = bool(getattr(chosen, "update_snapshots", False))
    known = replace(context, snapshot_update=asked)
    return GoldenAssertion(
        session=session,
        extension_class=type("BoundGoldenExtension", (GoldenExtension,), {"context": known}),
        test_location=PyTestLocation(request.node),
        update_snapshots=False,
    )
