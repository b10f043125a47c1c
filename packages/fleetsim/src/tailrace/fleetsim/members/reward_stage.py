"""The reward stage of a simulation: a pool of workers for each kind, queues, and timeouts that adapt to each prompt.

    finished ─► queue of its kind ─► a free worker ─► right, wrong, or cut at its timeout with a reward of 0

A worker is free again at once when its trajectory is aborted. Queues are not bounded: what they would hold back waits in the
trajectory store, and is scored in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tailrace.fleetsim.clock import VirtualTime
from tailrace.fleetsim.fleet import ScoringWorkers
from tailrace.fleetsim.tokens import SimulatedTrajectory
from tailrace.reward.timeouts import Anchors


@dataclass(frozen=True, slots=True)
class ModelledScore:
    """A score that has ended.

    Args:
        trajectory: its trajectory.
        answers: number of the command that asked for it.
        reward: 0 if it was cut.
        seconds: from the worker's begin to its end, without the time in the queue.
        timeout_s: the timeout at which it was cut, None if it was not.
    """

    trajectory: str
    answers: int
    reward: float
    seconds: float
    timeout_s: float | None


class _Pool:
    """The workers of one kind."""

    def __init__(self, config: ScoringWorkers) -> None:
        self.workers, self.at_step_end, self.rule = config.workers, config.at_step_end, config.timeout
        self.anchors = Anchors()
        self.queue: deque[str] = deque()
        self.running: set[str] = set()


class RewardStage:
    """Scores trajectories in virtual time.

    Args:
        time: the clock.
        pools: the workers of each kind.
        batch: trajectories of a step.
        ended: is called with each score when it ends.
    """

    def __init__(
        self, time: VirtualTime, pools: Mapping[str, ScoringWorkers], batch: int, ended: Callable[[ModelledScore], None]
    ) -> None:
        self._time, self._batch, self._ended = time, batch, ended
        self._pools = {kind: _Pool(config) for kind, config in pools.items()}
        self._asked: dict[str, tuple[SimulatedTrajectory, int]] = {}
        self._held: dict[str, None] = {}  # they wait for the end of their step
        self._arrived: set[str] = set()  # of the step under way
        self._last_step: frozenset[str] = frozenset()

    def add(self, name: str, trajectory: SimulatedTrajectory, answers: int) -> None:
        """Score a trajectory as soon as a worker is free, or after the step's last trajectory has come."""
        pool = self._pools[trajectory.sample.kind]
        self._asked[name] = trajectory, answers
        if name not in self._last_step:
            self._arrived.add(name)
            if pool.at_step_end:
                self._held[name] = None
        if name not in self._held:
            pool.queue.append(name)
        if len(self._arrived) >= self._batch:
            for held in self._held:
                self._pool(held).queue.append(held)
            self._last_step = frozenset(self._arrived)
            self._held.clear()
            self._arrived.clear()
        self._start()

    def abort(self, names: tuple[str, ...]) -> None:
        """Score these no longer. Their workers are free."""
        for name in names:
            self._held.pop(name, None)
            if name in self._asked:
                pool = self._pool(name)
                del self._asked[name]
                if name in pool.running:
                    pool.running.discard(name)
                else:
                    pool.queue = deque(waiting for waiting in pool.queue if waiting != name)
        self._start()

    def clear(self) -> None:
        """Forget what is under way and what was learned of timeouts: the process is gone."""
        self._asked.clear()
        self._held.clear()
        for pool in self._pools.values():
            pool.queue.clear()
            pool.running.clear()
            pool.anchors = Anchors()

    def _pool(self, name: str) -> _Pool:
        return self._pools[self._asked[name][0].sample.kind]

    def _start(self) -> None:
        for pool in self._pools.values():
            while pool.queue and len(pool.running) < pool.workers:
                name = pool.queue.popleft()
                pool.running.add(name)
                asked = self._asked[name]
                trajectory, answers = asked
                sample = trajectory.sample
                timeout_s = pool.rule.timeout_s(pool.anchors.get(trajectory.group, sample.reference_s))
                cut = sample.reward_s > timeout_s
                seconds = timeout_s if cut else sample.reward_s
                score = ModelledScore(name, answers, 0.0 if cut else sample.reward, seconds, timeout_s if cut else None)
                self._time.at(self._time.now() + seconds, self._end, (asked, score))

    def _end(self, ending: tuple[tuple[SimulatedTrajectory, int], ModelledScore]) -> None:
        asked, score = ending
        if self._asked.get(score.trajectory) is not asked:
            return  # it was aborted, or the process is another one
        pool = self._pool(score.trajectory)
        del self._asked[score.trajectory]
        pool.running.discard(score.trajectory)
        if score.reward > 0:
            pool.anchors.right(asked[0].group, score.seconds)
        self._ended(score)
        self._start()
