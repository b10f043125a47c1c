"""A judge in a process of its own, for an asyncio loop. Its death or hang is an infrastructure failure, never a score.

`JudgeBackend` is one as a backend of the reward scheduler.

score() ──► waiting ──batch of what waits──► child process ──► outcomes, one for each item
              ▲                                  │ died, or all deadlines of its batch passed: killed, and
              └── unaffected ◄───────────────────┘ the batch's items are Unjudged; the next batch starts a new one
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from tailrace.reward.errors import JudgeClosedError, JudgeError, ScoringError, WorkerDiedError, WorkerTimeoutError
from tailrace.reward.items import JudgeItem, Judgement, ScoreItem, ScoringResult, Unjudged
from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.process import WorkerProcess


@dataclass(slots=True)
class _Asked:
    item: JudgeItem
    timeout_s: float
    deadline: float
    outcome: asyncio.Future[Judgement] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, outcome: Judgement) -> None:
        if not self.outcome.done():  # its caller may have given up, or its deadline may have passed
            self.outcome.set_result(outcome)

    def expire(self, now: float) -> None:
        if now >= self.deadline:
            reason = f"the judge gave no score within {self.timeout_s:g} s"
            self.settle(Unjudged(reason, permanent=False))


class JudgeProcess:
    """A judge in a child process, which starts with the first items and again after it ended. For one asyncio loop.

    All items that wait when the process is free go into its next batch, whoever asked.

    Args:
        config: the judge.
        start_timeout_s: deadline of starting the process and loading the model. This time does not count against the deadlines
            of items that wait for it.
    """

    def __init__(self, config: JudgeConfig, *, start_timeout_s: float = 600.0) -> None:
        self._config = config
        self._start_timeout_s = start_timeout_s
        self._child: WorkerProcess | None = None
        self._waiting: deque[_Asked] = deque()
        self._asked: list[_Asked] = []
        self._worker: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._loading: asyncio.Task[WorkerProcess] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process's id while it runs."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Load the judge now, so that what is wrong with it is known before there is work.

        Raises:
            JudgeError: the judge cannot be made: its model, template, tokens or memory budget.
            WorkerDiedError: the process ended, or did not load within its deadline.
            JudgeClosedError: the judge was closed.
        """
        self._open()
        await self._running()

    async def score(self, items: Sequence[JudgeItem], timeout_s: float) -> list[Judgement]:
        """One outcome for each item, in order. What has none after `timeout_s` is `Unjudged`; loading a model does not count.

        Cancelling withdraws the items that are not in a batch yet.

        Raises:
            JudgeClosedError: the judge was closed.
        """
        self._open()
        deadline = asyncio.get_running_loop().time() + timeout_s
        asked = [_Asked(item, timeout_s, deadline) for item in items]
        self._waiting.extend(asked)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="tailrace-judge")
        try:
            return list(await asyncio.gather(*(each.outcome for each in asked)))
        finally:
            for each in asked:
                each.outcome.cancel()

    async def close(self) -> None:
        """Kill the process, also while it loads. What waits becomes `Unjudged`. Calling it again does nothing."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await worker
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        self._settle_all(Unjudged("the judge was closed", permanent=False))
        await self._end_child()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self) -> None:
        if self._closed:
            raise JudgeClosedError("the judge is closed; make a new one")

    async def _work(self) -> None:
        """Judge until nothing waits."""
        now = asyncio.get_running_loop().time
        try:
            while self._waiting:
                before = now()
                child = await self._running()
                for each in self._waiting:
                    each.deadline += now() - max(before, each.deadline - each.timeout_s)
                    each.expire(now())
                while self._waiting and len(self._asked) < self._config.batch_items:
                    each = self._waiting.popleft()
                    if not each.outcome.done():
                        self._asked.append(each)
                if self._asked:
                    await self._judge(child)
                self._asked = []
        except (JudgeError, WorkerDiedError) as error:  # it does not start; what is asked later tries again
            self._settle_all(Unjudged(str(error), permanent=False))
        except Exception as error:
            self._settle_all(Unjudged(f"the judge's client failed: {error!r}", permanent=False))
            raise

    async def _running(self) -> WorkerProcess:
        async with self._starting:
            if self._child is not None and self._child.pid is None:  # it ended while nothing was asked
                await self._end_child()
            if self._child is None:
                self._open()
                self._loading = asyncio.create_task(_started(self._config, self._start_timeout_s))
                try:
                    self._child = await self._loading
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if task is not None and not task.cancelling():
                        self._open()  # it was `close` that ended it
                    raise
            return self._child

    async def _judge(self, child: WorkerProcess) -> None:
        now = asyncio.get_running_loop().time
        answer = asyncio.create_task(_scores(child, [each.item for each in self._asked]))
        last = max(each.deadline for each in self._asked)
        try:
            while not answer.done() and now() < last:
                pending = [each.deadline for each in (*self._asked, *self._waiting) if not each.outcome.done()]
                await asyncio.wait({answer}, timeout=max(0.0, min([*pending, last]) - now()))
                if not answer.done():
                    for each in (*self._asked, *self._waiting):
                        each.expire(now())
            if answer.done():
                for each, outcome in zip(self._asked, answer.result(), strict=True):
                    each.settle(outcome)
            else:  # every deadline of the batch has passed
                await self._end_child()
        except WorkerDiedError as error:
            await self._end_child()
            for each in self._asked:
                each.settle(Unjudged(str(error), permanent=False))
        finally:
            if not answer.done():
                answer.cancel()
                with contextlib.suppress(asyncio.CancelledError, WorkerDiedError):
                    await answer

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.stop()  # its memory is free then

    def _settle_all(self, outcome: Unjudged) -> None:
        for each in (*self._asked, *self._waiting):
            each.settle(outcome)
        self._asked = []
        self._waiting.clear()


async def _started(config: JudgeConfig, timeout_s: float) -> WorkerProcess:
    """A process with the judge loaded in it.

    Raises:
        JudgeError: it says that this judge cannot be made.
        WorkerDiedError: it ended, or did not finish within `timeout_s`.
    """
    process = WorkerProcess([sys.executable, "-m", "tailrace.reward.judge.worker"])
    try:
        found = await process.ask({"judge": config.to_json()}, timeout_s, "loading the judge")
    except WorkerTimeoutError as error:
        raise WorkerDiedError(str(error)) from None
    if "error" in found:
        await process.stop()
        raise JudgeError(found["error"])
    return process


async def _scores(process: WorkerProcess, items: Sequence[JudgeItem]) -> list[Judgement]:
    """One outcome for each item. Takes as long as it takes; the caller has the deadline, and cancelling kills the process.

    Raises:
        WorkerDiedError: the process ended, or failed and is of no more use: a device that failed once fails on.
    """
    found = await process.ask({"items": [asdict(item) for item in items]}, None, "the judge")
    if "error" in found:
        raise WorkerDiedError(f"the judge failed: {found['error']}")
    return [Unjudged(**said) if isinstance(said, dict) else float(said) for said in found["outcomes"]]


class JudgeBackend:
    """Asks one judge. Several scores may be under way at once.

    Args:
        judge: the judge's process; it is ended with this backend.
        timeout_s: deadline of one score. Loading the model does not count.
    """

    def __init__(self, judge: JudgeProcess, timeout_s: float) -> None:
        self._judge, self._timeout_s = judge, timeout_s

    @property
    def pid(self) -> int | None:
        """The judge's process id while it runs."""
        return self._judge.pid

    async def score(self, item: ScoreItem) -> ScoringResult:
        """The judge's score of a response, 0 to 1. The row's metadata may have a ``rubric``.

        Raises:
            ScoringError: the judge gave none, which is never a score of zero.
        """
        asked = JudgeItem(item.response_text, item.prompt_text, item.answer, _rubric(item.metadata))
        (found,) = await self._judge.score([asked], self._timeout_s)
        if isinstance(found, Unjudged):
            raise ScoringError(found.reason)
        return ScoringResult(item.trajectory, found)

    async def start(self) -> None:
        """Load the model now; see `JudgeProcess.start` for what it raises."""
        await self._judge.start()

    async def close(self) -> None:
        """End the judge's process."""
        await self._judge.close()


def _rubric(metadata: Mapping[str, Any]) -> str:
    found = metadata.get("rubric")
    if not isinstance(found, str | None):
        raise ScoringError(f"found the rubric {found!r:.60}, expected text")
    return found or ""
