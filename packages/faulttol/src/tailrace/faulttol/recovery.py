"""Axis recovery: what restarts when a member of a role fails. Entry-point group ``tailrace.recovery``.

Roles: ``replica``, ``relay``, ``scorer``, ``trainer``, ``data``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tailrace.contracts import RecoveryAction
from tailrace.faulttol.errors import RecoveryError

ROLES = ("replica", "relay", "scorer", "trainer", "data")
_REPLACEABLE = ("replica", "relay", "scorer")


@dataclass(frozen=True, slots=True)
class Isolate:
    """Contain a failure in its role (Laminar section 3.3). Plugin ``isolate``.

    A replica, relay or scorer is restarted in its place and, if it keeps failing, evicted: others do its work. The trainer
    is restarted from its last durable checkpoint. What cannot be replaced fails the run, as does a role that is not known.

    Args:
        max_restarts: restarts in a row of a replica, relay or scorer, before it is evicted. The paper tries one.
        trainer_restarts: restarts in a row of the trainer, before the run fails.
        data_restarts: the same for the data role; only a store on disk survives a restart.

    Raises:
        RecoveryError: a limit is negative.
    """

    max_restarts: int = 3
    trainer_restarts: int = 3
    data_restarts: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 0:
                raise RecoveryError(f"found {field.name}={getattr(self, field.name)}, expected at least 0")

    def on_down(self, role: str, member: str, failures: int) -> RecoveryAction:  # noqa: ARG002 - the protocol's arguments
        """What to do with a member that went down for the `failures`-th time in a row, counted from 1."""
        if role in _REPLACEABLE:
            return RecoveryAction.RESTART if failures <= self.max_restarts else RecoveryAction.EVICT
        limit = {"trainer": self.trainer_restarts, "data": self.data_restarts}.get(role, 0)
        return RecoveryAction.RESTART if failures <= limit else RecoveryAction.FAIL


@dataclass(frozen=True, slots=True)
class RestartTask:
    """Any failure fails the run, which somebody then restarts as a whole: the usual baseline. Plugin ``restart-task``."""

    def on_down(self, role: str, member: str, failures: int) -> RecoveryAction:  # noqa: ARG002 - the protocol's arguments
        """Fail."""
        return RecoveryAction.FAIL
