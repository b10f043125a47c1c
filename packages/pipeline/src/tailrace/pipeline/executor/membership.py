"""Members as they come and go: started, watched by their heartbeats, ended. The controller says who; this carries it out.

Every role is asked for its events again and again. An answer is a heartbeat; one that gives none for too long is taken for
gone. News of a member that is gone already is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tailrace import contracts as c
from tailrace.faulttol import Death, HeartbeatMonitor, Suspicion
from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executor.answers import Answers
from tailrace.pipeline.executor.deployment import DATA, TRAINER, Deployment
from tailrace.pipeline.executor.running import Running
from tailrace.pipeline.executor.seam import Answer, Host, MemberDeadError
from tailrace.pipeline.executor.waits import Waits, error_of, together

Key = tuple[str, str]


class Membership:
    """Who runs.

    Args:
        deployment: what members are.
        waits: of the executor.
        tell: takes what became of a member, as events.
        heard: takes what members say.
    """

    def __init__(
        self,
        host: Host,
        deployment: Deployment,
        waits: Waits,
        *,
        tell: Callable[[c.Event], None],
        heard: Callable[[Sequence[c.Event]], None],
    ) -> None:
        self.deployment = deployment
        self.running: dict[Key, Running] = {}
        self.incarnations: dict[Key, int] = {}
        self.answers = Answers(waits, deployment.deadlines, self.failed)
        self._host, self._waits, self._tell, self._hear = host, waits, tell, heard
        self._time, self._deadlines = host.time, deployment.deadlines
        self._heartbeats = HeartbeatMonitor(self._deadlines.suspect_s, self._deadlines.silent_s)

    def ranks(self, role: str, id_: str) -> list[Running]:
        """A member that runs, with the further ranks of a trainer; empty if it does not."""
        count = self.deployment.trainer_ranks if role == TRAINER else 1
        found = (self.running.get((role, _rank_id(id_, rank))) for rank in range(count))
        return [running for running in found if running is not None]

    # ---- commands -------------------------------------------------------------------------------------------------

    def start(self, command: c.Start) -> None:
        """Start a member, or have the next controller take over one that stayed up from a run before."""
        ranks = self.ranks(command.role, command.id)
        if not ranks:
            self._spawn(command, None)
            return
        arguments = self.deployment.adopting.get(command.role, {}).values()
        answer = together([running.member.call("adopt", *arguments) for running in ranks])
        self._await(ranks, answer, command.seq, f"{ranks[0]} to be taken over")

    def restart(self, command: c.Restart) -> None:
        """Put a fresh member in the place of one, ending what is left of it."""
        for running in self.ranks(command.role, command.id)[:1]:
            self._end(running)
        self._spawn(command, command.version)

    def stop(self, command: c.Stop) -> None:
        """Let a member tidy up, then end it."""
        for running in self.ranks(command.role, command.id)[:1]:
            ended = partial(self._stopped, running)
            running.up = False  # nothing more goes to it; what it says until the end is heard
            answer = running.member.call("close")
            limit_s = self._deadlines.close_s
            self._waits.add(f"{running} to stop", self._time.now(), limit_s, answer, ended, ended, running)

    def _spawn(self, command: c.Start | c.Restart, version: int | None) -> None:
        role, id_ = command.role, command.id
        ranks: list[Running] = []
        for rank in range(self.deployment.trainer_ranks if role == TRAINER else 1):
            key = (role, _rank_id(id_, rank))
            incarnation = self.incarnations[key] = self.incarnations.get(key, 0) + 1
            spec = self.deployment.role(self._host, role, id_, incarnation, rank)
            member = self._host.spawn(role, key[1], incarnation, spec, command.place)
            running = self.running[key] = Running(role, key[1], member, self._sent, id_)
            running.failed = partial(self.failed, running)
            running.standing = self._waits.stand(partial(self._polled, running))
            running.answered = partial(self._wake, running.standing)
            ranks.append(running)
        arguments = (version,) if role in (TRAINER, DATA) else ()
        ready = together([running.member.call("ready", *arguments) for running in ranks])
        self._await(ranks, ready, command.seq, f"{ranks[0]} to come up")

    def _await(self, ranks: Sequence[Running], answer: Answer, seq: int, what: str) -> None:
        first = ranks[0]

        def up(results: list[Any]) -> None:
            for rank in ranks:
                if not rank.up:
                    rank.up = True
                    self._heartbeats.expect(str(rank), self._time.now())
                    self._poll(rank)
                    rank.send()
            fields = results[0] or {}
            first.address = fields.pop("address", first.address)
            machine, address = first.member.machine, first.address
            self._tell(c.Up(first.role, first.id, machine=machine, address=address, answers=seq, **fields))

        self._waits.add(what, self._time.now(), self._deadlines.start_s, answer, up, first.failed, first)

    def _sent(self, running: Running, answer: Answer, commands: Sequence[c.Command]) -> None:
        """A call with commands is under way."""
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
        """Who has been silent for too long is suspected, then ended."""
        for notice in self._heartbeats.check(now):
            role, _, id_ = notice.member.partition(" ")
            running = self.running.get((role, id_))
            if running is None:
                continue
            if isinstance(notice, Suspicion):
                self._tell(c.Suspect(running.role, running.leader, notice.silent_s))
            elif isinstance(notice, Death):
                self._down(running, f"silent for {notice.silent_s:.0f} s", c.Cause.SILENT)

    def _wake(self, number: int, _: Answer) -> None:
        self._waits.wake(number)

    def _poll(self, running: Running) -> None:
        running.asked = running.member.call("events", self._host.poll_s)
        running.asked.add_done_callback(running.answered)

    def _polled(self, running: Running) -> None:
        answer = running.asked
        assert answer is not None
        error = error_of(answer)
        if error is not None:
            self.failed(running, error)
            return
        self._heartbeats.beat(running.name, self._time.now())
        events = answer.result()
        if events:
            self._hear(events)
        self._poll(running)

    # ---- ends -----------------------------------------------------------------------------------------------------

    def failed(self, running: Running, error: BaseException) -> None:
        """A call of a member failed, or it did not do in time what it was told."""
        cause = getattr(error, "cause", None)
        if not isinstance(cause, c.Cause):
            died, late = isinstance(error, MemberDeadError), isinstance(error, DeadlineError)
            cause = c.Cause.DIED if died else c.Cause.SILENT if late else c.Cause.BROKE
        self._down(running, str(error), cause)

    def _stopped(self, running: Running, _: Any) -> None:
        self._down(running, "it was told to stop", c.Cause.STOPPED)

    def _down(self, running: Running, reason: str, cause: c.Cause) -> None:
        """A member is gone. Heard once: later news of the same one is ignored."""
        if self._end(running):
            first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            self._tell(c.Down(running.role, running.leader, first_line, cause))

    def _end(self, running: Running) -> bool:
        """End a member, with the other ranks of a trainer. Returns whether it was there."""
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


def _rank_id(leader: str, rank: int) -> str:
    return leader if rank == 0 else f"{leader}.{rank}"
