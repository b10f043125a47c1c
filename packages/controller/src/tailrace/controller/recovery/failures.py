"""Failures: carries out what the recovery policy decides about members that go down.

Failures are counted per member since it last did its work. So a member that works in between is restarted again and again; one
that fails again before it achieved anything has the same failure, whatever time lies between. Steps that the trainer makes
again after a fall-back are nothing achieved: it fails in the same step until that one is done. On another machine, which a
policy gives it because its fault persists, a member begins to count anew.

A replica whose devices are the trainer's too begins anew once the cells there have left them: the cells may hold most of the
memory, and it has none to give back. Its old process may live until then if it hangs, and nothing is heard of it any more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tailrace import contracts as c
from tailrace.controller.members import DATA, RANKER, REPLICA, TRAINER, MemberState, down
from tailrace.controller.plugin_faults import answered
from tailrace.controller.recovery.losses import lost
from tailrace.controller.recovery.standby import standbys
from tailrace.controller.state import State
from tailrace.controller.weight_sources import newer_weights
from tailrace.faulttol import Troubles

_ACTIONS = c.RecoveryAction


class Failures:
    """Carries out what the recovery policy answers."""

    def __init__(self, state: State) -> None:
        self._state, self._policy = state, state.spec.recovery
        self._members, self._trainer, self._outbox = state.members, state.trainer, state.outbox
        self.lent_machines = 0
        # set until the store reports what survived the driver's death, or a task's restart
        self.resumes_at: int | None = None
        self.troubles = Troubles()
        self.task_restarts = 0
        self.task: tuple[bool, MemberState, c.Reason] | None = None
        """A restart of the whole task that is due: whether it starts over, who caused it, and why."""
        self.given_up: list[dict[str, str]] = []
        """Members that are not restarted any more: role, id, machine and reason of each."""
        self._held: dict[str, tuple[MemberState, c.Reason, str]] = {}
        """Replicas to begin anew once their devices are free: why, and on which machine."""
        self._causes: list[str] = []  # of restarts of the task since a batch was last trained on
        self._took = False

    def took(self) -> tuple[type[c.Event], ...]:
        """The kinds of events that stand for the members which were taken for down since the last call."""
        took, self._took = self._took, False
        return (c.Down,) if took else ()

    def went_down(self, event: c.Down, reason: c.Reason | None = None) -> None:
        """Handle a member that is gone or counts as gone. An event for a member that is down already is ignored.

        So is one for a member that this instant starts anew, since another of its machine was missed first: it is of its old
        life, and would count against its new machine.

        Args:
            event: the event.
            reason: why it counts as gone, if it is a suspect.
        """
        self._took |= reason is not None
        member = self._members.get(event.role, event.id)
        if member is None or member.health is c.Health.DOWN or self._begins(member) or self._holds(member):
            return
        elsewhere = member.stands not in ("", event.machine) and event.machine in member.avoids
        if event.cause is c.Cause.MACHINE and elsewhere:
            return  # it starts there already, since another one was missed on that machine first
        if event.cause is c.Cause.STOPPED or member.health is c.Health.STOPPING:
            lost(self._state, member)
            if reason is None:  # else its process lives: with nothing left to do it is told to stop
                self._members.leaves(member)
            return
        if event.cause is c.Cause.CHECKPOINT and event.role == TRAINER:
            lost(self._state, member)
            self._use_older_checkpoint(member, event.reason)
            return
        machine, now = event.machine or member.machine, self._state.now
        homeless = event.role == TRAINER and event.cause is c.Cause.MACHINE and bool(machine)
        others = len(standbys(self._state, machine)) if homeless else 0
        failure = self._members.failure(
            member, event, now, self._policy.window_s, self._trainer.step, self.troubles, others
        )
        lost(self._state, member)
        member.health = c.Health.DOWN
        numbers = {"failures": float(failure.failures - failure.moved)}
        allowed = self._policy.allowed(event.role)
        if allowed is not None:
            numbers["allowed"] = allowed
        why, who, own = (c.Why.FAILED, "", {}) if reason is None else (reason.why, reason.who, reason.numbers)
        reason = c.Reason(why, who, {**own, **numbers})
        action = self._policy.on_down(failure)
        if action is _ACTIONS.RESTART_TRAINER and failure.hybrid:
            self._trainer_too(member, failure, reason)
            if self.task is not None:
                return  # all restart, it with them
            action = _ACTIONS.RESTART
        self._act(member, action, failure, reason, event.room)

    def pull_failed(self, event: c.PullFailed) -> None:
        """Restart a replica whose engine has other weights than were published; the second time in a row ends the run."""
        replica = self._state.fleet.replicas[event.replica]
        if replica.member.health in (c.Health.DOWN, c.Health.STARTING):
            return
        replica.pulling, replica.version = None, None
        if replica.differed:
            self._state.fail(
                f"replica {replica.id} has other weights than were published, after a restart too: {event.reason}"
            )
            return
        replica.differed = True
        reason = c.Reason(c.Why.DIFFERS, numbers={"version": float(event.version)})
        self.went_down(down(replica.member, event.reason, c.Cause.WEIGHTS), reason)

    def _begins(self, member: MemberState) -> bool:
        """Whether this instant starts a member anew."""
        return any(
            isinstance(command, c.Restart) and (command.role, command.id) == (member.role, member.id)
            for command in self._outbox.commands
        )

    def _holds(self, member: MemberState) -> bool:
        """Whether a replica waits for its devices before it begins anew."""
        return member.role == REPLICA and member.id in self._held

    @property
    def held(self) -> Mapping[str, c.Reason]:
        """Replicas that wait for their devices before they begin anew, and why each is restarted."""
        return {name: reason for name, (_, reason, _) in self._held.items()}

    def go_on(self) -> None:
        """Begin replicas anew whose devices the trainer's cells have left since, or which nobody awaits any more."""
        for name, (member, reason, machine) in list(self._held.items()):
            if member.health is not c.Health.STARTING or self._members.get(REPLICA, name) is not member:
                del self._held[name]
            elif not self._state.occupied(member):
                del self._held[name]
                self._begin(member, reason, machine)

    def _trainer_too(self, member: MemberState, failure: c.Failure, reason: c.Reason) -> None:
        """A hybrid's fault is one of the trainer, unless that is down already (RobustRL, section 4)."""
        trainer = self._members.get(TRAINER)
        if trainer is not None and trainer.health is c.Health.UP:
            why = f"{member.role} {member.id}, on its devices, is down: {failure.reason}"
            limit_s = reason.numbers.get("limit_s") if reason.why is c.Why.STILL else None
            numbers = {} if limit_s is None else {"limit_s": limit_s}
            event = c.Down(TRAINER, trainer.id, why, failure.cause)
            self.went_down(event, c.Reason(c.Why.HYBRID, member.id, numbers))

    def _use_older_checkpoint(self, member: MemberState, why: str) -> None:
        """Restart the trainer from an older checkpoint. The damaged one does not count as a failure of the trainer.

        If it was to take newer weights, these may be what failed: first it is restarted from the same checkpoint alone.
        """
        refused = self._trainer.took_none()
        if refused is not None:
            self._restart(member, c.Reason(c.Why.NOT_TAKEN, numbers={"version": refused}))
            return
        damaged = self._trainer.fallbacks[-1]
        if self._trainer.unusable(damaged):
            self._restart(member, c.Reason(c.Why.DAMAGED, numbers={"version": damaged}))
        else:
            self._state.fail(f"the checkpoint of version {damaged} cannot be used, and there is no other: {why}")

    def restart_all(self, version: int | None) -> None:
        """Restart every member after the driver died. The data role falls back to the trainer's version."""
        self.resumes_at, self.troubles, self.task = version, Troubles(), None
        self._causes.clear()
        self._held.clear()
        for member in list(self._members.states.values()):
            self._restart(member, c.Reason(c.Why.LOST_IN_CRASH))

    def restart_task(self, version: int | None, culprit: MemberState, reason: c.Reason) -> None:
        """Restart every member, since restarting one alone does not help. The data role falls back to the trainer's version.

        Args:
            version: the checkpoint that the trainer continues from.
            culprit: whose failure it was.
            reason: why that one is restarted.
        """
        self.resumes_at, self.task = version, None
        self.task_restarts += 1
        self.troubles.task_restarted()
        self._held.clear()
        numbers = {"task_restarts": float(self.troubles.task_restarts)}
        for member in list(self._members.states.values()):
            others = c.Reason(c.Why.TASK_RESTART, f"{culprit.role} {culprit.id}", numbers)
            self._restart(member, reason if member is culprit else others)

    def stepped(self, step: int) -> None:
        """Note that a batch was trained on: `step` batches were before it."""
        self.troubles.stepped(step)
        if not self.troubles.task_restarts:
            self._causes.clear()
        trainer = self._members.get(TRAINER)
        if trainer is not None:
            trainer.trained(step)

    def _act(
        self,
        member: MemberState,
        action: c.RecoveryAction,
        failure: c.Failure,
        reason: c.Reason,
        room: tuple[str, ...] | None = None,
    ) -> None:
        if action is _ACTIONS.RESTART:
            self._restart(member, reason, machine=self._in_place(member))
        elif action is _ACTIONS.REPLACE:
            self._moves(member, failure)
            avoid = (failure.stood,) if failure.stood else ()
            self._restart(member, reason, avoid=avoid, machine=self._with_room(failure, room))
        elif action is _ACTIONS.EVICT_MACHINE and failure.stood:
            self._moves(member, failure)
            self._evict_machine(member, failure)
            self._restart(member, reason, machine=self._with_room(failure, room))
        elif action is _ACTIONS.STANDBY and failure.standbys:
            replicas = [replica.member for replica in standbys(self._state, failure.machine)[0]]
            member.stands = replicas[0].machine  # hybrids follow it there
            self._evict_machine(member, failure)
            self._stand_in(member, replicas, reason)
        elif action is _ACTIONS.EVICT and (failure.others or member.role == RANKER):  # nothing waits for a ranker
            numbers = {**reason.numbers, "left": float(failure.others)}
            told = c.Reason(reason.why, reason.who, numbers)  # of a suspect the process still lives
            self._outbox.send(c.Stop, role=member.role, id=member.id, reason=told)
            row = {"role": member.role, "id": member.id, "machine": failure.stood, "reason": failure.reason}
            self.given_up.append(row)
            self._members.leaves(member)
        elif action is _ACTIONS.RESTART_TASK or action is _ACTIONS.START_OVER:
            if failure.cause is c.Cause.MACHINE and failure.machine:
                self._members.give_up(failure.machine)
            self._causes.append(f"{member.role} {member.id}: {failure.reason}")
            over = action is _ACTIONS.START_OVER or (self.task is not None and self.task[0])
            self.task = (over, member, reason)
        elif action is _ACTIONS.FAIL:
            before = f"; the task had been restarted for {'; '.join(self._causes)}" if self._causes else ""
            if reason.why in (c.Why.STILL, c.Why.HYBRID) and "limit_s" in reason.numbers:
                role = REPLICA if reason.why is c.Why.HYBRID else member.role
                before += (
                    f"; by pipeline.detection a {role} may stand still for {reason.numbers['limit_s']:.3g} s: raise that "
                    f"if a healthy one needs longer"
                )
            self._state.fail(
                f"{member.role} {member.id} is down and is not restarted: {failure.reason} (failure {failure.failures} of "
                f"it without work in between){before}"
            )
        else:
            where = f"on {failure.stood}" if failure.stood else "on an unknown machine"
            expected = (
                f"a RecoveryAction that fits: {member.role} {member.id} {where} is down ({failure.reason}), and "
                f"{failure.others or 'no'} others do its work"
            )
            raise answered("recovery", self._policy, "on_down", action, expected)

    def _in_place(self, member: MemberState) -> str:
        """The machine on which a replica is started again: its own, unless that is given up. Others stand by placement."""
        usable = member.role == REPLICA and not member.hybrid and member.stands not in self._members.given_up
        return member.stands if usable else ""

    def _moves(self, member: MemberState, failure: c.Failure) -> None:
        """Note that a member is given another machine since it failed again and again, and not since its machine is gone."""
        if failure.cause is not c.Cause.MACHINE and not member.moved:
            member.moved = failure.failures

    def _with_room(self, failure: c.Failure, room: tuple[str, ...] | None) -> str:
        """The machine for a member that moves: the first with room, if the host knows; else the host or placement chooses."""
        found = [] if room is None or self._members.named else self._members.elsewhere(failure.stood, room)
        return found[0] if found else ""

    def _evict_machine(self, member: MemberState, failure: c.Failure) -> None:
        """Restart the other members of a machine elsewhere. What becomes of the trainer is for the policy to say."""
        machine = failure.stood
        for other in self._members.give_up(machine):
            if other is member or other.machine != machine:
                continue  # it is elsewhere by now, since the trainer was asked about
            if other.health not in (c.Health.UP, c.Health.STARTING, c.Health.RESIZING):
                continue
            if other.role == TRAINER and failure.cause is c.Cause.MACHINE:
                self.went_down(c.Down(TRAINER, other.id, failure.reason, c.Cause.MACHINE, machine))
                continue
            lost(self._state, other)
            other.health = c.Health.DOWN
            self._restart(other, c.Reason(c.Why.MACHINE, machine))

    def _stand_in(self, trainer: MemberState, replicas: list[MemberState], reason: c.Reason) -> None:
        """Start the trainer on the machine of replicas, and these elsewhere."""
        taken = replicas[0].machine
        for replica in replicas:
            lost(self._state, replica)
            replica.health = c.Health.DOWN
        self.lent_machines += 1
        self._restart(trainer, reason, machine=taken)
        avoid = () if self._members.named else (taken,)  # there it would take what the trainer waits for
        for replica in replicas:
            self._restart(replica, c.Reason(c.Why.STANDBY, f"{trainer.role} {trainer.id}"), avoid=avoid)

    def came_up(self, member: MemberState) -> bool:
        """Whether a member that came up may stay: its machine may have been given up while it started."""
        self.troubles.came_up(member.role, member.id)
        machine = member.machine
        if machine in member.avoids or machine not in self._members.given_up or member.health is not c.Health.UP:
            return True
        lost(self._state, member)
        self._restart(member, c.Reason(c.Why.MACHINE, machine))
        return False

    def _restart(
        self, member: MemberState, reason: c.Reason, *, avoid: tuple[str, ...] = (), machine: str = ""
    ) -> None:
        self._members.starts_anew(member)
        restarts = self._members.restarts
        if reason.why is not c.Why.LOST_IN_CRASH:  # the driver died, and no member failed
            restarts[member.role] = restarts.get(member.role, 0) + 1
        member.avoids = tuple(dict.fromkeys((*member.avoids, *avoid)))
        if member.stands in member.avoids and not self._members.named:
            member.stands = ""
        if self._state.occupied(member):
            self._held[member.id] = member, reason, machine
        else:
            self._begin(member, reason, machine)

    def _begin(self, member: MemberState, reason: c.Reason, machine: str) -> None:
        if self._state.failure:
            return  # the run ends, and the process that it has may still compute on these devices
        version = {TRAINER: self._trainer.checkpoint, DATA: self.resumes_at}.get(member.role)
        weights = None
        if member.role == TRAINER:
            weights = newer_weights(self._state) if self.resumes_at is None else None  # else the store returns to it
            self._trainer.takes(None if weights is None else weights.version)
            version = version if weights is None else self._trainer.fallbacks[-1]  # the first model has one too
        place = dataclasses.replace(
            self._members.place(member, machine),
            check=self._state.spec.machine_checks and reason.why is not c.Why.LOST_IN_CRASH,
        )
        self._outbox.send(
            c.Restart,
            role=member.role,
            id=member.id,
            version=version,
            place=place,
            reason=reason,
            tp=member.own_tp,
            weights=weights,
        )
