"""The executor: carries the controller's commands out on members of a host and turns what they report into events.

    consumes    answers of calls, polled events of every member, deadlines, the host's clock, scripted faults
    waits for   see `Waits`: every call and command has a deadline and a line in the status
    unblocked   by any of these; a silent member is suspected, then killed and reported down

It decides nothing. One thread owns all state. Everything of one instant goes to the controller together; the log has both
the events and the commands that follow before any of these is carried out, so it never lags behind the world. What carrying
out makes known at once belongs to the next instant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.faulttol import Death, Fault, HeartbeatMonitor, Suspicion
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.view import RunView
from tailrace.pipeline.errors import DeadlineError, RunFailedError
from tailrace.pipeline.executor.answers import Answers
from tailrace.pipeline.executor.deployment import DATA, REPLICA, SCORER, TRAINER, Deployment
from tailrace.pipeline.executor.injection import Injection
from tailrace.pipeline.executor.running import Running
from tailrace.pipeline.executor.seam import Answer, Caller, Host, MemberDeadError
from tailrace.pipeline.executor.waits import Waits, together

Key = tuple[str, str]


class Log(Protocol):
    """Where instants are written."""

    def append(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Events that reached the controller together, and the commands that it gave."""
        ...


class Observer(Protocol):
    """Sees every instant: metrics, displays, timelines."""

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Events that reached the controller together, and the commands that it gave."""
        ...

    def tick(self, now: float, executor: Executor) -> None:
        """Time passes: a chance to refresh what people see."""
        ...


class Executor:
    """Runs controllers on a host.

    Args:
        host: where members live.
        deployment: what they are.
    """

    def __init__(self, host: Host, deployment: Deployment, *, observers: Sequence[Observer] = ()) -> None:
        self.host, self.deployment, self._observers = host, deployment, list(observers)
        self._time, self._deadlines = host.time, deployment.deadlines
        self._waits = Waits(host.time.wake)
        self._answers = Answers(self._waits, self._deadlines, self._failed)
        self._heartbeats = HeartbeatMonitor(self._deadlines.suspect_s, self._deadlines.silent_s)
        self._members: dict[Key, Running] = {}
        self._incarnations: dict[Key, int] = {}
        self._news: list[c.Event] = []
        self._unsent: dict[Running, None] = {}
        self._controller: Controller | None = None
        self._log: Log | None = None
        self._injection = Injection(())
        self._next_tick_s = math.inf
        self._carry_out: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((c.Route, c.Interrupt, c.Pull), self._to_replica),
            **dict.fromkeys((c.Publish, c.Checkpoint, c.Accumulate, c.Step), self._to_trainer),
            c.Abort: self._abort,
            c.Score: self._score,
            c.Start: self._start,
            c.Restart: self._restart,
            c.Stop: self._stop,
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the run's clock."""
        return self._time.now()

    @property
    def controller(self) -> Controller:
        """The controller that is running, or ran last."""
        assert self._controller is not None
        return self._controller

    @property
    def members(self) -> dict[Key, Running]:
        """Members that run, by role and id."""
        return self._members

    @property
    def data(self) -> Caller:
        """The data role, for calls of the driver."""
        return self.host.caller(DATA)

    def run(
        self,
        controller: Controller,
        log: Log,
        *,
        first: c.Event | None = None,
        faults: Sequence[Fault] = (),
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run a controller to its end. May be called again with another controller: members stay up.

        Args:
            first: the first event; a tick if None.
            until: stop here too, before the end.

        Raises:
            RunFailedError: the controller gave up.
        """
        self._controller, self._log, self._injection = controller, log, Injection(faults)
        self._news = [first if first is not None else c.Tick()]
        self._next_tick_s = self.now() + self.host.tick_s
        self._deliver(self.now())
        self._loop(lambda: controller.over or until())
        if controller.failure is not None:
            raise RunFailedError(controller.failure)

    def keep_up(self, work: Future[Any], timeout_s: float) -> None:
        """Keep the members' heartbeats going while something else is waited for.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
        """
        deadline = self.now() + timeout_s
        self._next_tick_s = self.now()
        self._loop(lambda: work.done() or self.now() > deadline)
        if not work.done():
            raise DeadlineError(f"waited {timeout_s:.0f} s in vain for work beside the run")

    def close(self, patience_s: float | None = None) -> None:
        """Let every member tidy up, then end them.

        Args:
            patience_s: how long for; the deployment's deadline if None. What dies is recovered from, so it may be short.
        """
        patience_s = self._deadlines.close_s if patience_s is None else patience_s
        errors: list[BaseException] = []
        for serving in (False, True):  # relays and data serve the others
            members = [r.member for r in self._members.values() if (r.role in (DATA, "relay")) is serving]
            with ThreadPoolExecutor(max(1, len(members))) as pool:
                closing = [pool.submit(member.close, patience_s) for member in members]
            errors += [error for error in (future.exception() for future in closing) if error is not None]
        self._members.clear()
        self.host.close()
        if errors:
            raise errors[0]

    def visible(self) -> dict[str, Any]:
        """What a person wants to see: members, and what is waited for."""
        return {
            "members": [
                {"role": r.role, "id": r.id, "pid": r.member.pid, "incarnation": self._incarnations[key]}
                for key, r in self._members.items()
            ],
            "waits": [
                {"for": what, "waited_s": round(waited, 1), "left_s": round(left, 1)}
                for what, waited, left in self._waits.visible(self.now())
                if waited > 1.0
            ],
        }

    # ---- the loop -------------------------------------------------------------------------------------------------

    def _loop(self, done: Callable[[], bool]) -> None:
        time, waits = self._time, self._waits
        while not done():
            arrived = time.wait(min(self._next_tick_s, waits.next_deadline_s())) if not self._news else ()
            now = time.now()
            for number in arrived:
                waits.settle(number)
            if waits.next_deadline_s() <= now:
                waits.expire(now)
            ticks = now >= self._next_tick_s
            if ticks:
                self._tick(now)
            self._deliver(now)
            if ticks:
                for observer in self._observers:
                    observer.tick(now, self)

    def _tick(self, now: float) -> None:
        self._next_tick_s += self.host.tick_s
        if self._next_tick_s <= now:  # the machine stood still meanwhile
            self._next_tick_s = now + self.host.tick_s
        for notice in self._heartbeats.check(now):
            role, _, id_ = notice.member.partition(" ")
            running = self._members.get((role, id_))
            if running is None:
                continue
            if isinstance(notice, Suspicion):
                self._news.append(c.Suspect(running.role, running.leader, notice.silent_s))
            elif isinstance(notice, Death):
                self._down(running, f"silent for {notice.silent_s:.0f} s", c.Cause.SILENT)
        self._news.append(c.Tick())
        self._inject(now)

    def _deliver(self, now: float) -> None:
        """Hand everything of this instant to the controller, and carry out what follows."""
        events, self._news = self._news, []
        if not events or self._controller is None or self._controller.over:
            return  # between runs members stay up, and nobody decides
        assert self._log is not None
        controller = self._controller
        commands = controller.handle_all(events, now)
        self._log.append(now, events, commands)
        for observer in self._observers:
            observer.observe(now, events, commands, controller.view)
        carry_out = self._carry_out
        for command in commands:
            carry = carry_out.get(type(command))
            if carry is not None:
                carry(command)
        if self._unsent:
            unsent, self._unsent = self._unsent, {}
            for running in unsent:
                running.send()
        if self._injection.pending and any(type(event) is c.Stepped for event in events):
            self._inject(now)

    def _heard(self, events: Sequence[c.Event]) -> None:
        self._answers.heard(events, self._time.now())
        self._news.extend(events)

    def _inject(self, now: float) -> None:
        """Strike whom the script names; one that is not up yet is struck when it is."""
        if self._controller is not None and self._injection.pending:
            self._injection.strike(now, self._controller.view.step, self._members.values())

    # ---- commands -------------------------------------------------------------------------------------------------

    def _send(self, key: Key, command: c.Command) -> Running | None:
        running = self._members.get(key)
        if running is not None:  # otherwise its Down is on the way
            running.put(command)
            self._unsent[running] = None
        return running

    def _to_replica(self, command: c.Route | c.Interrupt | c.Pull) -> None:
        running = self._send((REPLICA, command.replica), command)
        if running is not None and type(command) is c.Pull:
            self._answers.expect(running, command, self._time.now())

    def _to_trainer(self, command: c.Publish | c.Checkpoint | c.Accumulate | c.Step) -> None:
        for rank in range(self.deployment.trainer_ranks):
            running = self._send((TRAINER, _rank_id("0", rank)), command)
            if running is not None and rank == 0:
                self._answers.expect(running, command, self._time.now())

    def _abort(self, command: c.Abort) -> None:
        self._answers.dropped(command.trajectories)
        for key in ((SCORER, "0"), *((REPLICA, replica) for replica in command.replicas)):
            self._send(key, command)
        data = self._send((DATA, "0"), command)
        if data is not None:
            self._answers.expect(data, command, self._time.now())

    def _score(self, command: c.Score) -> None:
        scorer = self._send((SCORER, "0"), command)
        if scorer is not None:
            self._answers.scoring(scorer, command.trajectories, self._time.now())

    def _sent(self, running: Running, answer: Answer, commands: Sequence[c.Command]) -> None:
        """A call with commands is under way."""
        self._waits.add(
            f"{running} to take {len(commands)} commands",
            self.now(),
            self._deadlines.start_s,
            answer,
            lambda _: running.arrived(),
            lambda error: self._failed(running, error),
            running,
        )

    # ---- members --------------------------------------------------------------------------------------------------

    def _start(self, command: c.Start) -> None:
        running = self._members.get((command.role, command.id))
        if running is None:
            self._spawn(command, ())
            return
        # It stayed up from a run before.
        adopting = self.deployment.adopting.get(command.role, {})
        answer = running.member.call("adopt", *adopting.values())
        self._await(running, answer, command.seq, lambda _: {}, f"{running} to be taken over")

    def _restart(self, command: c.Restart) -> None:
        running = self._members.get((command.role, command.id))
        if running is not None:
            self._end(running)
        self._spawn(command, (command.version,) if command.role in (TRAINER, DATA) else ())

    def _spawn(self, command: c.Start | c.Restart, arguments: tuple[Any, ...]) -> None:
        role, id_ = command.role, command.id
        ranks = self.deployment.trainer_ranks if role == TRAINER else 1
        arguments = arguments or ((None,) if role in (TRAINER, DATA) else ())
        begun: list[Running] = []
        for rank in range(ranks):
            key = (role, _rank_id(id_, rank))
            incarnation = self._incarnations[key] = self._incarnations.get(key, 0) + 1
            spec = self.deployment.role(self.host, role, id_, incarnation, rank)
            member = self.host.spawn(role, key[1], incarnation, spec, command.place)
            begun.append(Running(role, key[1], member, self._sent, id_))
            self._members[key] = begun[-1]
        ready = together([running.member.call("ready", *arguments) for running in begun])
        self._await(begun[0], ready, command.seq, lambda results: results[0] or {}, f"{begun[0]} to come up", begun)

    def _await(
        self,
        running: Running,
        answer: Answer,
        seq: int,
        fields: Callable[[Any], dict[str, Any]],
        what: str,
        ranks: Sequence[Running] = (),
    ) -> None:
        def up(result: Any) -> None:
            for rank in ranks:
                rank.up = True
                self._heartbeats.expect(str(rank), self.now())
                self._poll(rank)
                rank.send()
            machine = running.member.machine
            self._news.append(c.Up(running.role, running.id, machine=machine, answers=seq, **fields(result)))

        self._waits.add(
            what,
            self.now(),
            self._deadlines.start_s,
            answer,
            up,
            lambda error: self._failed(running, error),
            running,
        )

    def _poll(self, running: Running) -> None:
        """Ask a member for its events, again and again. An answer is a heartbeat; the monitor knows who gives none."""
        self._waits.add(
            "events",
            self._time.now(),
            math.inf,
            running.member.call("events", self.host.poll_s),
            lambda events: self._polled(running, events),
            lambda error: self._failed(running, error),
            running,
        )

    def _polled(self, running: Running, events: Sequence[c.Event]) -> None:
        self._heartbeats.beat(str(running), self._time.now())
        if events:
            self._heard(events)
        self._poll(running)

    def _stop(self, command: c.Stop) -> None:
        running = self._members.get((command.role, command.id))
        if running is None:
            return

        def ended(_: Any) -> None:
            self._down(running, "it was told to stop", c.Cause.STOPPED)

        running.up = False  # nothing more goes to it; what it says until the end is heard
        answer = running.member.call("close")
        self._waits.add(f"{running} to stop", self.now(), self._deadlines.close_s, answer, ended, ended, running)

    def _failed(self, running: Running, error: BaseException) -> None:
        """A call of a member failed, or it did not do in time what it was told."""
        cause = getattr(error, "cause", None)
        if not isinstance(cause, c.Cause):
            died, late = isinstance(error, MemberDeadError), isinstance(error, DeadlineError)
            cause = c.Cause.DIED if died else c.Cause.SILENT if late else c.Cause.BROKE
        self._down(running, str(error), cause)

    def _down(self, running: Running, reason: str, cause: c.Cause) -> None:
        """A member is gone. Heard once: later news of the same one is ignored."""
        if self._end(running):
            first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
            self._news.append(c.Down(running.role, running.leader, first_line, cause))

    def _end(self, running: Running) -> bool:
        """End a member, with the other ranks of a trainer. Returns whether it was there."""
        if self._members.get((running.role, running.id)) is not running:
            return False
        ranks = self.deployment.trainer_ranks if running.role == TRAINER else 1
        for rank in range(ranks):
            gone = self._members.pop((running.role, _rank_id(running.leader, rank)), None)
            if gone is not None:
                gone.up = False
                self._heartbeats.forget(str(gone))
                self._answers.forget(gone)
                self._waits.forget(gone)
                gone.member.kill()
        return True


def _rank_id(leader: str, rank: int) -> str:
    return leader if rank == 0 else f"{leader}.{rank}"
