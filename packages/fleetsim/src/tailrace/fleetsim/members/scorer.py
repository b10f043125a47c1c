"""The scorer of a simulation, and its reward stage: pools of workers, queues, timeouts that adapt to each prompt.

    finished ─► queue of its kind ─► a free worker ─► right, wrong, or cut at its timeout with a reward of 0

A pool on the replicas' own devices slows them while it has scores.
A worker is free again at once when its trajectory is aborted. Queues are not bounded: what they would hold back waits in the
trajectory store, and is scored in the same order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.fleetsim.fleet.fleet import ScoringWorkers
from tailrace.fleetsim.host.clock import VirtualTime
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.tokens import SimulatedTrajectory
from tailrace.fleetsim.host.world import World
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
        self.slows = config.slows
        self.anchors = Anchors()
        self.queue: deque[str] = deque()
        self.running: set[str] = set()


class RewardStage:
    """Scores trajectories in virtual time.

    Args:
        time: the clock.
        pools: the workers of each kind.
        groups: groups of a step.
        needed: trajectories with which a group is complete.
        ended: is called with each score when it ends.
        slowed: is called with the factor by which replicas are slower now, when it changes.
    """

    def __init__(
        self,
        time: VirtualTime,
        pools: Mapping[str, ScoringWorkers],
        groups: int,
        needed: int,
        ended: Callable[[ModelledScore], None],
        slowed: Callable[[float], None],
    ) -> None:
        self._slowed, self._slows = slowed, 1.0
        self._time, self._batch, self._needed, self._ended = time, groups, needed, ended
        self._pools = {kind: _Pool(config) for kind, config in pools.items()}
        self._staged = any(config.at_step_end for config in pools.values())
        self._asked: dict[str, tuple[SimulatedTrajectory, int]] = {}
        self._arrived: dict[int, dict[str, None]] = {}  # of the step under way, by group; those of some pools wait
        self._complete = 0  # groups of it that are complete
        self._last_step: frozenset[str] = frozenset()

    def add(self, name: str, trajectory: SimulatedTrajectory, answers: int) -> None:
        """Score a trajectory as soon as a worker is free, or after the step's last trajectory has come."""
        pool = self._pools[trajectory.sample.kind]
        self._asked[name] = trajectory, answers
        if name in self._last_step or not pool.at_step_end:
            pool.queue.append(name)
        if self._staged and name not in self._last_step:
            arrived = self._arrived.setdefault(trajectory.group, {})
            arrived[name] = None
            self._complete += len(arrived) == self._needed
            if self._complete >= self._batch:
                self._end_step()
        self._start()

    def _end_step(self) -> None:
        """All responses that the step needs are there. What else has come, of groups that are too late, waits on."""
        complete = {group: names for group, names in self._arrived.items() if len(names) >= self._needed}
        for group, names in complete.items():
            del self._arrived[group]
            for name in names:
                if name in self._asked and (pool := self._pool(name)).at_step_end:
                    pool.queue.append(name)
        self._complete = 0
        self._last_step = frozenset(name for names in complete.values() for name in names)

    def abort(self, names: tuple[str, ...]) -> None:
        """Score these no longer. Their workers are free."""
        for name in names:
            if name in self._asked:
                pool = self._pool(name)
                self._leave(name)
                del self._asked[name]
                if name in pool.running:
                    pool.running.discard(name)
                else:
                    pool.queue = deque(waiting for waiting in pool.queue if waiting != name)
        self._start()

    def _leave(self, name: str) -> None:
        group = self._asked[name][0].group
        arrived = self._arrived.get(group, {})
        if name in arrived:
            self._complete -= len(arrived) == self._needed
            del arrived[name]

    def clear(self) -> None:
        """Forget what is under way and what was learned of timeouts: the process is gone."""
        self._asked.clear()
        self._arrived.clear()
        self._complete = 0
        for pool in self._pools.values():
            pool.queue.clear()
            pool.running.clear()
            pool.anchors = Anchors()
        self._slow()

    def _slow(self) -> None:
        slows = math.prod(pool.slows for pool in self._pools.values() if pool.running)
        if slows != self._slows:
            self._slows = slows
            self._slowed(slows)

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
                timeout_s = pool.rule.timeout_s(pool.anchors.get(trajectory.prompt, sample.reference_s))
                cut = sample.reward_s > timeout_s
                seconds = timeout_s if cut else sample.reward_s
                score = ModelledScore(name, answers, 0.0 if cut else sample.reward, seconds, timeout_s if cut else None)
                self._time.at(self._time.now() + seconds, self._end, (asked, score))
        self._slow()

    def _end(self, ending: tuple[tuple[SimulatedTrajectory, int], ModelledScore]) -> None:
        asked, score = ending
        if self._asked.get(score.trajectory) is not asked:
            return  # it was aborted, or the process is another one
        pool = self._pool(score.trajectory)
        del self._asked[score.trajectory]
        pool.running.discard(score.trajectory)
        if score.reward > 0:
            pool.anchors.right(asked[0].prompt, score.seconds)
        self._ended(score)
        self._start()


class ScorerModel(RoleModel):
    """Scores finished trajectories: each at once with its own duration, or in the reward stage if the fleet has one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.member: VirtualMember | None = None
        fleet = world.fleet
        groups, needed = fleet.spec.batch_groups, fleet.needed
        self._stage = (
            RewardStage(world.time, fleet.scoring, groups, needed, self._ended, world.slow_replicas)
            if fleet.scoring
            else None
        )

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Begin to score the trajectories of each `Score`, and stop with those of each `Abort`."""
        for command in commands:
            if isinstance(command, c.Score):
                self.score(command)
            elif isinstance(command, c.Abort) and self._stage is not None:
                self._stage.abort(command.trajectories)

    def score(self, command: c.Score) -> None:
        """Score trajectories: each after a common delay and its own scoring time."""
        world, member = self._world, self.member
        assert member is not None
        known, delay = world.tokens.trajectories, world.fleet.delays.reward_s
        if self._stage is not None:
            for name in command.trajectories:
                if name in known:
                    self._stage.add(name, known[name], command.seq)
            return
        at_once = []
        for name in command.trajectories:
            slower = known[name].sample.reward_s if name in known else 0.0
            if slower:
                world.time.at(world.time.now() + delay + slower, self._scored, (member, (name,), command.seq))
            else:
                at_once.append(name)
        if delay:
            world.time.at(world.time.now() + delay, self._scored, (member, at_once, command.seq))
        else:
            self._scored((member, at_once, command.seq))

    def _scored(self, scored: tuple[VirtualMember, Sequence[str], int]) -> None:
        member, names, seq = scored
        if member is not self.member:
            return
        known = self._world.tokens.trajectories
        member.say([c.Scored(name, known[name].sample.reward, seq) for name in names if name in known])

    def _ended(self, score: ModelledScore) -> None:
        delay = self._world.fleet.delays.reward_s
        if delay:
            self._world.time.at(self._world.time.now() + delay, self._say, (self.member, score))
        else:
            self._say((self.member, score))

    def _say(self, said: tuple[VirtualMember | None, ModelledScore]) -> None:
        member, score = said
        if member is None or member is not self.member or score.trajectory not in self._world.tokens.trajectories:
            return
        over = "" if score.timeout_s is None else f"cpu {score.timeout_s:g} s"
        reward, seconds = score.reward, score.seconds
        member.say([c.Scored(score.trajectory, reward, score.answers, seconds=seconds, over_budget=over)])

    def die(self) -> None:
        super().die()
        if self._stage is not None:
            self._stage.clear()
