"""A pool of the reward scheduler: a bounded queue and the backends that take from it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.contracts import shown
from tailrace.reward.errors import RewardError, ScorerClosedError
from tailrace.reward.items import Outcome, ScoreItem, ScoringFailure, ScoringResult


class Backend(Protocol):
    """Scores one response at a time."""

    async def score(self, item: ScoreItem) -> ScoringResult:
        """The result. It may be cancelled.

        Raises:
            RewardError: it could not judge.
        """
        ...

    async def close(self) -> None:
        """End its processes."""
        ...


@dataclass(slots=True)
class Job:
    """A score that waits or is under way. `done` is called once, with None if it was cancelled."""

    item: ScoreItem
    done: Callable[[Outcome | None], None]
    task: asyncio.Task[Outcome] | None = None
    over: bool = False

    def end(self, outcome: Outcome | None) -> None:
        """Tell of the outcome, unless that was done before."""
        if not self.over:
            self.over = True
            self.done(outcome)

    def cancel(self) -> None:
        """Stop it, wherever it is."""
        self.end(None)
        if self.task is not None:
            self.task.cancel()


class Pool:
    """Scores of one kind.

    Args:
        backends: each scores one response at a time.
        queue: scores that wait at most.
        attempts: how often a failing score is tried.
    """

    def __init__(self, backends: Sequence[Backend], queue: int, attempts: int) -> None:
        self.backends = backends
        self._limit, self._attempts = queue, attempts
        self._closed = False
        self._waiting: deque[Job] = deque()
        self._changed = asyncio.Condition()
        self._serving = [asyncio.create_task(self._serve(backend)) for backend in backends]

    @property
    def full(self) -> bool:
        """Whether another score would have to wait for room in the queue."""
        return len(self._waiting) >= self._limit

    async def put(self, job: Job) -> None:
        """Queue a score, as soon as there is room.

        Raises:
            ScorerClosedError: the pool was closed.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or job.over or not self.full)
            if self._closed:
                raise ScorerClosedError("the scheduler is closed; make a new one")
            if not job.over:
                self._waiting.append(job)
                self._changed.notify_all()

    async def close(self) -> None:
        """Stop all scores under way and end the backends."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.gather(*(backend.close() for backend in set(self.backends)))

    async def _serve(self, backend: Backend) -> None:
        while True:
            job = await self._next()
            job.task = asyncio.create_task(self._outcome(backend, job.item))
            try:
                await asyncio.wait([job.task])
            finally:
                job.task.cancel()  # does nothing to a task that is done
            if not job.task.cancelled():
                job.end(job.task.result())

    async def _next(self) -> Job:
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._waiting)
                job = self._waiting.popleft()
                self._changed.notify_all()
                if not job.over:
                    return job

    async def _outcome(self, backend: Backend, item: ScoreItem) -> Outcome:
        begun, reason = time.monotonic(), ""
        for _ in range(self._attempts):
            try:
                result = await backend.score(item)
            except RewardError as error:
                reason = str(error)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                return dataclasses.replace(result, seconds=time.monotonic() - begun)
        return ScoringFailure(item.trajectory, shown(reason), time.monotonic() - begun)
