"""Asks the detection policy who counts as down, and tells recovery.

Silent, Activity, Snapshot ... ──► what was heard of each member, and when ──Signs──► policy ──Suspected──► Failures

looks at    a tick: every `look_s` of the policy, and at each while a member is silent or says that it stands still
            an `Activity` that says so
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.members import LEAVING, REPLICA, TRAINER, MemberState, down
from tailrace.controller.plugin_faults import answered, listed
from tailrace.controller.recovery.failures import Failures
from tailrace.controller.state import State

_TEXTS = {
    c.Why.STILL: "stood still for {still_s:.0f} s with work in flight",
    c.Why.SILENT: "silent for {silent_s:.0f} s",
    c.Why.MACHINE_SILENT: "nobody on its machine has answered for {silent_s:.0f} s",
}
_SILENCES = (c.Why.SILENT, c.Why.MACHINE_SILENT)
_TRAINING = ("", "training")


class Detection:
    """Keeps what was last heard of each member, and asks the detection policy who counts as down."""

    def __init__(self, state: State, failures: Failures) -> None:
        self._state, self._failures, self._policy = state, failures, state.spec.detection
        self._members, self._fleet, self._trainer = state.members, state.fleet, state.trainer
        self._next_s = 0.0
        self._making: int | None = None  # what the trainer worked on at the last look

    def heard(self, event: c.Activity) -> None:
        """Take in what a member says of itself, and look at once if it stands still."""
        self._members.says(event, self._state.now)
        if event.still_s > 0:
            self._look()

    def silent(self, event: c.Silent) -> None:
        """Take in that a member does not answer, or answers again."""
        self._members.silent(event, self._state.now)

    def attached(self, event: c.Attached) -> None:
        """Take in that no controller was there for a while. Who is silent now is told anew."""
        self._members.unheard(event.away_s)
        for replica in self._fleet.replicas.values():
            replica.moved_s += event.away_s

    def trained(self) -> None:
        """Take in that the trainer has ended a part of a batch: micro-batches ended, and it may be given the next at once."""
        trainer = self._members.get(TRAINER)
        if trainer is not None:
            trainer.moved_s = self._state.now

    def tick(self) -> None:
        """Look, if it is time."""
        now = self._state.now
        if now >= self._next_s or self._members.alarming:
            self._next_s = now + self._policy.look_s
            self._look()

    def _look(self) -> None:
        policy, signs = self._policy, self._signs()
        for suspected in listed("detection", policy, "suspects", policy.suspects(signs), c.Suspected):
            member = self._members.get(suspected.role, suspected.id)
            if member is None:
                raise answered("detection", policy, "suspects", suspected, "a member whose signs were given")
            if self._works(member):
                self._failures.went_down(_down(member, suspected.reason), suspected.reason)

    def _signs(self) -> list[c.Signs]:
        now = self._state.now
        before, self._making = self._making, self._trainer.making
        found = []
        for member in self._members.states.values():
            if not self._works(member):
                continue
            silent_s = 0.0 if member.heard_s is None else now - member.heard_s
            if member.role == REPLICA:
                found.append(self._replica(member, silent_s, now))
            elif member.role == TRAINER:
                if before != self._making:  # it ended that since, or was given this
                    member.moved_s = now
                idle = self._making is None and member.phase in _TRAINING
                phase = "idle" if idle else member.phase or "training"
                found.append(self._plain(member, phase, silent_s, now - member.moved_s))
            else:
                found.append(self._plain(member, "", silent_s, 0.0))  # what a relay says there is no phase
        return found

    def _works(self, member: MemberState) -> bool:
        """Whether a member is up, or is a replica that is being emptied: what it holds is waited for."""
        if member.health in LEAVING:
            return bool(self._fleet.replicas[member.id].assigned)
        return member.health is c.Health.UP

    def _replica(self, member: MemberState, silent_s: float, now: float) -> c.Signs:
        replica = self._fleet.replicas[member.id]
        work = len(replica.assigned)
        phase = member.phase if member.still_s else "generating" if work else "idle"
        if replica.pulling is not None and replica.pull_waits is None:
            phase = "pulling"
        return c.Signs(
            member.role,
            member.id,
            member.machine,
            phase,
            work,
            len(replica.away),
            silent_s,
            member.still_s,
            member.slowest_s,
            now - max(member.moved_s, replica.moved_s),
        )

    @staticmethod
    def _plain(member: MemberState, phase: str, silent_s: float, quiet_s: float) -> c.Signs:
        return c.Signs(
            member.role,
            member.id,
            member.machine,
            phase,
            silent_s=silent_s,
            still_s=member.still_s,
            slowest_s=member.slowest_s,
            quiet_s=quiet_s,
        )


def _down(member: MemberState, reason: c.Reason) -> c.Down:
    """What the executor would report if it had found the member down itself."""
    text = _TEXTS.get(reason.why, "suspected by the detection policy").format_map(reason.numbers)
    return down(member, text, c.Cause.SILENT if reason.why in _SILENCES else c.Cause.STILL)
