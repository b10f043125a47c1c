"""What provisioning sees of rounds and of iterations (one training step each), and the lengths of responses.

    an instant ──► who has worked since the last one? ──► seconds of each replica, and of the trainer
    Stepped    ──► one record, and the next iteration begins

The first iteration of a run is none: members start in it. Nor is the one in which the driver died.
"""

from __future__ import annotations

from collections import deque

from tailrace import contracts as c
from tailrace.controller.rounds import Rounds
from tailrace.controller.state import State

_RECORDS, _LENGTHS = 64, 4_096


class RoundHistory:
    """Watches rounds for a provisioning policy that asks for it (`round_milestones`); otherwise it does nothing."""

    def __init__(self, state: State, rounds: Rounds) -> None:
        self._milestones = state.spec.provisioning.round_milestones()
        self._state, self._rounds, self._fleet = state, rounds, state.fleet
        self.records: deque[c.RoundRecord] = deque(maxlen=_RECORDS)
        self.lengths: deque[int] = deque(maxlen=_LENGTHS)
        self.open: c.RoundView | None = None
        self._began_s = 0.0
        self._preempted = 0  # as the round began
        self._passed = 0  # milestones of the open round

    @property
    def used(self) -> bool:
        """Whether the policy asks for it."""
        return self._milestones is not None

    @property
    def open_s(self) -> float:
        """Seconds since the open round began; 0 without one."""
        return 0.0 if self.open is None else self._state.now - self._began_s

    def finished(self, tokens: int) -> None:
        """Note the length of a response."""
        if self._milestones is not None:
            self.lengths.append(tokens)

    def look(self) -> bool:
        """Look at the open round. Returns whether the policy must be asked: a round began or ended, or passed a milestone."""
        if self._milestones is None or not self._rounds.used:
            return False
        before, self.open, now = self.open, self._rounds.view(), self._state.now
        if _number(before) != _number(self.open):
            if before is not None:
                tp = max([replica.member.tp for replica in self._fleet.up()], default=1)
                preempted = self._preemptions() - self._preempted
                lasted_s = now - self._began_s
                self.records.append(c.RoundRecord(before.number, before.kind, before.size, tp, preempted, lasted_s))
            self._began_s, self._preempted, self._passed = now, self._preemptions(), 0
            return True
        if self.open is None:
            return False
        share = self.open.generated / max(1, self.open.samples)
        passed = sum(share >= milestone for milestone in self._milestones)
        new, self._passed = passed > self._passed, max(self._passed, passed)
        return new

    def _preemptions(self) -> int:
        return sum(replica.preempted for replica in self._fleet.replicas.values())


def _number(view: c.RoundView | None) -> int:
    return -1 if view is None else view.number


class Iterations:
    """Watches iterations for a provisioning policy that asks for it (`watched_iterations`); otherwise it does nothing."""

    def __init__(self, state: State) -> None:
        watched = state.spec.provisioning.watched_iterations()
        self.used = watched > 0
        self.records: deque[c.IterationRecord] = deque(maxlen=watched)
        self.lengths: deque[int] = deque(maxlen=_LENGTHS if self.used else 0)
        self._state, self._fleet, self._trainer = state, state.fleet, state.trainer
        self._looked_s = 0.0
        self._began_s: float | None = None
        self._busy_s: dict[str, float] = {}
        self._training_s, self._finished = 0.0, 0
        self._served: tuple[str, ...] = ()
        self._same = True

    def passed(self) -> None:
        """Note who has worked since the last instant. Call it before the events of this one are taken in."""
        if not self.used:
            return
        now = self._state.now
        since, self._looked_s = now - self._looked_s, now
        if self._began_s is None:
            return
        for replica in self._fleet.replicas.values():
            if len(replica.assigned) + len(replica.away) > replica.evaluating:
                self._busy_s[replica.id] = self._busy_s.get(replica.id, 0.0) + since
        if self._trainer.making is not None:
            self._training_s += since
        self._same = self._same and self._trainer.up and self._serving() == self._served

    def finished(self, tokens: int) -> None:
        """Note the length of a response."""
        if self.used:
            self.lengths.append(tokens)
            self._finished += 1

    def stepped(self) -> None:
        """Note that the trainer has made its version."""
        if not self.used:
            return
        now = self._state.now
        if self._began_s is not None:
            replicas = len(self._served) if self._same else 0
            busiest_s = max(self._busy_s.values(), default=0.0)
            seconds = now - self._began_s
            self.records.append(
                c.IterationRecord(self._trainer.version, seconds, busiest_s, self._training_s, replicas, self._finished)
            )
        self._forget()
        self._began_s, self._served = now, self._serving()

    def restarted(self) -> None:
        """Forget the iteration in which the driver died: its seconds say nothing."""
        self._forget()

    def _forget(self) -> None:
        self._began_s, self._busy_s, self._training_s, self._finished = None, {}, 0.0, 0
        self._served, self._same = (), True

    def _serving(self) -> tuple[str, ...]:
        """Replicas that are up and have pulled a version, so that they share in the work."""
        return tuple([replica.id for replica in self._fleet.up() if replica.version is not None])
