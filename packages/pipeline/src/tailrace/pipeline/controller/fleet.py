"""The fleet: one owner for what is known of every replica.

STARTING ──Up──► UP ──Down──► DOWN ──Restart──► STARTING
                                └──Evict──► gone
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts import ReplicaView, Snapshot


class Health(StrEnum):
    """Whether a replica can be given work."""

    STARTING = "starting"
    UP = "up"
    DOWN = "down"


@dataclass(slots=True)
class ReplicaState:
    """One replica. `assigned` holds what was routed and has not come back, `incoming` what is on its way by a move."""

    id: str
    capacity: int
    health: Health = Health.STARTING
    version: int | None = None
    pulling: int | None = None
    assigned: dict[str, None] = field(default_factory=dict)
    incoming: int = 0
    kv: float = 0.0
    kv_before: float = 0.0
    kv_peak: float = 0.0
    waiting: int = 0
    last_route: int = 0
    fresh: bool = False
    moving_out: bool = False
    failures: int = 0
    failed_pulls: int = 0

    @property
    def in_flight(self) -> int:
        """Trajectories that it holds or is about to receive."""
        return len(self.assigned) + self.incoming

    @property
    def serves(self) -> bool:
        """Whether trajectories may be routed to it now."""
        return self.health is Health.UP and self.version is not None and self.pulling is None and not self.moving_out

    def view(self) -> ReplicaView:
        """What a policy sees of it."""
        return ReplicaView(
            replica=self.id,
            version=self.version,
            pulling=self.pulling is not None,
            in_flight=self.in_flight,
            capacity=self.capacity,
            kv=self.kv,
            kv_before=self.kv_before,
            kv_peak=self.kv_peak,
            waiting=self.waiting,
            fresh=self.fresh,
        )

    def reset(self) -> None:
        """Forget everything that died with the process."""
        self.version, self.pulling, self.moving_out = None, None, False
        self.assigned.clear()
        self.incoming = 0
        self.kv = self.kv_before = self.kv_peak = 0.0
        self.waiting, self.fresh = 0, False


@dataclass(slots=True)
class Fleet:
    """All replicas, in the order in which they were first started."""

    replicas: dict[str, ReplicaState] = field(default_factory=dict)

    def add(self, replica: str, capacity: int) -> ReplicaState:
        """A new replica that is starting."""
        state = ReplicaState(replica, capacity)
        self.replicas[replica] = state
        return state

    def up(self) -> list[ReplicaState]:
        """Replicas that are up."""
        return [replica for replica in self.replicas.values() if replica.health is Health.UP]

    def serving(self, version: int) -> list[ReplicaState]:
        """Replicas that take trajectories of a version now."""
        return [replica for replica in self.replicas.values() if replica.serves and replica.version == version]

    def routed(self, replica: ReplicaState, trajectories: list[str], seq: int) -> None:
        """Work was given to a replica: its KV-cache curve starts anew (LAM-2: clears the ramp-down latch)."""
        for name in trajectories:
            replica.assigned[name] = None
        replica.last_route, replica.fresh, replica.kv_peak = seq, False, replica.kv

    def observed(self, snapshot: Snapshot) -> None:
        """A snapshot arrived."""
        replica = self.replicas.get(snapshot.replica)
        if replica is None or replica.health is not Health.UP:
            return
        replica.kv, replica.waiting = snapshot.kv, snapshot.waiting
        replica.kv_peak = max(replica.kv_peak, snapshot.kv)
        replica.fresh = replica.fresh or snapshot.last_seq >= replica.last_route

    def sampled(self) -> None:
        """Remember the KV usage of this periodic check as the previous one (LAM-5)."""
        for replica in self.replicas.values():
            replica.kv_before = replica.kv
