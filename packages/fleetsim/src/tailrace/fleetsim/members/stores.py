"""The data role and the scorer of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace import contracts as c
from tailrace.fleetsim.world import World

if TYPE_CHECKING:
    from tailrace.fleetsim.host import VirtualMember


class Data:
    """The data role. Its trajectory store outlives its process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member: VirtualMember | None = None

    def begin(self, member: VirtualMember) -> None:
        self._member = member

    def starts_s(self, incarnation: int) -> float:
        return self._world.fleet.delays.data_restart_s if incarnation > 1 else 0.0

    def ready(self, version: int | None) -> dict[str, Any]:
        """The content of the store, as fields of `Up`; empty unless the whole run restarts."""
        if version is None:
            return {}
        self._world.rolled_back(version)
        held, partial = self._world.tokens.survivors(version)
        return {"held": held, "partial": partial}

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Drop the trajectories of each `Abort`."""
        assert self._member is not None
        for command in commands:
            if isinstance(command, c.Abort):
                self._world.tokens.forget(command.trajectories)
                self._member.say([c.Discarded(command.seq)])

    def die(self) -> None:
        self._member = None

    def hang(self) -> None:
        """See `Model`."""

    def stall(self) -> None:
        """It has no engine."""


class ScorerModel:
    """Scores finished trajectories; each has its own duration."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member: VirtualMember | None = None

    def begin(self, member: VirtualMember) -> None:
        self._member = member

    def starts_s(self, incarnation: int) -> float:
        del incarnation
        return 0.0

    def ready(self) -> dict[str, Any]:
        return {}

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Begin to score the trajectories of each `Score`."""
        for command in commands:
            if isinstance(command, c.Score):
                self.score(command)

    def score(self, command: c.Score) -> None:
        """Score trajectories: each after a common delay and its own scoring time."""
        world, member = self._world, self._member
        assert member is not None
        known, delay = world.tokens.trajectories, world.fleet.delays.reward_s
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
        if member is not self._member:
            return
        known = self._world.tokens.trajectories
        member.say([c.Scored(name, known[name].sample.reward, seq) for name in names if name in known])

    def die(self) -> None:
        self._member = None

    def hang(self) -> None:
        self._member = None

    def stall(self) -> None:
        """It has no engine."""
