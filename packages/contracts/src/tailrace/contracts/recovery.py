"""What recovery and provisioning see and answer: members, machines, failures, and what to do about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.contracts.events import Cause
from tailrace.contracts.reasons import Reason, Why
from tailrace.contracts.record import record
from tailrace.contracts.views import Progress


class Health(StrEnum):
    """Whether a member can be given work."""

    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    DOWN = "down"


@record
class MemberView:
    """A member of a role, as policies see it.

    Args:
        machine: where it stands, empty while unknown.
        phase: what it last said that it is at (`Activity`); empty for nothing.
        still_s: seconds for which it has stood still with work in flight.
        slowest_s: seconds of its slowest step in this phase so far.
        in_flight: trajectories that it holds, for replicas.
    """

    role: str
    id: str
    health: Health
    machine: str = ""
    phase: str = ""
    still_s: float = 0.0
    slowest_s: float = 0.0
    in_flight: int = 0


@record
class MachineView:
    """A machine on which members stand.

    Args:
        site: its datacenter, empty where there is only one.
        device: kind of its devices, empty if unknown.
        healthy: it was not given up.
    """

    id: str
    site: str = ""
    device: str = ""
    healthy: bool = True


@record
class FleetView:
    """Who stands where, and how the run goes.

    Args:
        machines: those on which a member was ever seen, by id.
        members: all members that are not gone, in the order in which they were first started.
        now_s: seconds on the run's clock.
        training_s: mean seconds of the last training steps, 0 before the first.
        step_s: mean seconds between the ends of the last training steps, 0 before the second.
    """

    machines: Mapping[str, MachineView]
    members: Sequence[MemberView]
    progress: Progress
    now_s: float = 0.0
    training_s: float = 0.0
    step_s: float = 0.0

    def of(self, role: str) -> list[MemberView]:
        """The members of a role."""
        return [member for member in self.members if member.role == role]


@record
class Failure:
    """A member went down.

    Args:
        phase: what it last said that it was at; empty for nothing.
        step: batches trained on so far.
        failures: how often this member failed in the policy's window without work of it in between, this time included.
        role_failures: failures of all members of its role in the window, this one included.
        machine_failures: failures of all members on its machine in the window, this one included; 0 if that is unknown.
        first_iteration: no batch has been trained on yet.
        starting: it failed while it started, so a restart of it failed.
        others: members of the role that are not down.
        reason: one line for a person.
    """

    role: str
    member: str
    cause: Cause
    reason: str = ""
    machine: str = ""
    phase: str = ""
    step: int = 0
    failures: int = 1
    role_failures: int = 1
    machine_failures: int = 0
    first_iteration: bool = False
    starting: bool = False
    others: int = 0


class RecoveryAction(StrEnum):
    """What becomes of a member that is down.

    RESTART: a fresh one takes its place.
    REPLACE: the same, on another machine if there is one.
    EVICT: it stays away, and others do its work.
    EVICT_MACHINE: its machine is given up with all members there; each is replaced elsewhere.
    FAIL: the run ends.
    """

    RESTART = "restart"
    REPLACE = "replace"
    EVICT = "evict"
    EVICT_MACHINE = "evict-machine"
    FAIL = "fail"


@record
class Suspected:
    """A member that lives is taken for down: it is ended, and `on_down` says what becomes of it."""

    role: str
    id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class StartReplica:
    """One more replica."""

    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))


@dataclass(frozen=True, slots=True)
class StopReplica:
    """One replica less: what runs there goes back to the pool with its tokens."""

    replica: str
    reason: Reason = field(default_factory=lambda: Reason(Why.PLANNED))
