"""Invariants 3 and 4, by what the controller asks for: who is given work, and under which version."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fuzz.checks.data_plane import TOKENS, WEIGHTS
from tailrace.fuzz.errors import InvariantError
from tailrace.runtime.executor.deployment import REPLICA, TRAINER

FULL = "the trainer goes on from full state"
FENCE = "a fenced version is durable before it is seen"


class VersionCheck:
    """What the controller was told of weights.

    Args:
        fence: a version may be pulled only once its checkpoint is durable.
        peers: replicas pull from each other, and each source serves one of them.
        mixes_versions: a trajectory for training may go on under another version.
    """

    def __init__(self, *, mixes_versions: bool, fence: bool = False, peers: bool = False) -> None:
        self._mixes, self._fence, self._peers = mixes_versions, fence, peers
        self._durable = {0}  # the model that the run began with is kept
        self._published: set[int] = set()
        self._serves: dict[str, int] = {}
        self._distrusted: set[str] = set()  # they have had other weights than were published
        self._up: set[str] = set()
        self.pulling: dict[str, int] = {}  # what was asked for and not answered
        self._from: dict[str, str] = {}  # the source that each was told first of
        self._group: dict[int, int] = {}  # the version at which a group started

    def up(self, event: c.Up) -> None:
        """A member is new."""
        if event.role == REPLICA:
            self._up.add(event.id)

    def down(self, event: c.Down) -> None:
        """A member is gone."""
        if event.role == REPLICA:
            self._gone(event.id)

    def restart(self, command: c.Restart) -> None:
        """A member is replaced, whether it was down or not. A trainer goes on from full state.

        Raises:
            InvariantError: there is none of that version.
        """
        if command.role == REPLICA:
            self._gone(command.id)
        if command.role == TRAINER and (command.version or 0) not in self._durable:
            raise InvariantError(
                FULL, f"the trainer is to go on from version {command.version}, expected one of {sorted(self._durable)}"
            )
        weights = command.weights
        if weights is None:
            return
        if command.role != TRAINER or not weights.sources or weights.version <= (command.version or 0):
            raise InvariantError(WEIGHTS, f"{command.role} is to take {weights}, newer than version {command.version}")
        if weights.version not in self._published:
            raise InvariantError(
                WEIGHTS, f"the trainer is to take the weights of version {weights.version}, which is not published"
            )

    def stop(self, command: c.Stop) -> None:
        """A silent member is given up. One that is stopped for another reason may still answer."""
        if command.role == REPLICA and command.reason.why in c.SUSPICIONS:
            self._gone(command.id)

    def resize(self, command: c.Resize) -> None:
        """A replica is replaced by one of another size, which serves nothing."""
        self._gone(command.replica)

    def _gone(self, replica: str) -> None:
        self._up.discard(replica)
        self._distrusted.discard(replica)
        self._serves.pop(replica, None)
        self.pulling.pop(replica, None)

    def resumed(self, event: c.Resumed) -> None:
        """Every member is gone. A checkpoint may have become durable that nobody heard of."""
        self._durable |= set(event.checkpoints)
        self._up.clear()
        self._distrusted.clear()
        self._serves.clear()
        self.pulling.clear()

    def published(self, event: c.Published) -> None:
        """A version may be pulled.

        Raises:
            InvariantError: there is a fence, and the version can still be lost with the trainer.
        """
        if self._fence and event.version not in self._durable:
            raise InvariantError(FENCE, f"version {event.version} is published before its checkpoint is durable")
        self._published.add(event.version)

    def saved(self, event: c.Durable) -> None:
        """A checkpoint is durable, and the trainer can come back to it."""
        if event.full:
            self._durable.add(event.version)

    def pulled(self, event: c.Pulled) -> None:
        """A replica serves a version."""
        self._serves[event.replica] = event.version
        self.pulling.pop(event.replica, None)

    def pull_failed(self, event: c.PullFailed) -> None:
        """A replica serves nothing. One whose engine has other weights than were published is not to go on."""
        if event.differs and event.replica in self._up:
            self._distrusted.add(event.replica)
        self._serves.pop(event.replica, None)
        self.pulling.pop(event.replica, None)

    def pull(self, command: c.Pull, controller: Controller) -> None:
        """Only what is published can be pulled, by who is there."""
        self._serves.pop(command.replica, None)
        # One that stood still, and waits for its devices before it begins anew, answers no more, though nobody said so.
        held, replicas = c.Health.STARTING, controller.fleet.replicas
        taken = {self._from[other] for other in self.pulling if replicas[other].member.health is not held}
        self.pulling[command.replica] = command.version
        if command.version not in self._published:
            raise InvariantError(
                WEIGHTS, f"{command.replica} is to pull version {command.version}, which is not published"
            )
        if command.replica not in self._up:
            raise InvariantError(WEIGHTS, f"{command.replica} is to pull and is not up")
        self._from[command.replica] = source = command.sources[0]
        if self._peers and source in taken:
            raise InvariantError(WEIGHTS, f"{command.replica} is to pull from {source}, which serves another")
        if command.replica in self._distrusted:
            raise InvariantError(
                WEIGHTS, f"{command.replica} is to pull, expected a restart: its engine had other weights"
            )

    def routes(self, commands: Sequence[c.Route]) -> None:
        """Work goes to replicas that serve a version which may generate it. One decision may start a group on several."""
        started: dict[int, int] = {}
        for command in commands:
            version = self._serves.get(command.replica)
            if version is None:
                raise InvariantError(WEIGHTS, f"{command.replica} is given work and has no complete version")
            for ref in command.trajectories:
                if ref.purpose is c.Purpose.TRAIN and ref.group not in self._group:
                    started[ref.group] = min(version, started.get(ref.group, version))
        self._group |= started
        for command in commands if self._mixes else ():
            version = self._serves[command.replica]
            for ref in command.trajectories:
                if ref.purpose is c.Purpose.TRAIN and version < self._group[ref.group]:
                    raise InvariantError(
                        TOKENS,
                        f"{ref.trajectory} is routed to version {version}, but its group started at version "
                        f"{self._group[ref.group]}",
                    )
