"""What an executor starts for each role: a factory and its arguments, and how long it waits for what."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.pipeline.executor.seam import Host, RoleSpec

DATA, SCORER, TRAINER, REPLICA, RELAY = "data", "scorer", "trainer", "replica", "relay"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the executor waits, in seconds. What it waits for is in the run's status.

    Args:
        start_s: for a role to come up, a model to load included.
        step_s: for one training step.
        publish_s: for a version to be visible on a relay, or a checkpoint to be durable.
        pull_s: for a replica to load a version.
        score_s: for the next outcome while trajectories are being scored.
        suspect_s, silent_s: silence after which a member is suspected, and then taken for dead.
        close_s: for a role to tidy up.
    """

    start_s: float = 600.0
    step_s: float = 1800.0
    publish_s: float = 600.0
    pull_s: float = 600.0
    score_s: float = 300.0
    suspect_s: float = 10.0
    silent_s: float = 60.0
    close_s: float = 30.0

    @classmethod
    def all(cls, limit_s: float, *, suspect_s: float, silent_s: float) -> Deadlines:
        """The same deadline for everything but silence."""
        return cls(limit_s, limit_s, limit_s, limit_s, limit_s, suspect_s, silent_s, limit_s)


@dataclass(frozen=True, slots=True)
class Deployment:
    """All roles of a run.

    Args:
        name: names the run's relays; unique on the machine.
        token: shared secret of the run's peers.
        roles: how each role is started, by its name.
        trainer_ranks: processes of the trainer.
        rendezvous: directory where the trainer's ranks find each other; used with more than one.
        adopting: arguments of `adopt`, by role, for members that stay up from a run before.
    """

    name: str
    token: str
    roles: dict[str, RoleSpec]
    trainer_ranks: int = 1
    rendezvous: Path | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    adopting: dict[str, dict[str, Any]] = field(default_factory=dict)

    def role(self, host: Host, role: str, id_: str, incarnation: int, rank: int = 0) -> RoleSpec:
        """How a member is started.

        Args:
            host: for callers of other members.
            rank: of a trainer's process.
        """
        spec = self.roles[role]
        own: dict[str, Any] = {}
        if role != DATA and role != RELAY:
            own["data"] = host.caller(DATA)
        if role == REPLICA:
            own |= {"replica": id_, "incarnation": incarnation, "token": self.token}
        elif role == RELAY:
            own |= {"name": f"{self.name}-{id_}", "token": self.token}
        elif role == TRAINER:
            several = self.rendezvous is not None and self.trainer_ranks > 1
            rendezvous = f"file://{self.rendezvous}/{incarnation}" if several else None
            own |= {"rank": rank, "world_size": self.trainer_ranks, "rendezvous": rendezvous, "token": self.token}
        return dataclasses.replace(spec, arguments={**spec.arguments, **own})
