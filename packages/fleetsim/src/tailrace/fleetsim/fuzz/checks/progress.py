"""Invariant 7: nothing waits without a deadline. Work that exists moves on, and a run that gives up says why, truly."""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.fleetsim.errors import InvariantError
from tailrace.fleetsim.fuzz.case import Case
from tailrace.pipeline.controller.controller import REPLICA, Controller

PROGRESS = "nothing waits for ever"

_QUIET = (c.Tick, c.Snapshot, c.Interrupted, c.Suspect)  # these come by themselves, or go round in circles
MOST_INSTANTS = 30_000


class Progress:
    """When something last happened.

    Args:
        case: says how long anything may take.
    """

    def __init__(self, case: Case) -> None:
        self._case, self._patience_s = case, case.patience_s
        self._last_s = 0.0
        self._instants = 0
        self._downs: set[str] = set()
        self._torn: dict[str, int] = {}
        self._broken = 0

    def seen(self, event: c.Event, now: float) -> None:
        """An event was handled."""
        if not isinstance(event, _QUIET):
            self._last_s = now
            if isinstance(event, c.Down):
                self._downs.add(event.role)
            elif isinstance(event, c.PullFailed):
                self._torn[event.replica] = self._torn.get(event.replica, 0) + 1
            elif isinstance(event, c.ScoringFailed):
                self._broken += 1

    def check(self, now: float, controller: Controller) -> None:
        """Whether it is too long ago that something happened."""
        self._instants += 1
        if now - self._last_s > self._patience_s:
            raise InvariantError(
                PROGRESS,
                f"nothing has happened for {now - self._last_s:.0f} s, expected something within "
                f"{self._patience_s:.0f} s: {_waits(controller)}",
            )
        if self._instants > MOST_INSTANTS:
            raise InvariantError(
                PROGRESS, f"no end after {self._instants} instants and {now:.0f} s: {_waits(controller)}"
            )

    def gave_up(self, reason: str) -> None:
        """A run that fails has a reason: what it says has happened."""
        case, options = self._case, self._case.pipeline.recovery.options
        if "is down" in reason or "replica is down" in reason:
            limited = case.pipeline.recovery.name == "restart-task" or min(options.values(), default=0) < 100
            holds = bool(self._downs) and limited
        elif "could not be scored" in reason:
            holds = self._broken >= case.failed_groups_limit * case.scoring_attempts
        else:
            holds = "failed three times to pull" in reason and max(self._torn.values(), default=0) >= 3
        if not holds:
            raise InvariantError(PROGRESS, f"the run gave up without a reason that holds: {reason}")


def _waits(controller: Controller) -> str:
    learner, ledger = controller.learner, controller.ledger
    replicas = ", ".join(
        f"{replica.id} {replica.health}, version {replica.version}"
        f"{'' if replica.pulling is None else f', pulling {replica.pulling}'}, {len(replica.assigned)} in flight"
        for replica in controller.fleet.replicas.values()
    )
    trainer = "down" if not learner.up else "idle" if learner.idle else f"making version {learner.stepping}"
    return (
        f"trainer {trainer} at version {learner.version}, step {learner.step} of {controller.spec.steps}, published "
        f"{learner.published}, durable {learner.durable}; {ledger.pooled} trajectories wait for a replica, "
        f"{ledger.generating} groups generate, {len(ledger.buffered)} are complete; {len(controller.evaluations.due)} "
        f"evaluations due, {len(controller.evaluations.running)} running; {REPLICA}s: {replicas}"
    )
