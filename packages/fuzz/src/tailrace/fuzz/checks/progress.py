"""Invariant 7: nothing waits without a deadline. Work that exists moves on, and a run that gives up says why, truly."""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.controller.weights import PULL_ATTEMPTS
from tailrace.faulttol import ClusterLevel, RankLevel
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fuzz.case import Case
from tailrace.fuzz.errors import InvariantError
from tailrace.fuzz.faults import BreakKind
from tailrace.fuzz.policies import ends_run
from tailrace.runtime.executor.deployment import REPLICA, TRAINER

PROGRESS = "nothing waits for ever"

# these come by themselves, or go round in circles
_QUIET = (c.Tick, c.Snapshot, c.Interrupted, c.Silent, c.Struck, c.Activity, c.Predicted, c.PredictionFailed)
MOST_INSTANTS = 30_000
COMPUTING = {TRAINER, REPLICA}


class LivenessCheck:
    """When something last happened.

    Args:
        case: says how long anything may take.
        fleet: what it runs on.
    """

    def __init__(self, case: Case, fleet: SimulatedFleet) -> None:
        self._case, self._patience_s = case, case.patience_s(fleet.samples)
        self._recovery = fleet.spec.recovery
        self._last_s = 0.0
        self._instants = 0
        self._downs: set[str] = set()
        self._failures = 0  # of all members
        self._first = True  # no batch was trained on since the task began
        self._blames_all = isinstance(fleet.spec.detection, ClusterLevel | RankLevel)
        self._torn: dict[str, int] = {}
        self._differed: dict[str, int] = {}
        self._broken = 0
        self._unanswered = 0

    def seen(self, event: c.Event, now: float) -> None:
        """An event was handled."""
        if isinstance(event, c.Silent) or (isinstance(event, c.Activity) and event.still_s > 0):
            self._downs.add(event.role)
        if not isinstance(event, _QUIET):
            self._last_s = now
            if isinstance(event, c.Down):
                self._downs.add(event.role)
                self._failures += event.cause is not c.Cause.STOPPED
            elif isinstance(event, c.PullFailed) and event.differs:
                self._downs.add(REPLICA)
                self._differed[event.replica] = self._differed.get(event.replica, 0) + 1
            elif isinstance(event, c.PullFailed):
                self._torn[event.replica] = self._torn.get(event.replica, 0) + 1
            elif isinstance(event, c.Pulled):
                self._differed.pop(event.replica, None)
            elif isinstance(event, c.Stepped):
                self._first = False
            elif isinstance(event, c.ScoringFailed):
                self._broken += 1
            elif isinstance(event, c.CallFailed):
                self._unanswered += not event.lost

    def replaced(self, command: c.Restart | c.Stop) -> None:
        """A member is replaced: because it counts as down although no `Down` says so, or since the whole task begins anew."""
        self._failures += command.reason.why in c.SUSPICIONS
        self._first |= command.reason.why is c.Why.TASK_RESTART

    def check(self, now: float, run: RunView) -> None:
        """Whether it is too long ago that something happened."""
        self._instants += 1
        if now - self._last_s > self._patience_s:
            raise InvariantError(
                PROGRESS,
                f"nothing has happened for {now - self._last_s:.0f} s, expected something within "
                f"{self._patience_s:.0f} s: {_waits(run)}",
            )
        if self._instants > MOST_INSTANTS * (3 if self._case.unscored else 1):
            raise InvariantError(PROGRESS, f"no end after {self._instants} instants and {now:.0f} s: {_waits(run)}")

    def gave_up(self, reason: str) -> None:
        """A run that fails has a reason: what it says has happened."""
        case = self._case
        if "is not restarted" in reason:
            down = set(self._downs)
            if self._blames_all and not down.isdisjoint(COMPUTING):  # who stands still takes the others along
                down |= COMPUTING
            if (
                self._blames_all and case.unscored
            ):  # all wait for a score until the scorer's deadline, which may be longer
                down |= COMPUTING
            if "on its devices, is down" in reason and REPLICA in down:  # the trainer's part goes with it, unheard
                down |= COMPUTING
            if case.hurries and ("stood still for" in reason or "deadlines.step_s" in reason):
                down |= COMPUTING
            most = self._failures + 1  # the last one may be a suspicion, behind which nobody is replaced
            holds = any(ends_run(self._recovery, role, failures=most, others=0, first=self._first) for role in down)
        elif "could not be scored" in reason:
            holds = self._broken >= case.failed_groups_limit * case.scoring_attempts
        elif "engines refused" in reason:
            holds = case.refusals > 0
        elif "environments did not answer" in reason:
            holds = self._unanswered >= case.failed_groups_limit
        elif "other weights than were published, after a restart too" in reason:
            holds = max(self._differed.values(), default=0) > 1
        elif "times to pull version" in reason:
            holds = max(self._torn.values(), default=0) > PULL_ATTEMPTS
        else:
            holds = "checkpoint" in reason and any(fault.kind is BreakKind.DAMAGED_CHECKPOINT for fault in case.faults)
        if not holds:
            raise InvariantError(PROGRESS, f"the run gave up without a reason that holds: {reason}")


def _waits(run: RunView) -> str:
    replicas = ", ".join(
        f"{replica.id} {replica.doing}, version {replica.version}, {replica.trajectories} in flight"
        for replica in run.replicas()
    )
    trainer = "down" if not run.trainer_up else "idle" if run.making is None else f"making version {run.making}"
    return (
        f"trainer {trainer} at version {run.version}, step {run.step} of {run.steps}, published {run.published}, durable "
        f"{run.durable}; {run.pooled} trajectories wait for a replica, {run.generating} groups generate, {run.buffered} are "
        f"complete; {run.evaluations_open} evaluations open; not up: {run.members_down()}; replicas: {replicas}"
    )
