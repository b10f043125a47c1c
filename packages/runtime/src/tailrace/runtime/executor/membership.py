"""Starts members, watches their heartbeats and ends them, as the controller's commands say.

Every member is polled for its events; each answer is a heartbeat. Silence is reported; the detection policy says what it means.
Later events of a member that is gone are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace import contracts as c
from tailrace.faulttol import HeartbeatMonitor
from tailrace.runtime.errors import DeadlineError, RoleError, StaleEpochError, SupersededError
from tailrace.runtime.executor.command_deadlines import Answers
from tailrace.runtime.executor.deployment import DATA, REPLICA, TRAINER, Deployment, rank_id
from tailrace.runtime.executor.doors import Mail, Ready, Role, StoreCalls, TrainerCalls, ask
from tailrace.runtime.executor.roster import Key, Listed, Roster, Spawning
from tailrace.runtime.executor.running import Running
from tailrace.runtime.executor.seam import Answer, Host, KnowsRoom, Member, MemberDeadError, RoleSpec
from tailrace.runtime.executor.waits import Waits, error_of, together


class Membership:
    """The running members.

    Args:
        host: starts the members.
        deployment: how each role is started.
        waits: the executor's waits.
        tell: takes events about members (up, down, silent).
        heard: takes the members' own events.
    """

    def __init__(
        self,
        host: Host,
        deployment: Deployment,
        waits: Waits,
        *,
        tell: Callable[[c.Event], None],
        heard: Callable[[Running, Sequence[c.Event]], None],
    ) -> None:
        self.deployment = deployment
        self.running: dict[Key, Running] = {}
        self.incarnations: dict[Key, int] = {}
        self.answers = Answers(waits, deployment.deadlines, self.failed)
        self._host, self._waits, self._tell, self._hear = host, waits, tell, heard
        self._time, self._deadlines = host.time, deployment.deadlines
        self._heartbeats = HeartbeatMonitor(self._deadlines.suspect_s)
        self.strikes_while_loading: Callable[[str], bool] = lambda _: False
        """Whether a fault is to strike a member of a role before it has loaded its checkpoint."""

    def ranks(self, role: str, id_: str) -> list[Running]:
        """A running member, for a trainer with its further ranks; empty if it does not run."""
        count = self.deployment.trainer_ranks if role == TRAINER else 1
        found = (self.running.get((role, rank_id(id_, rank))) for rank in range(count))
        return [running for running in found if running is not None]

    # ---- commands -------------------------------------------------------------------------------------------------

    def start(self, command: c.Start) -> None:
        """Start a member, or have the controller take over one that stayed up from an earlier run."""
        ranks = self.ranks(command.role, command.id)
        if not ranks:
            self._spawn(command, self._time.now())
            return
        held = self.deployment.adopting_held
        answer = together(
            [
                ask(running.member, TrainerCalls.adopt, held)
                if running.role == TRAINER
                else ask(running.member, Role.adopt)
                for running in ranks
            ]
        )
        self._await(ranks, answer, command.seq, f"{ranks[0]} to be taken over")

    def restart(self, command: c.Restart) -> None:
        """Replace a member by a fresh one, and end the old one if it still runs."""
        asked_s = self._time.now()
        for running in self.ranks(command.role, command.id)[:1]:
            self._end(running)
        self._spawn(command, asked_s)

    def resize(self, command: c.Resize) -> None:
        """End a replica, and start it on another number of devices."""
        self.restart(c.Restart(command.seq, REPLICA, command.replica, place=command.place, tp=command.tp))

    def stop(self, command: c.Stop) -> None:
        """Let a member clean up, then end it."""
        for running in self.ranks(command.role, command.id)[:1]:
            ended = partial(self._stopped, running)
            running.up = False  # it gets no more commands, but its events are still taken
            answer = ask(running.member, Role.close)
            limit_s = self._deadlines.close_s
            self._waits.add(f"{running} to stop", self._time.now(), limit_s, answer, ended, ended, running)

    # ---- members of a controller that died ------------------------------------------------------------------------

    def attach(self, roster: Roster) -> None:
        """Take over the members that live. One that died meanwhile goes down; one that was never started starts now."""
        for (role, id_), incarnation in roster.incarnations.items():
            for rank in range(self.deployment.trainer_ranks if role == TRAINER else 1):
                self.incarnations[role, rank_id(id_, rank)] = incarnation
        for (role, id_), listed in roster.members.items():
            ranks = range(self.deployment.trainer_ranks if role == TRAINER else 1)
            keys = [(role, rank_id(id_, rank)) for rank in ranks]
            found = [
                self._host.find(*key, listed.incarnation, self._spec(listed, rank)) for rank, key in enumerate(keys)
            ]
            living = [member for member in found if member is not None]
            if len(living) == len(keys):
                joined = [self._joins(key, member, id_) for key, member in zip(keys, living, strict=True)]
                for running in joined:
                    running.told = running.logged = roster.heard.get(running.name, 0)
                self._take_over(joined, listed)
                continue
            for member in living:
                member.kill()
            if listed.up:
                self._tell(c.Down(role, id_, "it died while no controller was there", c.Cause.DIED))
            else:
                self._start_now(keys, listed)

    def _spec(self, listed: Listed, rank: int) -> RoleSpec | None:
        """What a member is that may not have been told; None if it was up."""
        if listed.up:
            return None
        command = listed.command
        role, id_ = (REPLICA, command.replica) if isinstance(command, c.Resize) else (command.role, command.id)
        return self.deployment.role(self._host, role, id_, listed.incarnation, rank, command.tp, command.place)

    def _take_over(self, ranks: list[Running], listed: Listed) -> None:
        command = listed.command
        ranks[0].address = listed.address
        if listed.up:
            for running in ranks:
                self._serves(running)
        if listed.stopping is not None:
            self.stop(listed.stopping)
        elif not listed.up:  # it may have said so already; then it says it again
            self._get_ready(ranks, command)

    def _start_now(self, keys: Sequence[Key], listed: Listed) -> None:
        """Carry out what may have been logged only: nothing of this incarnation is there."""
        for key in keys:
            self.incarnations[key] = listed.incarnation - 1
            before = self._host.find(*key, listed.incarnation - 1)
            if before is not None:
                before.kill()
        if isinstance(listed.command, c.Start):
            self.start(listed.command)
        elif isinstance(listed.command, c.Resize):
            self.resize(listed.command)
        else:
            self.restart(listed.command)

    def _spawn(self, command: c.Start | c.Restart, asked_s: float) -> None:
        role, id_ = command.role, command.id
        ranks: list[Running] = []
        began_s = self._time.now()
        for rank in range(self.deployment.trainer_ranks if role == TRAINER else 1):
            key = (role, rank_id(id_, rank))
            incarnation = self.incarnations[key] = self.incarnations.get(key, 0) + 1
            spec = self.deployment.role(self._host, role, id_, incarnation, rank, command.tp, command.place)
            member = self._host.spawn(role, key[1], incarnation, spec, command.place)
            ranks.append(self._joins(key, member, id_))
        ranks[0].asked_s, ranks[0].destroy_s = asked_s, began_s - asked_s
        self._get_ready(ranks, command)

    def _joins(self, key: Key, member: Member, leader: str) -> Running:
        running = self.running[key] = Running(*key, member, self._sent, leader)
        running.failed = partial(self.failed, running)
        running.standing = self._waits.stand(partial(self._polled, running))
        running.answered = partial(self._wake, running.standing)
        return running

    def _get_ready(self, ranks: Sequence[Running], command: Spawning) -> None:
        role, restart = ranks[0].role, command if isinstance(command, c.Restart) else None
        version, weights = (None, None) if restart is None else (restart.version, restart.weights)
        ranks[0].loads = role == TRAINER and version is not None and self.strikes_while_loading(role)
        ready = together([_ready(running, version, weights) for running in ranks])
        self._await(ranks, ready, command.seq, f"{ranks[0]} to come up")

    def _await(self, ranks: Sequence[Running], answer: Answer, seq: int, what: str) -> None:
        first = ranks[0]

        def up(results: list[Ready | None]) -> None:
            for rank in ranks:
                if not rank.up:
                    rank.loads = False
                    self._serves(rank)
                    rank.send()
            all_said = [each or Ready() for each in results]  # one that is taken over says nothing
            said = all_said[0]
            first.address = said.address or first.address
            seats = tuple(rank.member.seat for rank in ranks)
            self._tell(
                c.Up(
                    first.role,
                    first.id,
                    version=said.version,
                    machine=first.member.machine,
                    address=first.address,
                    held=said.held,
                    partial=dict(said.partial),
                    answers=seq,
                    took=self._took(first, all_said),
                    seats=seats if any(seat.devices for seat in seats) else (),
                    notes=tuple(dict.fromkeys(note for said in all_said for note in said.notes)),
                )
            )

        self._waits.add(what, self._time.now(), self._deadlines.start_s, answer, up, first.failed, first)

    def _took(self, first: Running, results: Sequence[Ready]) -> dict[str, float]:
        """Seconds of the stages of a start, each of the slowest rank. What no rank knows went by before it had a process."""
        stages: dict[str, float] = {}
        for said in results:
            for stage, seconds in said.took.items():
                stages[stage] = max(seconds, stages.get(stage, 0.0))
        if stages and first.asked_s is not None:
            place_s = self._time.now() - first.asked_s - first.destroy_s - sum(stages.values())
            stages |= {"destroy": first.destroy_s, "place": max(0.0, place_s)}
        return {stage: round(seconds, 3) for stage, seconds in stages.items()}

    def _serves(self, running: Running) -> None:
        running.up = True
        self._heartbeats.expect(str(running), self._time.now())
        self._poll(running)

    def _sent(self, running: Running, answer: Answer, commands: Sequence[c.Command]) -> None:
        """Wait for a call with commands that is under way."""
        self._waits.add(
            f"{running} to take {len(commands)} commands",
            self._time.now(),
            self._deadlines.start_s,
            answer,
            lambda _: running.arrived(),
            running.failed,
            running,
        )

    # ---- signs of life --------------------------------------------------------------------------------------------

    def watch(self, now: float) -> None:
        """Report members that have been silent for longer than they should, and those that answer again.

        The trainer is as silent as the most silent of its ranks.
        """
        told: dict[tuple[str, str], None] = {}
        for notice in self._heartbeats.check(now):
            role, _, id_ = notice.member.partition(" ")
            running = self.running.get((role, id_))
            if running is not None:
                told[running.role, running.leader] = None
        for role, id_ in told:
            silent_s = max(self._heartbeats.silent_s(rank.name, now) for rank in self.ranks(role, id_))
            self._tell(c.Silent(role, id_, silent_s))

    def _wake(self, number: int, _: Answer) -> None:
        self._waits.wake(number)

    def _poll(self, running: Running) -> None:
        running.asked = ask(running.member, Mail.events, self._host.poll_s, running.told, running.logged)
        running.asked.add_done_callback(running.answered)

    def _polled(self, running: Running) -> None:
        answer = running.asked
        assert answer is not None
        error = error_of(answer)
        if error is not None:
            self.failed(running, error)
            return
        self._heartbeats.beat(running.name, self._time.now())
        running.told, events = answer.result()
        if events:
            self._hear(running, events)
        self._poll(running)

    # ---- ends -----------------------------------------------------------------------------------------------------

    def failed(self, running: Running, error: BaseException) -> None:
        """Handle a member whose call failed or that missed the deadline of a command.

        Raises:
            SupersededError: it obeys a later controller.
        """
        if isinstance(error, StaleEpochError):
            raise SupersededError(f"{running} obeys another controller: {error}") from error
        cause = error.cause if isinstance(error, RoleError) else None
        if cause is None:
            died, late = isinstance(error, MemberDeadError), isinstance(error, DeadlineError)
            cause = c.Cause.DIED if died else c.Cause.SILENT if late else c.Cause.BROKE
        self._down(
            running, str(error) if isinstance(error, c.TailraceError) else f"{type(error).__name__}: {error}", cause
        )

    def _stopped(self, running: Running, _: Any) -> None:
        self._down(running, "it was told to stop", c.Cause.STOPPED)

    def _down(self, running: Running, reason: str, cause: c.Cause) -> None:
        """Report a member as gone, once; later reports about it are ignored."""
        stood = running.member.machine
        room = (
            self._host.room(stood) if isinstance(self._host, KnowsRoom) and stood else None
        )  # what it had counts, too
        if self._end(running):
            first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            machine = stood if cause is c.Cause.MACHINE else ""
            self._tell(c.Down(running.role, running.leader, first_line, cause, machine, room))

    def _end(self, running: Running) -> bool:
        """End a member, for a trainer with all its ranks. Returns whether it was running."""
        if self.running.get((running.role, running.id)) is not running:
            return False
        for gone in self.ranks(running.role, running.leader):
            del self.running[gone.role, gone.id]
            gone.up = False
            self._heartbeats.forget(gone.name)
            self.answers.forget(gone)
            self._waits.forget(gone)
            self._waits.dismiss(gone.standing)
            gone.member.kill()
        return True


def _ready(running: Running, version: int | None, weights: c.HeldWeights | None) -> Answer:
    """Ask a member to get ready, with the version if its role begins from one."""
    if running.role == TRAINER and weights is not None:
        return ask(running.member, TrainerCalls.ready, version, running.loads, weights)
    if running.loads:
        return ask(running.member, TrainerCalls.ready, version, True)
    if running.role == TRAINER:
        return ask(running.member, TrainerCalls.ready, version)
    return ask(running.member, StoreCalls.ready, version) if running.role == DATA else ask(running.member, Role.ready)
