"""Locks, conditions, signals and threads of simulated processes."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any

from simulation.scheduler import Scheduler, Task


class SimulatedLock:
    """A lock that one thread may take several times."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._count = 0
        self._waiters: list[Task] = []

    def __enter__(self) -> object:
        scheduler = self._scheduler
        scheduler.enter()
        if self._owner is scheduler.current:
            self._count += 1
        else:
            self._acquire(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owner is not self._scheduler.current and self._scheduler.current.process.dead:
            return  # killed while it waited for a notification
        self._check_owner()
        self._count -= 1
        if not self._count:
            self._release()

    def _acquire(self, count: int) -> None:
        scheduler = self._scheduler
        while self._owner is not None:
            self._waiters.append(scheduler.current)
            scheduler.block(f"a lock that {self._owner.process.name} / {self._owner.name} has")
        self._owner, self._count = scheduler.current, count

    def _release(self) -> None:
        self._owner, self._count = None, 0
        if self._waiters:
            self._scheduler.wake(self._waiters.pop(0))

    def _check_owner(self) -> None:
        if self._owner is not self._scheduler.current:
            raise RuntimeError("cannot use a lock that another thread has")


class SimulatedCondition(SimulatedLock):
    """A lock that can be waited on."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._sleepers: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        """See `Condition`."""
        scheduler = self._scheduler
        scheduler.enter()
        self._check_owner()
        task, count = scheduler.current, self._count
        deadline = math.inf if timeout is None else scheduler.now + timeout
        self._release()
        self._sleepers.append(task)
        notified = scheduler.block(f"a condition, until {deadline:.4f} s", deadline)
        if task in self._sleepers:
            self._sleepers.remove(task)
        self._acquire(count)
        return notified

    def notify_all(self) -> None:
        """See `Condition`. Who waits gets the lock when this thread leaves it: to run before would be in vain."""
        if self._scheduler.current.process.dead:
            return
        self._check_owner()
        for task in self._sleepers:
            task.ticket += 1  # no deadline any more
        self._waiters += self._sleepers
        self._sleepers.clear()


class Signal:
    """Something that the test's own threads wait for, across processes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.given = False
        self._waiters: list[Task] = []

    def give(self) -> None:
        """Wake all who wait, now and later."""
        self.given = True
        for task in self._waiters:
            self._scheduler.wake(task)
        self._waiters.clear()

    def wait(self, timeout_s: float = math.inf) -> bool:
        """Whether it was given in time."""
        deadline = self._scheduler.now + timeout_s
        while not self.given:
            self._waiters.append(self._scheduler.current)
            if not self._scheduler.block("a signal", deadline):
                return self.given
        return True


class Mailbox:
    """Messages to the test's own threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._messages: list[Any] = []
        self._closed = False
        self._arrived = Signal(scheduler)

    def put(self, message: Any) -> None:
        """Leave a message."""
        self._messages.append(message)
        self._arrived.give()

    def close(self) -> None:
        """Whoever takes gets None from now on."""
        self._closed = True
        self._arrived.give()

    def take(self) -> Any:
        """The next message; None after `close`."""
        if not self._messages and not self._closed:
            self._arrived = Signal(self._scheduler)
            self._arrived.wait()
        return None if self._closed else self._messages.pop(0)


class SimulatedThread:
    """A thread that was started."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler, self._task = scheduler, task

    def join(self, timeout: float | None = None) -> None:
        """See `Thread`."""
        scheduler = self._scheduler
        scheduler.enter()
        deadline = math.inf if timeout is None else scheduler.now + timeout
        while not self._task.done:
            self._task.joiners.append(scheduler.current)
            if not scheduler.block(f"the end of {self._task.name}", deadline):
                return

    def is_alive(self) -> bool:
        """See `Thread`."""
        self._scheduler.enter()
        return not self._task.done
