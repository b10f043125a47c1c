"""A host whose members do what a test says, a clock that a test moves, and a controller that a test decides for."""

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

from tailrace import contracts as c
from tailrace.runtime.executor.deployment import Deadlines, Deployment
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.roster import Roster
from tailrace.runtime.executor.seam import RoleSpec

ROLES = ("data", "scorer", "relay", "trainer", "replica", "ranker", "environment")
LIMITS = Deadlines(
    start_s=20.0,
    step_s=30.0,
    publish_s=40.0,
    save_s=85.0,
    pull_s=50.0,
    hand_over_s=55.0,
    score_s=60.0,
    suspect_s=5.0,
    close_s=3.0,
    predict_s=70.0,
    call_s=80.0,
)


class Time:
    """Moves to what is asked for, when nothing has arrived."""

    def __init__(self):
        self.s, self.arrived = 0.0, []

    def now(self):
        return self.s

    def wake(self, number):
        self.arrived.append(number)

    def wait(self, until_s):
        if not self.arrived:
            self.s = max(self.s, until_s)
        arrived, self.arrived = self.arrived, []
        return arrived


class Told:
    """A member: what it was called, each call with its future."""

    pid, machine, seat = 4711, "m0", c.ProcessSeat("m0")

    def __init__(self, host, key, incarnation, place, arguments):
        self.host, self.key, self.incarnation, self.place, self.arguments = host, key, incarnation, place, arguments
        self.calls, self.struck, self.killed, self.news = [], [], False, []
        self.ready, self.silent, self.number = Ready(), False, 0

    def call(self, method, *arguments):
        future = Future()
        self.calls.append((method, arguments, future))
        if method == "ready" and self.host.comes_up:
            future.set_result(self.ready)
        if method == "adopt":
            future.set_result(None)
        return future

    def under_way(self, method):
        """Calls that were not answered."""
        return [(arguments, future) for name, arguments, future in self.calls if name == method and not future.done()]

    def told(self):
        """Commands that it was handed, call by call."""
        return [list(arguments[0]) for name, arguments, _ in self.calls if name == "submit"]

    def takes(self):
        """It has taken what it was handed."""
        for _, future in self.under_way("submit"):
            future.set_result(None)

    def says(self, *events):
        """It answers the question for its events."""
        self.number += len(events)
        self.under_way("events")[0][1].set_result((self.number, list(events)))

    def breaks(self, error):
        """It answers that question with an error."""
        self.under_way("events")[0][1].set_exception(error)

    def strike(self, kind):
        self.struck.append(kind)

    def kill(self):
        self.killed = True

    def close(self, timeout_s):
        self.calls.append(("close", (timeout_s,), None))


class ScriptedHost:
    poll_s, tick_s, epoch = 1.0, 1.0, 1

    def __init__(self):
        self.time, self.comes_up = Time(), True
        self.spawned, self.members, self.driver_struck = [], {}, []
        self.told = {}

    def spawn(self, role, id_, incarnation, spec, place):
        member = Told(self, (role, id_), incarnation, place, dict(spec.arguments))
        self.spawned.append(member)
        self.members[role, id_] = member
        return member

    def find(self, role, id_, incarnation, spec=None):
        self.told[role, id_] = spec
        member = self.members.get((role, id_))
        found = member is not None and member.incarnation == incarnation and not member.killed
        return member if found else None

    def caller(self, role, id_="0"):
        return f"caller of {role} {id_}"

    def strike_machine(self, name):
        return None

    def strike_driver(self, kind):
        self.driver_struck.append(kind)

    def close(self):
        self.spawned.append("closed")


class Deciding:
    """Stands for a controller: gives the commands that a test put into `next`, and remembers what it heard."""

    def __init__(self):
        self.heard, self.next, self.over, self.failure = [], [], False, None
        self.view = SimpleNamespace(step=0)

    def handle_all(self, events, now):
        self.heard.append((now, list(events)))
        commands, self.next = self.next, []
        return commands

    def news(self):
        """What it heard but ticks, since the last time."""
        found = [event for _, events in self.heard for event in events if not isinstance(event, c.Tick)]
        self.heard.clear()
        return found


class Log:
    def __init__(self):
        self.instants, self.heard = [], []

    def append(self, now, events, commands, heard):
        self.instants.append((now, list(events), list(commands)))
        self.heard.append(dict(heard))

    def check(self):
        pass


class Driven:
    """An executor that a test drives instant by instant."""

    def __init__(self, *, ranks=1, observers=(), faults=()):
        self.host, self.controller, self.log = ScriptedHost(), Deciding(), Log()
        roles = {role: RoleSpec(object) for role in ROLES}
        deployment = Deployment("test", "token", roles, trainer_ranks=ranks, deadlines=LIMITS, adopting_held=Path("x"))
        self.executor = Executor(self.host, deployment, observers=observers)
        self.executor.run(self.controller, self.log, faults=faults, until=lambda: True)
        self.controller.news()

    def member(self, role, id_="0"):
        return self.host.members[role, id_]

    def give(self, *commands):
        """The controller gives these at the next instant, and it is handled."""
        self.controller.next = list(commands)
        self.executor._news.append(c.Tick())
        self.settle()

    def settle(self):
        """Handle what has arrived, at the same time."""
        self.executor._loop(lambda: not (self.host.time.arrived or self.executor._news))

    def pass_time(self, seconds):
        """Time passes; members that are not silent answer polls meanwhile."""
        end = self.host.time.s + seconds
        while self.host.time.s < end:
            for member in list(self.host.members.values()):
                if not member.killed and not member.silent and member.under_way("events"):
                    member.says()
            self.settle()
            self.executor._loop(iter([False, True]).__next__)

    def replaced(self):
        """The controller dies, and another executor attaches to its members with what the log says."""
        roster = Roster()
        for (_, events, commands), heard in zip(self.log.instants, self.log.heard, strict=True):
            roster.note(events, commands, heard)
        for member in self.host.members.values():  # nobody hears what it answers to the dead one's question
            member.calls = [call for call in member.calls if call[0] != "events"]
        self.host.epoch += 1
        self.executor = Executor(self.host, self.executor.deployment)
        first = c.Attached(self.host.epoch)
        self.executor.run(self.controller, self.log, first=first, attached=roster, until=lambda: True)

    def up(self, *members):
        """Start these and return them."""
        self.give(*(c.Start(9_000 + i, role, id_) for i, (role, id_) in enumerate(members)))
        self.settle()
        self.controller.news()
        return [self.member(*key) for key in members]
