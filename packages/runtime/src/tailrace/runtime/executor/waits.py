"""The executor's waits. Each has a deadline and is shown in the status."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import Answer, MemberDeadError

Then = Callable[[Any], None]
Otherwise = Callable[[BaseException], None]


@dataclass(slots=True)
class Wait:
    """One wait. `owner` is the member that it waits for; `answer` is None if an event of the member ends the wait."""

    what: str
    since_s: float
    deadline_s: float
    owner: object
    answer: Answer | None
    then: Then
    otherwise: Otherwise


class Waits:
    """All waits, owned by the executor's loop. Answers wake the loop, which handles results and deadlines.

    Args:
        wake: called from any thread with the number of a wait whose answer is there.
        after: their numbers are greater than this.
    """

    def __init__(self, wake: Callable[[int], None], after: int = 0) -> None:
        self._wake = wake
        self._waits: dict[int, Wait] = {}
        self._standing: dict[int, Callable[[], None]] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap; settled numbers are skipped
        self._next = after

    def add(
        self,
        what: str,
        now: float,
        timeout_s: float,
        answer: Answer | None,
        then: Then,
        otherwise: Otherwise,
        owner: object = None,
    ) -> int:
        """Wait for an answer until a deadline. Returns the wait's number.

        Args:
            what: what is waited for, in words.
            now: seconds on the run's clock.
            timeout_s: the deadline in seconds from now; infinite if silence is watched elsewhere.
            answer: the answer; None if the caller will call `settle`.
            then: called with the result.
            otherwise: called with the error, or when the deadline passes.
            owner: the member; `forget` ends all of its waits.
        """
        self._next += 1
        number = self._next
        self._waits[number] = Wait(what, now, now + timeout_s, owner, answer, then, otherwise)
        if timeout_s != math.inf:
            heapq.heappush(self._deadlines, (now + timeout_s, number))
        if answer is not None:
            answer.add_done_callback(lambda _: self._wake(number))
        return number

    def stand(self, call: Callable[[], None]) -> int:
        """A number for repeated answers. Each calls the function, until `dismiss`."""
        self._next += 1
        self._standing[self._next] = call
        return self._next

    def dismiss(self, number: int) -> None:
        """Ignore further answers with a number of `stand`."""
        self._standing.pop(number, None)

    def wake(self, number: int) -> None:
        """Note that the answer with this number is there. Any thread may call it."""
        self._wake(number)

    def settle(self, number: int) -> None:
        """End a wait whose answer is there, and pass on its result or error."""
        standing = self._standing.get(number)
        if standing is not None:
            standing()
            return
        wait = self._waits.pop(number, None)
        if wait is None:
            return  # its deadline passed before, or its member went down
        if wait.answer is None:
            wait.then(None)
            return
        error = error_of(wait.answer)
        if error is None:
            wait.then(wait.answer.result())
        else:
            wait.otherwise(error)

    def renew(self, number: int, now: float, timeout_s: float) -> None:
        """Begin a wait anew, after progress: it is as old as that, and its deadline is later."""
        wait = self._waits.get(number)
        if wait is not None:
            # Its place in the heap is corrected at its old deadline.
            wait.since_s, wait.deadline_s = now, max(wait.deadline_s, now + timeout_s)

    def forget(self, owner: object) -> None:
        """End all waits for a member that is gone."""
        for number in [number for number, wait in self._waits.items() if wait.owner is owner]:
            del self._waits[number]

    def owners(self) -> set[object]:
        """The members that are waited for, and None where it is for nobody."""
        return {wait.owner for wait in self._waits.values()}

    def expire(self, now: float) -> None:
        """End the waits whose deadline has passed."""
        for number in list(self._due(now)):
            wait = self._waits.pop(number, None)
            if wait is not None:
                wait.otherwise(DeadlineError(f"waited {now - wait.since_s:.0f} s for {wait.what}"))

    def next_deadline_s(self) -> float:
        """The time of the next deadline; infinite if there is none."""
        heap, waits = self._deadlines, self._waits
        while heap:
            at, number = heap[0]
            wait = waits.get(number)
            if wait is None:
                heapq.heappop(heap)
            elif wait.deadline_s > at:
                heapq.heapreplace(heap, (wait.deadline_s, number))
            else:
                return at
        return math.inf

    def visible(self, now: float) -> list[tuple[str, float, float]]:
        """(what, seconds waited, seconds left) of every wait with a finite deadline, longest wait first."""
        rows = [
            (wait.what, now - wait.since_s, wait.deadline_s - now)
            for wait in self._waits.values()
            if wait.deadline_s != math.inf
        ]
        return sorted(rows, key=lambda row: -row[1])

    def _due(self, now: float) -> Iterator[int]:
        while self.next_deadline_s() <= now:
            yield heapq.heappop(self._deadlines)[1]


def error_of(answer: Answer) -> BaseException | None:
    """The error of a call; None if it succeeded. A cancelled call belonged to a member that was killed before it began it."""
    return (
        MemberDeadError("its process was killed before it began a call") if answer.cancelled() else answer.exception()
    )


def together(answers: Sequence[Answer]) -> Answer:
    """An answer with the results of several answers, once all are there, or with their first error."""
    whole: Future[list[Any]] = Future()
    lock = threading.Lock()
    missing = len(answers)

    def one_done(answer: Answer) -> None:
        nonlocal missing
        error = error_of(answer)
        with lock:
            missing -= 1
            if whole.done():
                return
            if error is not None:
                whole.set_exception(error)
            elif not missing:
                whole.set_result([each.result() for each in answers])

    for answer in answers:
        answer.add_done_callback(one_done)
    return whole
