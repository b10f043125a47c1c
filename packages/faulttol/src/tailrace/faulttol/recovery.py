"""Axis recovery: who is suspected, and what restarts when a member of a role fails. Entry-point group ``tailrace.recovery``.

Roles: ``replica``, ``relay``, ``scorer``, ``trainer``, ``data``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tailrace.contracts import Failure, FleetView, Health, Reason, RecoveryAction, Suspected, Why
from tailrace.faulttol.errors import RecoveryError

ROLES = ("replica", "relay", "scorer", "trainer", "data")
_REPLACEABLE = ("replica", "relay", "scorer")


@dataclass(frozen=True, slots=True)
class Isolate:
    """Contain a failure in its role (Laminar, sections 3.3 and 4.3). Plugin ``isolate``.

    Rollouts, relays and the trainer fail alone: the others go on meanwhile. A replica, relay or scorer is restarted in its
    place, and, if it keeps failing without work in between, evicted: others do its work. The trainer is restarted from its
    last durable checkpoint, the data role over its store. What cannot be replaced fails the run, as does a role that is not
    known.

    A replica whose engine stands still inside its living process is suspected, which heartbeats alone would not notice.

    Args:
        max_restarts: restarts of a replica, relay or scorer without work of it in between, before it is evicted, or fails
            the run where it is the last of its role. The paper tries one.
        trainer_restarts: the same for the trainer, before the run fails.
        data_restarts: the same for the data role.
        window_s: failures that are longer ago do not count any more.
        still_factor: a replica is suspected when its engine has stood still for longer than this many of its slowest steps,
        still_s: and for longer than so many seconds, however quick its steps are.
        machine_failures: failures on one machine in the window with which it is given up, 0 for never. A member that has no
            restart left does not take its machine along: then the fault is in the member.

    Raises:
        RecoveryError: a limit makes no sense.
    """

    max_restarts: int = 3
    trainer_restarts: int = 3
    data_restarts: int = 3
    window_s: float = 600.0
    still_factor: float = 20.0
    still_s: float = 30.0
    machine_failures: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            seconds = field.name in ("window_s", "still_s")
            if not math.isfinite(value) or value < 0 or (seconds and value == 0):
                expected = "a number of seconds above 0" if seconds else "a number of at least 0"
                raise RecoveryError(f"found {field.name}={value}, expected {expected}")

    def on_down(self, failure: Failure) -> RecoveryAction:
        """Restart the member while it has restarts left; then others do its work, if there are others."""
        limit = self._restarts(failure.role)
        if failure.failures > limit:
            others_can = failure.role in _REPLACEABLE and failure.others > 0
            return RecoveryAction.EVICT if others_can else RecoveryAction.FAIL
        if failure.machine and 0 < self.machine_failures <= failure.machine_failures:
            return RecoveryAction.EVICT_MACHINE
        return RecoveryAction.RESTART

    def suspects(self, view: FleetView) -> Sequence[Suspected]:
        """Replicas whose engines have stood still with work in flight for too long.

        Loading weights has a deadline of its own, and waiting for an environment is not standing still.
        """
        return _standing_still(view, self.still_factor, self.still_s)

    def _restarts(self, role: str) -> int:
        if role in _REPLACEABLE:
            return self.max_restarts
        return {"trainer": self.trainer_restarts, "data": self.data_restarts}.get(role, 0)


@dataclass(frozen=True, slots=True)
class RestartTask:
    """Any failure fails the run, which somebody then restarts as a whole. Plugin ``restart-task``.

    The usual baseline, which Laminar (section 3.3) and RobustRL compare with.

    Args:
        window_s: failures that are longer ago do not count any more, which makes no difference here.
        still_factor, still_s: see `Isolate`.
    """

    window_s: float = 600.0
    still_factor: float = 20.0
    still_s: float = 30.0

    def on_down(self, failure: Failure) -> RecoveryAction:  # noqa: ARG002 - the protocol's argument
        """Fail."""
        return RecoveryAction.FAIL

    def suspects(self, view: FleetView) -> Sequence[Suspected]:
        """As `Isolate`: a run that waits for an engine that stands still would never end."""
        return _standing_still(view, self.still_factor, self.still_s)


def _standing_still(view: FleetView, factor: float, least_s: float) -> list[Suspected]:
    suspected = []
    for replica in view.of("replica"):
        limit_s = max(least_s, factor * replica.slowest_s)
        if replica.health is Health.UP and replica.phase == "generating" and replica.still_s > limit_s:
            reason = Reason(Why.STILL, numbers={"still_s": replica.still_s, "limit_s": limit_s})
            suspected.append(Suspected("replica", replica.id, reason))
    return suspected
