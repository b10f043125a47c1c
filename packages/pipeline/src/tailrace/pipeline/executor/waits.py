"""Everything that the executor waits for: each wait has a deadline and can be seen."""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executor.seam import Answer, MemberDeadError

Then = Callable[[Any], None]
Otherwise = Callable[[BaseException], None]


@dataclass(slots=True)
class Wait:
    """One wait. `owner` is the member that is waited for; `answer` is None where an event of it ends the wait."""

    what: str
    since_s: float
    deadline_s: float
    owner: object
    answer: Answer | None
    then: Then
    otherwise: Otherwise


class Waits:
    """Owned by the executor's loop. Answers wake it through `wake`; results and deadlines are handled in the loop.

    Args:
        wake: called, from any thread, with the number of a wait whose answer is there.
    """

    def __init__(self, wake: Callable[[int], None]) -> None:
        self._wake = wake
        self._waits: dict[int, Wait] = {}
        self._standing: dict[int, Callable[[], None]] = {}
        self._deadlines: list[tuple[float, int]] = []  # a heap; numbers that are settled are passed over
        self._next = 0

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
            timeout_s: infinite where somebody else watches for silence.
            answer: None if `settle` will be called by somebody who hears of the end.
            owner: with it, `forget` ends the wait.
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
        """A number for answers that come again and again, each of which calls this until `dismiss`."""
        self._next += 1
        self._standing[self._next] = call
        return self._next

    def dismiss(self, number: int) -> None:
        """Answers of a standing number are not heard any more."""
        self._standing.pop(number, None)

    def wake(self, number: int) -> None:
        """The answer with this number is there. From any thread."""
        self._wake(number)

    def settle(self, number: int) -> None:
        """An answer is there: hand its result, or its error, on."""
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

    def postpone(self, number: int, until_s: float) -> None:
        """There was progress: the deadline is later."""
        wait = self._waits.get(number)
        if wait is not None and until_s > wait.deadline_s:
            wait.deadline_s = until_s  # its place in the heap follows when its turn comes

    def forget(self, owner: object) -> None:
        """A member is gone: nothing of it is waited for any more."""
        for number in [number for number, wait in self._waits.items() if wait.owner is owner]:
            del self._waits[number]

    def expire(self, now: float) -> None:
        """Give up what has passed its deadline."""
        for number in list(self._due(now)):
            wait = self._waits.pop(number, None)
            if wait is not None:
                wait.otherwise(DeadlineError(f"waited {now - wait.since_s:.0f} s for {wait.what}"))

    def next_deadline_s(self) -> float:
        """When the next wait is given up; infinite for none."""
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
        """(what, seconds waited, seconds left) of every wait with a deadline of its own, longest first."""
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
    """Why a call failed. One that was cancelled belonged to a member that was killed before it got to it."""
    return MemberDeadError("its member was killed before it began") if answer.cancelled() else answer.exception()


def together(answers: Sequence[Answer]) -> Answer:
    """Done with all results when every answer is there, or with the first error."""
    if len(answers) == 1:
        return _Alone(answers[0])
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


@dataclass(frozen=True, slots=True)
class _Alone:
    """One answer as a list of one."""

    answer: Answer

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        self.answer.add_done_callback(call)

    def cancelled(self) -> bool:
        return self.answer.cancelled()

    def exception(self) -> BaseException | None:
        return self.answer.exception()

    def result(self) -> list[Any]:
        return [self.answer.result()]
