"""Everything an executor waits for: each wait has a deadline and can be seen (design, invariant 7)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executors.host import MemberDeadError

Then = Callable[[Any], None]
Otherwise = Callable[[BaseException], None]


@dataclass(slots=True)
class Wait:
    """One wait."""

    what: str
    since_s: float
    deadline_s: float
    future: Future[Any]
    then: Then
    otherwise: Otherwise


class Waits:
    """Owned by the executor's loop. Futures wake it through `wake`; results and deadlines are handled in the loop.

    Args:
        wake: called, from any thread, with the number of a wait whose future is done.
    """

    def __init__(self, wake: Callable[[int], None]) -> None:
        self._wake = wake
        self._waits: dict[int, Wait] = {}
        self._next = 0

    def add(
        self, what: str, now: float, timeout_s: float, future: Future[Any], then: Then, otherwise: Otherwise
    ) -> None:
        """Wait for a future until a deadline."""
        self._next += 1
        number = self._next
        self._waits[number] = Wait(what, now, now + timeout_s, future, then, otherwise)
        future.add_done_callback(lambda _: self._wake(number))

    def settle(self, number: int) -> None:
        """A future is done: hand its result, or its error, on."""
        wait = self._waits.pop(number, None)
        if wait is None:
            return  # its deadline passed before
        error = _error(wait.future)
        if error is None:
            wait.then(wait.future.result())
        else:
            wait.otherwise(error)

    def expire(self, now: float) -> None:
        """Give up what has passed its deadline."""
        for number in [number for number, wait in self._waits.items() if wait.deadline_s <= now]:
            wait = self._waits.pop(number)
            wait.otherwise(DeadlineError(f"waited {now - wait.since_s:.0f} s for {wait.what}"))

    def next_deadline(self) -> float | None:
        """When the next wait is given up."""
        return min((wait.deadline_s for wait in self._waits.values()), default=None)

    def visible(self, now: float) -> list[tuple[str, float, float]]:
        """(what, seconds waited, seconds left) of every wait, longest first."""
        rows = [(wait.what, now - wait.since_s, wait.deadline_s - now) for wait in self._waits.values()]
        return sorted(rows, key=lambda row: -row[1])


def _error(future: Future[Any]) -> BaseException | None:
    """Why a future failed. One that was cancelled belonged to a member that was killed before it got to it."""
    return MemberDeadError("its member was killed before it began") if future.cancelled() else future.exception()


def together(futures: Sequence[Future[Any]]) -> Future[list[Any]]:
    """Done with all results when every future is, or with the first error."""
    whole: Future[list[Any]] = Future()
    lock = threading.Lock()
    missing = len(futures)

    def one_done(future: Future[Any]) -> None:
        nonlocal missing
        error = _error(future)
        with lock:
            missing -= 1
            if whole.done():
                return
            if error is not None:
                whole.set_exception(error)
            elif not missing:
                whole.set_result([each.result() for each in futures])

    for future in futures:
        future.add_done_callback(one_done)
    return whole
