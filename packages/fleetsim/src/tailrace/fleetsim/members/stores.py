"""The data role and the scorer of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.reward_stage import ModelledScore, RewardStage
from tailrace.runtime.executor.doors import Ready


class Data(RoleModel):
    """The data role. Its trajectory store outlives its process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.member: VirtualMember | None = None

    def starts_s(self, incarnation: int) -> float:
        return self._world.fleet.delays.data_restart_s if incarnation > 1 else 0.0

    def ready(self, version: int | None) -> Ready:
        """The content of the store; empty unless the whole run restarts."""
        if version is None:
            return Ready()
        self._world.rolled_back(version)
        held, partial = self._world.tokens.survivors(version)
        return Ready(held=held, partial=partial)

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Drop the trajectories of each `Abort`, and say how long the prompts of each `Measure` are."""
        assert self.member is not None
        for command in commands:
            if isinstance(command, c.Measure):
                tokens = tuple([self._world.tokens.prompt_tokens(prompt) for prompt in command.prompts])
                self.member.say([c.Measured(command.prompts, tokens, command.seq)])
            if isinstance(command, c.Abort):
                self._world.tokens.forget(command.trajectories)
                if self._world.reorders:
                    self._world.dropped.note(command.trajectories, command.seq)
                self.member.say([c.Discarded(command.seq)])

    def die(self) -> None:
        super().die()
        self._world.dropped.forget()

    def hang(self) -> None:
        """It stands still as it is: it answers in the same instant."""


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
