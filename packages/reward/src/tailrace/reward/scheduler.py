"""The reward scheduler: scores each response as it comes, beside generation (RollPacker, section 4.3).

    submit(item) ──► pool of its kind: bounded queue ──► backends ──► done(outcome)
                       math: worker processes; code: a sandbox; judge: a model

A full pool holds back its own kind only. Whatever a verifier, a program or a sandbox does, each item gets exactly one outcome:
a reward (0 for a response that used up its budget, which the outcome says), or a failure with its reason, which is no reward.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from tailrace.contracts import shown
from tailrace.reward.code.scoring import CodeBackend
from tailrace.reward.errors import JudgeError, RewardError, ScorerClosedError
from tailrace.reward.functions import VerifierWorker
from tailrace.reward.items import Outcome, Recheck, ScoreItem, ScoringFailure, ScoringResult
from tailrace.reward.judge.process import JudgeBackend, JudgeProcess
from tailrace.reward.sandbox import select_sandbox
from tailrace.reward.settings import CodeSettings, JudgeSettings, Kind, VerifierSettings, kind_of


class Backend(Protocol):
    """Scores responses."""

    async def score(self, item: ScoreItem) -> ScoringResult:
        """The result. It may be cancelled.

        Raises:
            RewardError: it could not judge.
        """
        ...

    async def close(self) -> None:
        """End its processes."""
        ...


@runtime_checkable
class ScoresTogether(Protocol):
    """A backend to which several responses may go in one message."""

    def together(self, items: Iterable[ScoreItem]) -> int:
        """How many of these items, from the first on, it takes in one message: at least one."""
        ...

    async def score_together(self, items: Sequence[ScoreItem]) -> Sequence[ScoringResult | None]:
        """The result of each, in order; None for one that must be scored alone. It may be cancelled."""
        ...


@dataclass(slots=True, eq=False)
class Job:
    """A score that waits or is under way. `done` is called once, with None if it was cancelled. What it raises goes to the
    loop's exception handler: the pool has others to score.

    `task` scores it together with the jobs in `beside`, which include it. One that failed so is scored `alone`.
    """

    item: ScoreItem
    done: Callable[[Outcome | None], None]
    task: asyncio.Task[None] | None = None
    beside: Sequence[Job] = ()
    alone: bool = False
    over: bool = False

    def end(self, outcome: Outcome | None) -> None:
        """Tell of the outcome, unless that was done before."""
        if self.over:
            return
        self.over = True
        try:
            self.done(outcome)
        except Exception as error:
            said = f"the score of {self.item.trajectory!r} was told to a function that raised"
            asyncio.get_running_loop().call_exception_handler({"message": said, "exception": error})

    def cancel(self) -> None:
        """Stop it, wherever it is. A message with several responses is given up once none of their scores is wanted."""
        self.end(None)
        if self.task is not None and all(job.over for job in self.beside):
            self.task.cancel()


class Pool:
    """Scores of one kind.

    Args:
        backends: each scores one response at a time, or several that wait if it `ScoresTogether`.
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
            jobs = await self._next(backend)
            task = asyncio.create_task(self._score(backend, jobs))
            for job in jobs:
                job.task, job.beside = task, jobs
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()  # does nothing to a task that is done
            if not task.cancelled():
                task.result()

    async def _next(self, backend: Backend) -> list[Job]:
        """What a backend scores next. With others beside it, it takes no more than its share of what waits."""
        async with self._changed:
            while True:
                await self._changed.wait_for(lambda: self._waiting)
                self._waiting = deque(job for job in self._waiting if not job.over)
                count = min(1, len(self._waiting))
                if isinstance(backend, ScoresTogether) and count and not self._waiting[0].alone:
                    share = -(-len(self._waiting) // len(self.backends))
                    first = takewhile(lambda job: not job.alone, islice(self._waiting, share))
                    count = backend.together(job.item for job in first)
                jobs = [self._waiting.popleft() for _ in range(count)]
                self._changed.notify_all()
                if jobs:
                    return jobs

    async def _score(self, backend: Backend, jobs: Sequence[Job]) -> None:
        """Tell each job of its outcome."""
        if len(jobs) == 1 or not isinstance(backend, ScoresTogether):
            for job in jobs:
                job.end(await self._outcome(backend, job.item))
            return
        results = await backend.score_together([job.item for job in jobs])
        for job, result in zip(reversed(jobs), reversed(results), strict=True):
            if result is None:
                job.task, job.beside, job.alone = None, (), True
                self._waiting.appendleft(job)
        for job, result in zip(jobs, results, strict=True):
            if result is not None:
                job.end(result)

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


class RewardScheduler:
    """Scores responses in pools, one for each kind of verifier. For one event loop; an asynchronous context manager.

    Args:
        math: settings of the pool of verifier functions.
        code: settings of the pool of programs.
        judge: settings of the pool of a judge.
        rechecked: told of every program that had used up its timeout and was tried again with the largest one.
    """

    def __init__(
        self,
        *,
        math: VerifierSettings | None = None,
        code: CodeSettings | None = None,
        judge: JudgeSettings | None = None,
        rechecked: Callable[[Recheck], None] | None = None,
    ) -> None:
        self._math, self._code = math or VerifierSettings(), code or CodeSettings()
        self._judge = judge or JudgeSettings()
        self._rechecked = rechecked or (lambda _: None)
        self._pools: dict[Kind, Pool] = {}
        self._jobs: dict[str, set[Job]] = {}  # by trajectory, of which there may be several
        self._closed = False
        self.sandbox: str | None = None
        """The sandbox's name, once a program was to be scored."""

    async def start(self, kinds: Collection[Kind]) -> None:
        """Start pools before their first item comes. A judge loads its model.

        Raises:
            NoSandboxError: there are programs to score and no sandbox works here.
            JudgeError: there are responses to judge, and no judge, or its model, template or memory budget is wrong.
            WorkerDiedError: the judge's process ended, or did not load its model within its deadline.
        """
        for kind in kinds:
            pool = self._pool(kind)
            if kind is Kind.JUDGE:
                for backend in set(pool.backends):
                    if isinstance(backend, JudgeBackend):
                        await backend.start()

    async def score(self, items: Iterable[ScoreItem]) -> AsyncGenerator[Outcome, None]:
        """The outcomes of some items, each as soon as it is known. Items of a full pool wait, those of others do not.

        Leaving the iteration cancels what has no outcome yet. An item that `cancel` names has no outcome.

        Raises:
            NoSandboxError: there are programs to score and no sandbox works here.
            ScorerClosedError: the scheduler is closed.
        """
        by_kind: dict[Kind, list[Job]] = {}
        arrived: asyncio.Queue[Outcome | None] = asyncio.Queue()
        for item in items:
            by_kind.setdefault(kind_of(item.verifier), []).append(Job(item, arrived.put_nowait))
        pools = {kind: self._pool(kind) for kind in by_kind}
        jobs = [job for some in by_kind.values() for job in some]
        for job in jobs:
            self._note(job)
        feeding = [asyncio.create_task(_feed(pools[kind], some)) for kind, some in by_kind.items()]
        try:
            for _ in jobs:
                outcome = await arrived.get()
                if outcome is not None:
                    yield outcome
        finally:
            for task in feeding:
                task.cancel()
            for job in jobs:
                job.cancel()
                self._forget(job)

    async def submit(self, item: ScoreItem, done: Callable[[Outcome | None], None]) -> None:
        """Queue one item, as soon as its pool has room. `done` is called once, with None if it was cancelled.

        Raises:
            NoSandboxError: it is a program and no sandbox works here.
            JudgeError: it is to be judged and there is no judge.
            ScorerClosedError: the scheduler is closed.
        """

        def ended(outcome: Outcome | None) -> None:
            self._forget(job)
            done(outcome)

        pool, job = self._pool(kind_of(item.verifier)), Job(item, ended)
        self._note(job)
        try:
            await pool.put(job)
        except BaseException:
            job.end(None)
            raise

    def full(self, kind: Kind) -> bool:
        """Whether another item of a kind would have to wait for room."""
        return kind in self._pools and self._pools[kind].full

    @property
    def busy(self) -> bool:
        """Whether any item has no outcome yet."""
        return bool(self._jobs)

    def cancel(self, trajectories: Iterable[str]) -> None:
        """Stop the scores of some trajectories, whether they wait or are under way. Unknown ones are ignored."""
        for trajectory in trajectories:
            for job in self._jobs.pop(trajectory, ()):
                job.cancel()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running workers of verifier functions, and of the judge."""
        backends = {backend for pool in self._pools.values() for backend in pool.backends}
        found = [backend.pid for backend in backends if isinstance(backend, VerifierWorker | JudgeBackend)]
        return tuple(pid for pid in found if pid is not None)

    async def close(self) -> None:
        """Cancel everything and end all processes. Calling it again does nothing."""
        self._closed = True
        self.cancel([*self._jobs])
        pools, self._pools = self._pools, {}
        await asyncio.gather(*(pool.close() for pool in pools.values()))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _pool(self, kind: Kind) -> Pool:
        if self._closed:
            raise ScorerClosedError("the scheduler is closed; make a new one")
        if kind not in self._pools:
            self._pools[kind] = self._made(kind)
        return self._pools[kind]

    def _made(self, kind: Kind) -> Pool:
        backends: list[Backend]
        if kind is Kind.CODE:
            settings = self._code
            sandbox = select_sandbox(settings.sandbox, settings.modules)
            self.sandbox = sandbox.name
            backends = [CodeBackend(sandbox, settings, self._rechecked)] * settings.workers
            return Pool(backends, settings.queue, settings.attempts)
        if kind is Kind.JUDGE:
            if self._judge.judge is None:
                raise JudgeError("found responses to judge and no judge, expected the settings of one")
            judge = JudgeProcess(self._judge.judge, start_timeout_s=self._judge.start_timeout_s)
            backends = [JudgeBackend(judge, self._judge.timeout_s)] * self._judge.workers
            return Pool(backends, self._judge.queue, self._judge.attempts)
        backends = [VerifierWorker(self._math) for _ in range(self._math.workers)]
        return Pool(backends, self._math.queue, self._math.attempts)

    def _note(self, job: Job) -> None:
        self._jobs.setdefault(job.item.trajectory, set()).add(job)

    def _forget(self, job: Job) -> None:
        same = self._jobs.get(job.item.trajectory, set())
        same.discard(job)
        if not same:
            self._jobs.pop(job.item.trajectory, None)


async def _feed(pool: Pool, jobs: Iterable[Job]) -> None:
    for job in jobs:
        await pool.put(job)
