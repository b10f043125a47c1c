"""The data role of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.world import World
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
                self._fence(command)
                tokens_lost = self._world.tokens.partial_tokens(command.trajectories)
                self._world.tokens.forget(command.trajectories)
                if self._world.reorders:
                    self._world.dropped.note(command.trajectories, command.seq)
                self.member.say([c.Discarded(command.seq, tokens_lost)])

    def _fence(self, command: c.Abort) -> None:
        """A replica that is not told of an abort goes on with what it has of it, in vain."""
        tokens = self._world.tokens
        for name in command.trajectories:
            known = tokens.trajectories.get(name)
            if known is not None and known.replica not in command.replicas:
                tokens.fence(known.replica, name)

    def die(self) -> None:
        super().die()
        self._world.dropped.forget()

    def hang(self) -> None:
        """It stands still as it is: it answers in the same instant."""
