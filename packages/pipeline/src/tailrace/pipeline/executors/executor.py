"""The executor: carries the controller's commands out on members of a host and turns what they report into events.

    consumes    results of calls, polled events of replicas and trainer, deadlines, the clock, scripted faults
    waits for   see `Waits`: every call has a deadline and a line in the status
    unblocked   by any of these; a silent member is suspected, then killed and reported Down

One thread owns all state. Members answer through futures, which only wake the loop. The event log is written before the
commands that follow from an event are carried out: so a log never lags behind the world.
"""

from __future__ import annotations

import os
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from tailrace import contracts as c
from tailrace.faulttol import Death, Fault, FaultKind, FaultSchedule, HeartbeatMonitor, Suspicion, strike
from tailrace.pipeline.controller.controller import RELAY, REPLICA, TRAINER, Controller
from tailrace.pipeline.errors import DeadlineError, RoleError, RunFailedError
from tailrace.pipeline.executors.deployment import Deployment, RoleSpec
from tailrace.pipeline.executors.host import Host, Member
from tailrace.pipeline.executors.learner_queue import LearnerQueue
from tailrace.pipeline.executors.waits import Waits, together
from tailrace.pipeline.run.eventlog import EventLog

POLL_S = 0.2
TICK_S = 0.5


class Observer(Protocol):
    """Sees every event with the commands that followed: metrics, displays, timelines."""

    def observe(self, now: float, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled."""
        ...

    def tick(self, now: float, executor: Executor) -> None:
        """Time passes: a chance to refresh what people see."""
        ...


class Executor:
    """Runs controllers on a host.

    Args:
        host: where members live.
        deployment: what they are.
        started_s: what the run's clock shows now: more than 0 when a run is resumed.
    """

    def __init__(
        self, host: Host, deployment: Deployment, *, observers: Sequence[Observer] = (), started_s: float = 0.0
    ) -> None:
        self.host, self._deployment, self._observers = host, deployment, list(observers)
        self._deadlines = deployment.deadlines
        self._zero = time.monotonic() - started_s
        self._inbox: queue.Queue[c.Event | int] = queue.Queue()
        self._waits = Waits(self._inbox.put)
        self._heartbeats = HeartbeatMonitor(self._deadlines.suspect_s, self._deadlines.silent_s)
        self._members: dict[tuple[str, str], Member] = {}
        self._incarnations: dict[tuple[str, str], int] = {}
        self._relays: dict[str, Any] = {}
        self._learner = LearnerQueue(
            self._waits, self.now, self._deadlines, trained=self._handle, broke=self._trainer_down
        )
        self._parked: dict[str, c.Pull] = {}  # pulls that wait for a relay to come up
        self._discarding: Counter[str] = Counter()
        self._held_back: list[c.Route] = []  # what they begin anew is being discarded
        self._to_score: list[str] = []
        self._scoring: dict[str, None] = {}
        self._controller: Controller | None = None
        self._log: EventLog | None = None
        self._faults = FaultSchedule([])
        self._struck: list[Fault] = []

    # ---- life -----------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Seconds on the run's clock."""
        return time.monotonic() - self._zero

    def open(self) -> None:
        """Start the roles that every run needs; they come up while the others start."""
        self._spawn("data", "0", self._deployment.data_role())
        self._spawn("scorer", "0", self._deployment.scorer_role(self.data))
        for role in ("data", "scorer"):
            self._ask(role, "ready", timeout_s=self._deadlines.start_s)

    @property
    def controller(self) -> Controller:
        """The controller that is running, or ran last."""
        assert self._controller is not None
        return self._controller

    def member(self, role: str, member: str = "0") -> Member:
        """A member that is up.

        Raises:
            RoleError: it is not.
        """
        found = self._members.get((role, member))
        if found is None:
            raise RoleError(f"{role} {member} is not up")
        return found

    @property
    def data(self) -> Any:
        """The data role, for callers."""
        return self._members["data", "0"].caller()

    def run(
        self, controller: Controller, log: EventLog, *, first: c.Event | None = None, faults: Sequence[Fault] = ()
    ) -> None:
        """Run a controller to its end. May be called again with another controller: members stay up.

        Raises:
            RunFailedError: the controller gave up.
        """
        self._controller, self._log, self._faults = controller, log, FaultSchedule(list(faults))
        self._held_back.clear()
        self._inbox.put(first if first is not None else c.Tick())
        self._loop(lambda: controller.finished or controller.failure is not None)
        if controller.failure is not None:
            raise RunFailedError(controller.failure)

    def keep_up(self, work: Future[Any], timeout_s: float) -> None:
        """Keep the members' heartbeats going while something else is waited for.

        Raises:
            DeadlineError: it took longer than `timeout_s`.
        """
        deadline = self.now() + timeout_s
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
        for roles in (("replica", "trainer", "scorer"), ("relay", "data")):  # the second serve the first
            members = [member for (role, _), member in self._members.items() if role in roles]
            with ThreadPoolExecutor(max(1, len(members))) as pool:
                closing = [pool.submit(member.close, patience_s) for member in members]
            errors += [error for error in (future.exception() for future in closing) if error is not None]
        self._members.clear()
        self.host.close()
        if errors:
            raise errors[0]

    def visible(self) -> dict[str, Any]:
        """What a person wants to see: members, and what is waited for."""
        now = self.now()
        return {
            "members": [
                {"role": role, "id": member, "pid": self._members[role, member].pid, "incarnation": count}
                for (role, member), count in self._incarnations.items()
                if (role, member) in self._members
            ],
            "waits": [
                {"for": what, "waited_s": round(waited, 1), "left_s": round(left, 1)}
                for what, waited, left in self._waits.visible(now)
                if waited > 1.0
            ],
        }

    # ---- the loop -------------------------------------------------------------------------------------------------

    def _loop(self, done: Callable[[], bool]) -> None:
        next_tick = self.now() + TICK_S
        while not done():
            deadline = self._waits.next_deadline()
            until = next_tick if deadline is None else min(next_tick, deadline)
            self._take(max(0.0, until - self.now()))
            self._flush_scores()
            now = self.now()
            self._waits.expire(now)
            if now >= next_tick:
                next_tick = now + TICK_S
                self._watch(now)
                self._handle(c.Tick())
                for observer in self._observers:
                    observer.tick(now, self)

    def _take(self, timeout_s: float) -> None:
        """Handle what has arrived; wait for the first, not for more."""
        try:
            item = self._inbox.get(timeout=timeout_s)
            for _ in range(256):
                if isinstance(item, int):
                    self._waits.settle(item)
                else:
                    self._handle(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _handle(self, event: c.Event) -> None:
        assert self._controller is not None
        assert self._log is not None
        if self._controller.finished or self._controller.failure is not None:
            return  # between runs: members stay up, nobody decides
        now = self.now()
        self._log.append(now, event)
        commands = self._controller.handle(event, now)
        for observer in self._observers:
            observer.observe(now, event, commands, self._controller)
        for command in commands:
            self._carry_out(command)
        if isinstance(event, c.Stepped):
            self._inject()

    def _watch(self, now: float) -> None:
        for notice in self._heartbeats.check(now):
            role, _, member = notice.member.partition(" ")
            if isinstance(notice, Suspicion):
                self._handle(c.Suspect(role, member, notice.silent_s))
            elif isinstance(notice, Death):
                self._down(role, member, f"silent for {notice.silent_s:.0f} s")
        self._inject()

    def _inject(self) -> None:
        assert self._controller is not None
        self._struck += self._faults.due(self.now(), self._controller.learner.step)
        for fault in list(self._struck):  # one whose victim is not up yet strikes when it is
            named = {fault.member, f"r{fault.member}"}
            victims = [
                key for key in self._members if key[0] == fault.role and (fault.member is None or key[1] in named)
            ]
            if victims:
                self._struck.remove(fault)
                self._strike(victims[0], fault)

    def _strike(self, key: tuple[str, str], fault: Fault) -> None:
        """Injure a member as scripted. A relay's own process is hit, not the role that watches it."""
        member = self._members[key]
        if fault.kind is FaultKind.HANG and member.pid not in (None, os.getpid()):
            strike(member.pid, fault.kind)
        elif key[0] == RELAY:
            member.call("kill")
        else:
            member.kill()

    # ---- commands -------------------------------------------------------------------------------------------------

    def _carry_out(self, command: c.Command) -> None:
        match command:
            case c.Route():
                self._route(command)
            case c.Interrupt(replica=replica):
                self._tell(replica, "submit", command)
            case c.Pull(replica=replica):
                relay = self._relay_of(replica)
                if relay is None:
                    self._parked[replica] = command
                else:
                    self._tell(replica, "pull", command, relay)
            case c.Abort(trajectories=trajectories):
                for role, member in list(self._members):
                    if role == REPLICA:
                        self._tell(member, "submit", command)
                self._discard(trajectories)
            case c.Score(trajectories=trajectories):
                self._to_score += trajectories
            case c.Publish() | c.Checkpoint() | c.Accumulate() | c.Step():
                self._learner.put(command)
            case c.Start(role=role, id=member, seq=seq):
                self._start(role, member, seq, None)
            case c.Restart(role=role, id=member, seq=seq, version=version):
                self._start(role, member, seq, version)
            case c.Stop(role=role, id=member):
                self._members.pop((role, member)).close(self._deadlines.close_s)
            case _:
                pass

    def _route(self, command: c.Route) -> None:
        """What is being discarded may be begun anew once that is done, or the store would drop what it has just begun."""
        if any(ref.trajectory in self._discarding for ref in command.trajectories):
            self._held_back.append(command)
        else:
            self._tell(command.replica, "submit", command)

    def _discard(self, trajectories: Sequence[str]) -> None:
        self._discarding.update(trajectories)
        self._ask("data", "discard", list(trajectories), "aborted", then=lambda _: self._discarded(trajectories))

    def _discarded(self, trajectories: Sequence[str]) -> None:
        self._discarding.subtract(trajectories)
        self._discarding = +self._discarding
        routes, self._held_back = self._held_back, []
        for route in routes:
            self._route(route)

    def _tell(self, replica: str, method: str, *arguments: Any) -> None:
        member = self._members.get((REPLICA, replica))
        if member is None:
            return  # its Down is on the way
        self._waits.add(
            f"replica {replica} to take a command",
            self.now(),
            self._deadlines.start_s,
            member.call(method, *arguments),
            lambda _: None,
            lambda error: self._down(REPLICA, replica, str(error), member),
        )

    def _ask(
        self,
        role: str,
        method: str,
        *arguments: Any,
        timeout_s: float | None = None,
        then: Callable[[Any], None] = lambda _: None,
    ) -> None:
        member = self._members[role, "0"]
        self._waits.add(
            f"{role}: {method}",
            self.now(),
            timeout_s or self._deadlines.score_s,
            member.call(method, *arguments),
            then,
            lambda error: self._down(role, "0", str(error), member),
        )

    def _flush_scores(self) -> None:
        """All verifications that came together go as one call."""
        if not self._to_score:
            return
        names, self._to_score = self._to_score, []
        member = self._members["scorer", "0"]
        what = f"{len(names)} trajectories to be scored"
        self._waits.add(
            what,
            self.now(),
            self._deadlines.score_s,
            member.call("score", names),
            self._scored,
            lambda error: self._scoring_broke(names, error, member),
        )

    def _scored(self, outcomes: list[tuple[str, float | None, str]]) -> None:
        for name, reward, reason in outcomes:
            self._handle(c.Scored(name, reward) if reward is not None else c.ScoringFailed(name, reason))

    def _scoring_broke(self, names: Sequence[str], error: BaseException, member: Member) -> None:
        self._down("scorer", "0", str(error), member)
        for name in names:
            self._handle(c.ScoringFailed(name, str(error)))

    def _trainer_down(self, reason: str) -> None:
        self._down(TRAINER, "0", reason)

    # ---- members --------------------------------------------------------------------------------------------------

    def _start(self, role: str, member: str, seq: int, version: int | None) -> None:
        if (role, member) in self._members:  # it stayed up from a run before
            if role == REPLICA:
                self._tell(member, "adopt")
            self._handle(c.Up(role, member, answers=seq))
            return
        incarnation = self._incarnations.get((role, member), 0) + 1
        if role == REPLICA:
            started = self._spawn(role, member, self._deployment.replica_role(self.data, member, incarnation))
            self._await_up(role, member, started, seq, started.call("ready"))
        elif role == RELAY:
            started = self._spawn(role, member, self._deployment.relay_role(member))
            self._await_up(role, member, started, seq, started.call("address"))
        elif role == TRAINER:
            self._start_trainer(member, incarnation, seq, version)
        elif role == "scorer":
            started = self._spawn(role, member, self._deployment.scorer_role(self.data))
            self._await_up(role, member, started, seq, started.call("ready"))
        else:
            raise RoleError(f"found the role {role!r}, expected replica, relay, trainer or scorer")

    def _start_trainer(self, member: str, incarnation: int, seq: int, version: int | None) -> None:
        if version is not None or incarnation > 1:
            self._ask("data", "roll_back", version or 0)
        ranks = [
            self._spawn(
                TRAINER,
                member if rank == 0 else f"{member}.{rank}",
                self._deployment.trainer_role(self.data, rank, incarnation),
            )
            for rank in range(self._deployment.trainer_ranks)
        ]
        self._learner.begin(ranks)
        ready = together([rank.call("ready", version) for rank in ranks])
        self._await_up(TRAINER, member, ranks[0], seq, ready)

    def _spawn(self, role: str, member: str, spec: RoleSpec) -> Member:
        key = (role, member)
        self._incarnations[key] = self._incarnations.get(key, 0) + 1
        name = f"{role}-{member}-{self._incarnations[key]}"
        self._members[key] = self.host.spawn(name, spec.factory, spec.arguments, spec.placement)
        return self._members[key]

    def _await_up(self, role: str, member: str, started: Member, seq: int, ready: Future[Any]) -> None:
        def up(result: Any) -> None:
            if self._members.get((role, member)) is not started:
                return
            if role == RELAY:
                self._relays[member] = result
                self._rebuild_chain()
                parked, self._parked = self._parked, {}
                for pull in parked.values():
                    self._carry_out(pull)
            self._handle(c.Up(role, member, result[0] if role == TRAINER else None, answers=seq))
            if role in (REPLICA, TRAINER):
                self._heartbeats.expect(f"{role} {member}", self.now())
                self._poll(role, member, started)
            elif role == RELAY:
                self._poll_relay(member, started)
            if role == TRAINER:
                self._learner.came_up()
            self._learner.publish_to(self._relays.get("0"))

        self._waits.add(
            f"{role} {member} to come up",
            self.now(),
            self._deadlines.start_s,
            ready,
            up,
            lambda error: self._down(role, member, str(error), started),
        )

    def _poll(self, role: str, member: str, polled: Member) -> None:
        """Ask a member for its events, again and again. An answer is a heartbeat."""

        def answered(events: list[c.Event]) -> None:
            if self._members.get((role, member)) is not polled:
                return
            self._heartbeats.beat(f"{role} {member}", self.now())
            for event in events:
                self._handle(event)
            self._poll(role, member, polled)

        self._waits.add(
            f"events of {role} {member}",
            self.now(),
            self._deadlines.silent_s + POLL_S,
            polled.call("events", POLL_S),
            answered,
            lambda error: self._down(role, member, str(error), polled),
        )

    def _poll_relay(self, member: str, polled: Member) -> None:
        def answered(alive: bool) -> None:
            if self._members.get((RELAY, member)) is not polled:
                return
            if alive:
                self._poll_relay(member, polled)
            else:
                self._down(RELAY, member, "its process is gone", polled)

        self._waits.add(
            f"a sign of life of relay {member}",
            self.now(),
            self._deadlines.silent_s,
            polled.call("watch", 1.0),
            answered,
            lambda error: self._down(RELAY, member, str(error), polled),
        )

    def _down(self, role: str, member: str, reason: str, expected: Member | None = None) -> None:
        """A member is gone. Heard once: later news of the same one is ignored."""
        found = self._members.get((role, member))
        if found is None or (expected is not None and found is not expected):
            return
        del self._members[role, member]
        self._heartbeats.forget(f"{role} {member}")
        found.kill()
        self._parked.pop(member, None)
        self._held_back = [route for route in self._held_back if role != REPLICA or route.replica != member]
        if role == RELAY:
            self._relays.pop(member, None)
            self._learner.publish_to(self._relays.get("0"))
            self._rebuild_chain()
        elif role == TRAINER:
            for rank, other in enumerate(self._learner.ranks[1:], 1):
                self._members.pop((TRAINER, f"{member}.{rank}"), None)
                other.kill()
            self._learner.begin([])
        first_line = reason.strip().splitlines()[0] if reason.strip() else "no reason given"
        self._handle(c.Down(role, member, first_line))

    def _relay_of(self, replica: str) -> Any:
        """A relay of the replica's node, else any; with several to choose from, replicas are spread over them."""
        node = self._node_of((REPLICA, replica))
        near = [relay for relay in sorted(self._relays) if self._node_of((RELAY, relay)) == node]
        relays = near or sorted(self._relays)
        return self._relays[relays[int(replica.lstrip("r")) % len(relays)]] if relays else None

    def _node_of(self, key: tuple[str, str]) -> str | None:
        return self._members[key].node if key in self._members else None

    def _rebuild_chain(self) -> None:
        """The relays that live form one chain behind the master."""
        master = self._members.get((RELAY, "0"))
        if master is None or "0" not in self._relays:
            return
        rest = [self._relays[node] for node in sorted(self._relays) if node != "0"]
        if rest or self._deployment.relays > 1:
            self._waits.add(
                "the relays to form a chain",
                self.now(),
                self._deadlines.publish_s,
                master.call("set_chain", rest),
                lambda _: None,
                lambda error: self._down(RELAY, "0", str(error), master),
            )
