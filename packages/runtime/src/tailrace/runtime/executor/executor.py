"""The executor: carries the controller's commands out on members of a host and turns what they report into events.

    consumes    answers of calls, polled events of every member, deadlines, the host's clock, scripted faults
    waits for   see `Waits`: every call and command has a deadline and a line in the status
    unblocked   by any of these; a member is reported down once it died or missed a deadline, and silent while it is
It decides nothing. One thread owns all state. All events of one instant go to the controller together. The events and the
commands that follow are logged before a command is carried out, so the log is never behind the members. Events that arise
while commands are carried out belong to the next instant.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.view import RunView
from tailrace.faulttol import Fault, FaultSchedule, InjectedError
from tailrace.faulttol.injection import FaultKind
from tailrace.runtime.errors import DeadlineError, RunFailedError
from tailrace.runtime.executor.deployment import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER, Deployment
from tailrace.runtime.executor.injection import Injection
from tailrace.runtime.executor.membership import Membership
from tailrace.runtime.executor.roster import Key, Roster
from tailrace.runtime.executor.running import Running
from tailrace.runtime.executor.seam import Host
from tailrace.runtime.executor.waits import Waits

_log = logging.getLogger(__name__)
_NUMBERS_BITS = 40  # of waits: an answer that a controller waited for which is gone must not be taken for another's


class Log(Protocol):
    """Stores instants."""

    def append(
        self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], heard: Mapping[str, int]
    ) -> None:
        """Store events that reached the controller together, and the commands that it gave.

        Args:
            heard: the number of the last event of each member among them, by its name.

        Raises:
            SupersededError: another controller writes the log.
        """
        ...

    def check(self) -> None:
        """Raise `SupersededError` if another controller writes the log."""
        ...


class Observer(Protocol):
    """Sees every instant: metrics, displays, timelines."""

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        """Events that reached the controller together, and the commands that it gave."""
        ...

    def tick(self, now: float, executor: Executor) -> None:
        """Called at regular intervals, for example to refresh a display."""
        ...


class Executor:
    """Runs controllers on a host.

    Args:
        host: starts the members.
        deployment: how each role is started, and the deadlines.
        observers: called at every instant and tick.
    """

    def __init__(self, host: Host, deployment: Deployment, *, observers: Sequence[Observer] = ()) -> None:
        self.host, self._time, self._observers = host, host.time, list(observers)
        self._waits = Waits(host.time.wake, host.epoch << _NUMBERS_BITS)
        self._news: list[c.Event] = []
        self.membership = Membership(host, deployment, self._waits, tell=self._tell, heard=self._heard)
        self._answers = self.membership.answers
        self._unsent: dict[Running, None] = {}
        self._heard_of: dict[Running, int] = {}  # number of the last event of each member in `_news`
        self._controller: Controller | None = None
        self._log: Log | None = None
        self._injection = self._scripted(())
        self.membership.strikes_while_loading = self._strikes_while_loading
        self._next_tick_s = math.inf
        self._carry_out: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys((c.Route, c.Interrupt, c.Pull, c.Lend, c.Return), self._to_replica),
            **dict.fromkeys((c.Publish, c.Reveal, c.Checkpoint, c.Accumulate, c.Offload, c.Step), self._to_trainer),
            c.Abort: self._abort,
            c.Score: self._score,
            c.Predict: self._predict,
            c.Measure: self._measure,
            c.Call: self._call,
            c.Close: self._close,
            c.Start: self.membership.start,
            c.Restart: self.membership.restart,
            c.Resize: self.membership.resize,
            c.Stop: self.membership.stop,
        }

    # ---- life -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the run's clock."""
        return self._time.now()

    @property
    def controller(self) -> Controller:
        """The controller that runs, or ran last."""
        assert self._controller is not None
        return self._controller

    @property
    def deployment(self) -> Deployment:
        """The deployment. A new one applies to members that are started from now on."""
        return self.membership.deployment

    @deployment.setter
    def deployment(self, deployment: Deployment) -> None:
        self.membership.deployment = deployment

    @property
    def members(self) -> Mapping[Key, Running]:
        """The running members, by role and id."""
        return self.membership.running

    @property
    def deadline_s(self) -> float:
        """The time of the next deadline of what is waited for; infinite if there is none."""
        return self._waits.next_deadline_s()

    @property
    def awaited(self) -> set[object]:
        """The members that owe an answer."""
        return self._waits.owners() - {None}

    def run(
        self,
        controller: Controller,
        log: Log,
        *,
        first: c.Event | None = None,
        faults: Sequence[Fault] = (),
        further: Iterable[Fault] = (),
        until: Callable[[], bool] = lambda: False,
        attached: Roster | None = None,
    ) -> None:
        """Run a controller to its end. Members stay up, so it may be called again with another controller.

        Args:
            controller: the controller.
            log: stores its instants.
            first: the first event; a tick if None.
            faults: the scripted faults.
            further: faults at ever later seconds, perhaps without end.
            until: stops the run earlier once it returns True.
            attached: what a controller that died had under way; its members go on. None: there are none.

        Raises:
            RunFailedError: the controller ended the run as failed.
            SupersededError: a later controller runs it.
            InjectedError: a fault raised it in the driver.
        """
        self._controller, self._log, self._injection = controller, log, self._scripted(faults, further)
        self._news = [first if first is not None else c.Tick()]
        self._next_tick_s = self.now() + self.host.tick_s
        if attached is not None:
            self._attach(attached)
        self._deliver(self.now())
        self._loop(lambda: controller.over or until())
        if controller.failure is not None:
            raise RunFailedError(controller.failure)

    def keep_up(self, work: Future[Any], timeout_s: float) -> None:
        """Keep polling members while waiting for other work.

        Args:
            work: the other work.
            timeout_s: its deadline in seconds.

        Raises:
            DeadlineError: the work took longer than `timeout_s`.
        """
        deadline = self.now() + timeout_s
        self._next_tick_s = self.now()
        self._loop(lambda: work.done() or self.now() > deadline)
        if not work.done():
            raise DeadlineError(f"waited {timeout_s:.0f} s for work beside the run, which did not end")

    def close(self, patience_s: float | None = None) -> None:
        """Let every member clean up, then end it. One that does not end in time, or still starts, is killed: nothing is lost.

        Args:
            patience_s: deadline in seconds; None: the deployment's. It may be short, since a resumed run recovers from kills.

        Raises:
            Exception: the data role could not close its store.
        """
        patience_s = self.deployment.deadlines.close_s if patience_s is None else patience_s
        failed: list[tuple[Running, BaseException]] = []
        for starting in [r for r in self.members.values() if not r.up]:
            starting.member.kill()
        for serving in (False, True):  # relays and data serve the others
            running = [r for r in self.members.values() if r.up and (r.role in (DATA, RELAY)) is serving]
            with ThreadPoolExecutor(max(1, len(running))) as pool:
                closing = [(r, pool.submit(r.member.close, patience_s)) for r in running]
            failed += [(r, error) for r, future in closing if (error := future.exception()) is not None]
        for r, error in failed:
            _log.warning("%s did not close and is killed: %s", r, error)
            r.member.kill()
        self.membership.running.clear()
        self.host.close()
        for r, error in failed:
            if r.role == DATA:
                raise error

    def visible(self) -> dict[str, Any]:
        """Members and current waits, for the status."""
        return {
            "members": [
                {"role": r.role, "id": r.id, "pid": r.member.pid, "incarnation": self.membership.incarnations[key]}
                for key, r in self.members.items()
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
            ticks = now >= self._next_tick_s
            late = waits.next_deadline_s() <= now
            if (ticks or late) and self._log is not None:
                self._log.check()  # nobody is ended by a controller that was stopped for long, and replaced
            if late:
                waits.expire(now)
            if ticks:
                self._tick(now)
            self._deliver(now)
            if ticks:
                for observer in self._observers:
                    observer.tick(now, self)

    def _tick(self, now: float) -> None:
        self._next_tick_s += self.host.tick_s
        if self._next_tick_s <= now:  # the machine was suspended
            self._next_tick_s = now + self.host.tick_s
        self.membership.watch(now)
        self._news.append(c.Tick())
        self._inject(now)

    def _deliver(self, now: float) -> None:
        """Give all events of this instant to the controller, and carry out its commands."""
        events, self._news, controller = self._news, [], self._controller
        heard, self._heard_of = self._heard_of, {}
        if not events or controller is None:
            return
        if controller.over and type(events[0]) is not c.Resumed:
            _acknowledge(heard)
            return  # between runs members stay up without a controller
        assert self._log is not None
        commands = controller.handle_all(events, now)
        self._log.append(now, events, commands, {running.name: number for running, number in heard.items()})
        self._die()
        _acknowledge(heard)
        for observer in self._observers:
            observer.observe(now, events, commands, controller.view)
        if self._injection.pending and any(type(event) is c.Up for event in events):
            self._injection.came_up(now, controller.view.step, self.members.values())
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

    def _tell(self, event: c.Event) -> None:
        self._news.append(event)

    def _heard(self, running: Running, events: Sequence[c.Event]) -> None:
        self._heard_of[running] = running.told
        self._answers.heard(events, self._time.now())
        self._news.extend(events)

    def _inject(self, now: float) -> None:
        """Inject due faults; a member that is not up yet is struck once it is."""
        if self._controller is not None and self._injection.pending:
            self._injection.inject(now, self._controller.view.step, self.members.values())

    def _scripted(self, faults: Sequence[Fault], further: Iterable[Fault] = ()) -> Injection:
        schedule = FaultSchedule(faults, further)
        return Injection(schedule, self._waits, self.now, self._tell, self.host.strike_machine)

    def _strikes_while_loading(self, role: str) -> bool:
        return self._controller is not None and self._injection.strikes_while_loading(role, self._controller.view.step)

    def _die(self) -> None:
        """Strike the driver itself, if a fault says so, before anything of this instant is carried out."""
        kind = self._injection.fatal
        if kind is FaultKind.RAISE:
            raise InjectedError("a scripted fault raised this in the driver")
        if kind is not None:
            self._injection.fatal = None
            self.host.strike_driver(kind)

    def _attach(self, roster: Roster) -> None:
        """Take over the members of a controller that died, send what they may lack, and wait for what is not answered."""
        self.membership.attach(roster)
        for (role, id_), listed in roster.members.items():
            ranks = self.membership.ranks(role, id_)
            for running in ranks:
                for command in listed.sent:
                    running.put(command)
                    self._unsent[running] = None
            for seq, command in listed.open.items() if ranks else ():
                self._await_again(ranks[0], command, tuple(listed.missing.get(seq, ())))

    def _await_again(self, running: Running, command: c.Command, missing: Sequence[Any]) -> None:
        now = self._time.now()
        match command:
            case c.Score():
                self._answers.scoring(running, missing, now)
            case c.Predict():
                self._answers.predicting(running, missing, now)
            case c.Call():
                self._answers.calling(running, missing, command.seq, now)
            case _:
                self._answers.expect(running, command, now)

    # ---- commands -------------------------------------------------------------------------------------------------

    def _send(self, key: Key, command: c.Command) -> Running | None:
        running = self.members.get(key)
        if running is not None:  # otherwise its Down will be delivered
            running.put(command)
            self._unsent[running] = None
        return running

    def _to_replica(self, command: c.Route | c.Interrupt | c.Pull | c.Lend | c.Return) -> None:
        running = self._send((REPLICA, command.replica), command)
        if running is not None and type(command) in (c.Pull, c.Lend, c.Return):
            self._answers.expect(running, command, self._time.now())

    def _to_trainer(self, command: c.Publish | c.Reveal | c.Checkpoint | c.Accumulate | c.Offload | c.Step) -> None:
        ranks = self.membership.ranks(TRAINER, "0")
        for running in ranks:
            self._send((TRAINER, running.id), command)
        if ranks:
            self._answers.expect(ranks[0], command, self._time.now())

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

    def _predict(self, command: c.Predict) -> None:
        ranker = self._send((RANKER, "0"), command)
        if ranker is not None:
            self._answers.predicting(ranker, command.prompts, self._time.now())

    def _measure(self, command: c.Measure) -> None:
        data = self._send((DATA, "0"), command)
        if data is not None:
            self._answers.expect(data, command, self._time.now())

    def _call(self, command: c.Call) -> None:
        environment = self._send((ENVIRONMENT, command.environment), command)
        if environment is not None:
            self._answers.calling(environment, command.trajectories, command.seq, self._time.now())

    def _close(self, command: c.Close) -> None:
        environment = self._send((ENVIRONMENT, command.environment), command)
        if environment is not None:
            self._answers.closed(environment, command.trajectories)


def _acknowledge(heard: Mapping[Running, int]) -> None:
    """The next question for a member's events says that these are safe."""
    for running, number in heard.items():
        running.logged = number
