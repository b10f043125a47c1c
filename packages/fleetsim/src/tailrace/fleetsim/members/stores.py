"""The data role and the scorer of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace import contracts as c
from tailrace.fleetsim.world import World

if TYPE_CHECKING:
    from tailrace.fleetsim.host import VirtualMember


class Data:
    """The trajectory store: it outlives its process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member: VirtualMember | None = None

    def begin(self, member: VirtualMember) -> None:
        """See `Model`."""
        self._member = member

    def starts_s(self, incarnation: int) -> float:
        """See `Model`."""
        return self._world.fleet.delays.data_restart_s if incarnation > 1 else 0.0

    def ready(self, version: int | None) -> dict[str, Any]:
        """See `Model`: when the whole run starts again, it says what it holds."""
        if version is None:
            return {}
        self._world.rolled_back(version)
        held, partial = self._world.tokens.survivors(version)
        return {"held": held, "partial": partial}

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Drop what the controller does not want any more."""
        assert self._member is not None
        for command in commands:
            if isinstance(command, c.Abort):
                self._world.tokens.forget(command.trajectories)
                self._member.say([c.Discarded(command.seq)])

    def die(self) -> None:
        """See `Model`."""
        self._member = None

    def hang(self) -> None:
        """See `Model`."""

    def stall(self) -> None:
        """See `Model`: it has no engine."""


class Scorer:
    """Scores what finished, each trajectory in its own time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member: VirtualMember | None = None

    def begin(self, member: VirtualMember) -> None:
        """See `Model`."""
        self._member = member

    def starts_s(self, incarnation: int) -> float:
        """See `Model`."""
        del incarnation
        return 0.0

    def ready(self) -> dict[str, Any]:
        """See `Model`."""
        return {}

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Begin to score."""
        for command in commands:
            if isinstance(command, c.Score):
                self.score(command)

    def score(self, command: c.Score) -> None:
        """Score trajectories: after a delay of all, and what one needs by itself."""
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
        """See `Model`."""
        self._member = None

    def hang(self) -> None:
        """See `Model`."""
        self._member = None

    def stall(self) -> None:
        """See `Model`: it has no engine."""
