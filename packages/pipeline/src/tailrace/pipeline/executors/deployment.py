"""What an executor starts for each role: a factory, its arguments and its placement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.pipeline.executors.host import Caller, Placement
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.relay import RelayRole
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.roles.scorer import ScorerRole
from tailrace.pipeline.roles.trainer import TrainerRole


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long the executor waits, in seconds. What it waits for is in the run's status.

    Args:
        start_s: for a role to come up, a model to load included.
        step_s: for one training step.
        publish_s: for the trainer's local copy of its weights.
        score_s: for one batch of verifications.
        suspect_s, silent_s: silence after which a member is suspected, and then taken for dead.
        close_s: for a role to tidy up.
    """

    start_s: float = 600.0
    step_s: float = 1800.0
    publish_s: float = 600.0
    score_s: float = 300.0
    suspect_s: float = 10.0
    silent_s: float = 60.0
    close_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How one role is started."""

    factory: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    placement: Placement = field(default_factory=Placement)


@dataclass(frozen=True, slots=True)
class Deployment:
    """All roles of a run.

    Args:
        token: shared secret of the run's peers.
        name: names the run's relays; unique on the machine.
        trainer_ranks: processes of the trainer.
        rendezvous: directory where the trainer's ranks find each other; used with more than one.
    """

    name: str
    token: str
    data: RoleSpec
    scorer: RoleSpec
    trainer: RoleSpec
    replica: RoleSpec
    relays: int = 1
    relay_host: str = "127.0.0.1"
    relay_factory: Callable[..., Any] = RelayRole
    trainer_ranks: int = 1
    rendezvous: Path | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)

    def data_role(self) -> RoleSpec:
        """The data role."""
        return self.data

    def scorer_role(self, data: Caller) -> RoleSpec:
        """The scorer."""
        return RoleSpec(self.scorer.factory, {**self.scorer.arguments, "data": data}, self.scorer.placement)

    def relay_role(self, node: str) -> RoleSpec:
        """The relay of a node."""
        arguments = {"name": f"{self.name}-{node}", "token": self.token, "host": self.relay_host}
        return RoleSpec(self.relay_factory, arguments, Placement(node=int(node)))

    def trainer_role(self, data: Caller, rank: int, incarnation: int) -> RoleSpec:
        """One rank of the trainer."""
        rendezvous = f"file://{self.rendezvous}/{incarnation}" if self.rendezvous and self.trainer_ranks > 1 else None
        ranks = {"rank": rank, "world_size": self.trainer_ranks, "rendezvous": rendezvous}
        arguments = {**self.trainer.arguments, **ranks, "data": data, "token": self.token}
        return RoleSpec(self.trainer.factory, arguments, self.trainer.placement)

    def replica_role(self, data: Caller, replica: str, incarnation: int) -> RoleSpec:
        """A replica."""
        own = {"replica": replica, "incarnation": incarnation, "data": data, "token": self.token}
        return RoleSpec(self.replica.factory, {**self.replica.arguments, **own}, self.replica.placement)


DEFAULT_FACTORIES = {
    "data": DataRole,
    "scorer": ScorerRole,
    "trainer": TrainerRole,
    "replica": ReplicaRole,
    "relay": RelayRole,
}
