"""Real threads, one at a time, in virtual time.

A thread hands over at calls of its machine only: where it would block, and, with a probability that the seed sets, at
any other call. Which of the threads that can run goes on is the seed's choice. When none can, the clock jumps to the
next deadline. The same seed gives the same run.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import random
import threading
import traceback
from collections.abc import Callable
from typing import ClassVar

MAX_STEPS = 3_000_000


class Killed(BaseException):
    """The process of this thread was killed. No machine call of it returns any more."""


class Process:
    """A simulated process: what kill and suspend apply to."""

    def __init__(self, name: str, host: str, *, clock_offset_s: float = 0.0) -> None:
        self.name, self.host, self.clock_offset_s = name, host, clock_offset_s
        self.dead = self.suspended = False
        self.suspended_s = self.suspended_since = 0.0  # in all, and the last time
        self.tasks: dict[Task, None] = {}
        self.parked: list[Task] = []
        self.sent_bytes = 0  # over connections, with what shall happen once it reaches a number
        self.milestones: list[tuple[int, Callable[[], None]]] = []


class Task:
    """A thread of a simulated process."""

    def __init__(self, run: Callable[[], None], name: str, process: Process, number: int) -> None:
        self.run, self.name, self.process, self.number = run, name, process, number
        self.baton: threading.Lock = _UNUSED
        self.waiting: str | None = None  # for what, unless it can run
        self.since = 0.0
        self.ticket = 0  # a timer of an earlier wait is void
        self.timed_out = self.done = False
        self.joiners: list[Task] = []


class _Worker(threading.Thread):
    """Runs one task after the other; starting a thread costs more than a schedule's whole life of one."""

    idle: ClassVar[list[_Worker]] = []

    def __init__(self) -> None:
        super().__init__(daemon=True, name="simulated")
        self.baton = threading.Lock()
        self.baton.acquire()
        self.job: Callable[[_Worker], None] | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.baton.acquire()
            job, self.job = self.job, None
            if job is None:
                return
            job(self)


_UNUSED = threading.Lock()


class Scheduler:
    """See the module.

    Args:
        seed: decides every choice.
        preempt: how likely a thread that could go on hands over at a machine call.
        limit_s: virtual time after which the run has failed.
    """

    def __init__(self, seed: int, *, preempt: float = 0.0, limit_s: float = 600.0) -> None:
        self.random = random.Random(f"scheduler {seed}").random
        self.preempt, self.limit_s = preempt, limit_s
        self.now = 0.0
        self.steps = self.handovers = 0
        self.digest = 0
        self.log: list[tuple[float, str, str]] = []
        self.errors: list[str] = []
        self.processes: list[Process] = []
        self.current: Task
        self._runnable: list[Task] = []
        self._timers: list[tuple[float, int, Task | None, int, Callable[[], None] | None]] = []
        self._sequence = itertools.count()
        self._alive = 0
        self._over = threading.Lock()
        self._over.acquire()
        self._aborted = False

    # From outside

    def run(self, main: Callable[[], None]) -> None:
        """Run `main` as a thread of a process "driver", and all that it starts, to the end."""
        driver = self.process("driver", "driver")
        first = self.spawn(main, "main", driver)
        self._runnable.remove(first)
        self.current = first
        first.baton.release()
        self._over.acquire()

    def process(self, name: str, host: str, *, clock_offset_s: float = 0.0) -> Process:
        """A new process."""
        process = Process(name, host, clock_offset_s=clock_offset_s)
        self.processes.append(process)
        return process

    def note(self, text: str, process: Process | None = None) -> None:
        """A line of the trace."""
        self.log.append((self.now, (process or self.current.process).name, text))

    def fail(self, text: str) -> None:
        """Remember what went wrong."""
        self.note(f"WRONG: {text}")
        self.errors.append(f"at {self.now:.4f} s: {text}")

    # From a task, or a timer

    def spawn(self, run: Callable[[], None], name: str, process: Process) -> Task:
        """Start a thread."""
        task = Task(run, name, process, next(self._sequence))
        worker = _Worker.idle.pop() if _Worker.idle else _Worker()
        task.baton, worker.job = worker.baton, functools.partial(self._carry_out, task)
        process.tasks[task] = None
        self._alive += 1
        self._runnable.append(task)
        return task

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Let `action` happen at a time. It must not wait."""
        heapq.heappush(self._timers, (time_s, next(self._sequence), None, 0, action))

    def enter(self) -> None:
        """Every machine call begins here: the end of a killed thread, and perhaps another thread's turn."""
        task = self.current
        if task.process.dead:
            raise Killed
        self.steps += 1
        if self.steps > MAX_STEPS:
            self._abort(f"{self.steps} machine calls: something goes round in circles")
            raise Killed
        if self.preempt and self.random() < self.preempt:
            self._runnable.append(task)
            self._switch()

    def block(self, what: str, deadline: float = math.inf) -> bool:
        """Wait for `wake`; False if the deadline came first."""
        task = self.current
        task.waiting, task.timed_out, task.since = what, False, self.now
        task.ticket += 1
        if deadline < math.inf:
            heapq.heappush(self._timers, (deadline, next(self._sequence), task, task.ticket, None))
        self._switch()
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a thread that waits go on."""
        if task.waiting is not None:
            task.waiting = None
            task.ticket += 1
            self._runnable.append(task)

    def kill(self, process: Process) -> None:
        """End a process at once: each of its threads is in a machine call, and that raises `Killed`."""
        if process.dead:
            return
        process.dead = True
        self.resume(process)
        for task in process.tasks:
            self.wake(task)

    def suspend(self, process: Process) -> None:
        """Stop it as SIGSTOP does: its threads do not run, its connections stay."""
        if not process.suspended:
            process.suspended, process.suspended_since = True, self.now

    def resume(self, process: Process) -> None:
        """Let it go on, as SIGCONT does."""
        if process.suspended:
            process.suspended_s += self.now - process.suspended_since
        process.suspended = False
        self._runnable.extend(process.parked)
        process.parked.clear()

    def waits(self) -> str:
        """What every thread of a living process waits for."""
        lines = [
            f"  {task.process.name} / {task.name}: {task.waiting or 'can run'}, since {task.since:.4f} s"
            for process in self.processes
            for task in process.tasks
        ]
        return "\n".join(lines)

    # Inside

    def _carry_out(self, task: Task, worker: _Worker) -> None:
        try:
            if not task.process.dead:
                task.run()
        except Killed:
            pass
        except BaseException:
            self.fail(f"{task.process.name} / {task.name} ended with an exception\n{traceback.format_exc()}")
        task.done = True
        del task.process.tasks[task]
        for joiner in task.joiners:
            self.wake(joiner)
        self._alive -= 1
        _Worker.idle.append(worker)
        if not self._alive:
            self._over.release()
            return
        following = self._pick()
        self.current = following
        following.baton.release()

    def _switch(self) -> None:
        task, following = self.current, self._pick()
        if following is not task:
            self.handovers += 1
            self.current = following
            following.baton.release()
            task.baton.acquire()
        if task.process.dead:
            raise Killed

    def _pick(self) -> Task:
        runnable, timers = self._runnable, self._timers
        while True:
            if runnable:
                index = int(self.random() * len(runnable))
                task = runnable[index]
                runnable[index] = runnable[-1]
                runnable.pop()
                if task.process.suspended:
                    task.process.parked.append(task)
                    continue
                self.digest = hash((self.digest, task.number, self.now))
                return task
            if not timers:
                self._abort("nothing can ever run again")
                continue
            if timers[0][0] > self.limit_s:
                self._abort(f"the run is not over after {self.limit_s} s of virtual time")
                continue
            self.now = max(self.now, timers[0][0])
            while timers and timers[0][0] <= self.now:
                _, _, waiter, ticket, action = heapq.heappop(timers)
                if action is not None:
                    action()
                elif waiter is not None and waiter.ticket == ticket and waiter.waiting is not None:
                    waiter.timed_out = True
                    self.wake(waiter)

    def _abort(self, why: str) -> None:
        if self._aborted:
            raise RuntimeError("a run that was ended does not end")
        self._aborted = True
        self.fail(f"{why}; the threads:\n{self.waits()}")
        self.steps, self.limit_s = -MAX_STEPS, math.inf
        for process in self.processes:
            self.kill(process)
