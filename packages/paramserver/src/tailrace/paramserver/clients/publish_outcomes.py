"""The outcome of each published version, and who was told."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tailrace.paramserver.errors import ParamServerError, PublishTimeout
from tailrace.paramserver.machine.protocol import Condition, HostInterface

_log = logging.getLogger(__name__)
_REMEMBERED = 1024


class PublishOutcomes:
    """Outcomes of the last versions, and reports of them to the caller.

    Args:
        changed: guards them, and is notified.
        machine: its clock.
        on_published: called with each outcome.
    """

    def __init__(
        self,
        changed: Condition,
        machine: HostInterface,
        on_published: Callable[[int, ParamServerError | None], None] | None,
    ) -> None:
        self._changed, self._machine, self._on_published = changed, machine, on_published
        self._known: dict[int, ParamServerError | None] = {}
        self._reports: list[tuple[int, ParamServerError | None]] = []

    @property
    def to_report(self) -> bool:
        """Whether something was not reported yet."""
        return bool(self._reports)

    def forget(self, version: int) -> None:
        """Forget a version's outcome, since it is published again."""
        self._known.pop(version, None)

    def record(self, version: int, error: ParamServerError | None, *, again: bool = False) -> None:
        """Note that a version is visible, or why not. Call it with the condition held.

        Args:
            again: a later publication of the number is on its way: who waits, waits for that one.
        """
        if not again:
            self._known[version] = error
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._reports.append((version, error))
        self._changed.notify_all()

    def take_reports(self) -> list[tuple[int, ParamServerError | None]]:
        """The next argument for `report`."""
        reports, self._reports = self._reports, []
        return reports

    def report(self, version: int, error: ParamServerError | None) -> None:
        """Tell the caller."""
        if self._on_published is None:
            return
        try:
            self._on_published(version, error)
        except Exception:  # the caller's code, on our thread: it must not end publishing
            _log.exception("on_published raised for version %d", version)

    def wait(self, version: int, timeout_s: float, describe: Callable[[], str]) -> None:
        """Wait for an outcome, and raise it if it is an error.

        Args:
            describe: says where the version should have become visible and what is staged, for a message.

        Raises:
            PublishTimeout: there was none in time.
        """
        deadline = self._machine.now() + timeout_s
        with self._changed:
            while version not in self._known:
                remaining = deadline - self._machine.now()
                if remaining <= 0 or not self._changed.wait(remaining):
                    raise PublishTimeout(f"version {version} was not visible in {timeout_s:.3g} s {describe()}")
            outcome = self._known[version]
        if outcome is not None:
            raise outcome
