"""The scorer role: scores finished trajectories in its own process, each as it comes, beside generation.

    Score ──► what waits, ids only ──► to_score (data role) ──► the scheduler's pools ──► set_rewards (data role) ──► Scored
                                                                       Abort cancels at every place

If a verifier fails, its trajectory loses one attempt. If the data role is gone for too long, this role goes down too; the
controller then has the trajectories scored again, without counting an attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tailrace.contracts import Abort, Activity, Command, Event, Rechecked, Scored, ScoringFailed
from tailrace.contracts import Score as ScoreCommand
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.roles.role_loop import RoleLoop
from tailrace.reward import (
    CodeSettings,
    JudgeSettings,
    Kind,
    Outcome,
    Recheck,
    RewardScheduler,
    ScoreItem,
    ScoringResult,
    VerifierSettings,
    kind_of,
)
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready, Role
from tailrace.runtime.executor.seam import MemberStart

_AT_ONCE = 128  # responses that are fetched together
# A call costs more than what is in it. So responses wait so long for others, to be fetched together, and outcomes at most so
# long for those under way, to be stored and told together.
_FETCH_S = 0.02
_TOGETHER_S = 0.1


@dataclass(frozen=True, slots=True)
class ScorerSettings:
    """Settings of the scorers.

    Args:
        verifiers: names of the verifiers that rows use; their pools start at once, and each is imported.
        math: settings of the pool of verifier functions.
        code: settings of the pool of programs.
        judge: settings of the pool of a judge.
    """

    verifiers: Sequence[str]
    math: VerifierSettings | None = None
    code: CodeSettings | None = None
    judge: JudgeSettings | None = None


class ScorerRole:
    """Reads responses from the data role, scores them and writes their rewards back."""

    def __init__(self, settings: ScorerSettings, start: MemberStart) -> None:
        self._data = DATA_DOOR.open(start.data, start.data_s)
        self._verifiers = tuple(dict.fromkeys(settings.verifiers))
        self._scheduler = RewardScheduler(
            math=settings.math, code=settings.code, judge=settings.judge, rechecked=self._rechecked
        )
        self._loop = RoleLoop("scoring")
        # Everything below belongs to the loop's thread.
        self._waiting: dict[str, int] = {}  # number of the command by trajectory
        self._held: dict[Kind, dict[str, int]] = {kind: {} for kind in Kind}  # their pool was full
        self._under_way: dict[str, int] = {}
        self._outcomes: list[tuple[Outcome, int]] = []
        self._come, self._done, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._loop.start(self._serve)  # importing verifiers has a deadline of its own

    def ready(self) -> Ready:
        """Returns once the role is up."""
        return Ready()

    def submit(self, commands: Sequence[Command]) -> None:
        """Score the trajectories of each `Score`, except those that a later `Abort` names."""
        for command in commands:
            if not isinstance(command, ScoreCommand | Abort):
                raise RoleError(f"the scorer got {type(command).__name__} {command.seq}, expected Score or Abort")
        self._loop.post(self._take, tuple(commands))

    def events(self, timeout_s: float) -> list[Event]:
        """Outcomes since the last call; waits up to `timeout_s` seconds for one."""
        return self._loop.events(timeout_s)

    def adopt(self) -> None:
        """Prepare for another controller: drop the last one's trajectories."""
        self._loop.adopt(self._forget)

    def close(self) -> None:
        """End the verifier processes and the programs that run."""
        self._loop.close()

    # ---- in the loop's thread ---------------------------------------------------------------------------------------

    async def _serve(self, up: Callable[[], None]) -> None:
        async with self._scheduler as scheduler:
            await scheduler.start({kind_of(name) for name in self._verifiers})
            if scheduler.sandbox is not None:
                self._loop.queue.put(Activity("scorer", "0", scheduler.sandbox))
            # A function's first use imports it, which can take seconds; do that before the first responses wait.
            functions = [name for name in self._verifiers if kind_of(name) is Kind.MATH]
            async for _ in scheduler.score([ScoreItem(name, "", "", name) for name in functions]):
                pass
            up()
            tasks = [asyncio.create_task(work) for work in (self._feed(), self._tell(), self._loop.closing.wait())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()

    def _take(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, ScoreCommand):
                self._waiting.update(dict.fromkeys(command.trajectories, command.seq))
            elif isinstance(command, Abort):
                self._drop(command.trajectories)
        if self._waiting:
            asyncio.get_running_loop().call_later(_FETCH_S, self._come.set)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            for place in (self._waiting, self._under_way, *self._held.values()):
                place.pop(name, None)
        self._scheduler.cancel(names)

    async def _forget(self) -> None:
        for place in (self._waiting, self._under_way, *self._held.values()):
            self._drop([*place])
        self._outcomes.clear()

    async def _feed(self) -> None:
        """Fetch what waits, and hand it to the pools that have room."""
        while True:
            await self._come.wait()
            self._come.clear()
            while names := self._next():
                items = await asyncio.to_thread(self._data.to_score, names)
                here = {item.trajectory for item in items}
                self._drop([name for name in names if name not in here])  # the store has dropped it
                for item in items:
                    await self._hand_over(item)

    def _next(self) -> list[str]:
        """What to fetch next, which is then under way."""
        names: list[str] = []
        open_pools = [held for kind, held in self._held.items() if held and not self._scheduler.full(kind)]
        for place in (*open_pools, self._waiting):
            for name in list(islice(place, _AT_ONCE - len(names))):
                self._under_way[name] = place.pop(name)
                names.append(name)
        return names

    async def _hand_over(self, item: ScoreItem) -> None:
        name, kind = item.trajectory, kind_of(item.verifier)
        seq = self._under_way.get(name)
        if seq is None:
            return  # it was dropped meanwhile
        if self._scheduler.full(kind):
            self._held[kind][name] = self._under_way.pop(name)
            return

        def done(outcome: Outcome | None) -> None:
            if outcome is not None:
                self._outcomes.append((outcome, seq))
                self._done.set()
            if not self._scheduler.busy:
                self._idle.set()
            if any(self._held.values()):
                self._come.set()  # their pool may have room

        await self._scheduler.submit(item, done)

    async def _tell(self) -> None:
        """Store rewards and report outcomes, those of one time together; the last one under way waits for nothing."""
        while True:
            await self._done.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOGETHER_S):
                    await self._idle.wait()
            self._done.clear()
            self._idle.clear()
            outcomes, self._outcomes = self._outcomes, []
            rewards = {
                outcome.trajectory: outcome.reward
                for outcome, seq in outcomes
                if isinstance(outcome, ScoringResult) and self._under_way.get(outcome.trajectory) == seq
            }
            if rewards:
                await asyncio.to_thread(self._data.set_rewards, rewards)
            told = []
            for outcome, seq in outcomes:
                if self._under_way.get(outcome.trajectory) == seq:  # it was not dropped meanwhile
                    del self._under_way[outcome.trajectory]
                    told.append(_event(outcome, seq))
            self._loop.queue.put(*told)

    def _rechecked(self, recheck: Recheck) -> None:
        self._loop.queue.put(Rechecked(recheck.trajectory, recheck.correct))


def _event(outcome: Outcome, seq: int) -> Event:
    if not isinstance(outcome, ScoringResult):
        return ScoringFailed(outcome.trajectory, outcome.reason, answers=seq)
    return Scored(
        outcome.trajectory,
        outcome.reward,
        answers=seq,
        correct=outcome.correct,
        seconds=round(outcome.seconds, 4),
        over_budget=outcome.over_budget,
    )


if TYPE_CHECKING:
    _: type[Role] = ScorerRole  # mypy checks it here
