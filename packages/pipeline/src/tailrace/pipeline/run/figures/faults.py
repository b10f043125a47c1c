"""What became of every fault that was injected, and which of the scripted ones never struck. Folded from the event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tailrace import contracts as c
from tailrace.faulttol import CONTROLLER, Fault
from tailrace.faulttol.injection import MACHINE
from tailrace.runtime.executor.deployment import REPLICA, TRAINER


@dataclass(slots=True)
class InjectedFault:
    """A fault that struck. Times in seconds on the run's clock; None for what did not happen before the run's end.

    Args:
        fault: as it was written.
        machine: of the member, empty where it is unknown; for the role ``machine`` the one that was struck.
        step: batches that were trained on when it struck.
        detected_s: when the member was known to be down.
        serving_s: when its successor was up, or the driver's had taken over; for a machine, when all its members were up
            elsewhere.
        action: restart, evict, fail, resume or attach, for a machine evict-machine or standby; empty while nothing was decided.
        reason: why the member was taken for down.
        stages: seconds of each stage of the member's return, for a machine of the trainer's that stood there, as far as known:
            ``detect``, those of `Up`, and ``reconnect``, until a replica has pulled weights, or the trainer is given a batch.
    """

    fault: str
    role: str
    member: str
    machine: str
    phase: str
    step: int
    kind: str
    struck_s: float
    detected_s: float | None = None
    serving_s: float | None = None
    action: str = ""
    reason: str = ""
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class FaultFigures:
    """The faults of a run.

    Args:
        struck: in the order in which they struck.
        not_struck: those that were scripted and did not strike, as they were written.
    """

    struck: list[InjectedFault] = field(default_factory=list)
    not_struck: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """The figures as keys of ``summary.json``."""
        return {"faults": [asdict(fault) for fault in self.struck], "faults_not_struck": self.not_struck}


class FaultFold:
    """Follows faults through a log, instant by instant."""

    def __init__(self) -> None:
        self._struck: list[InjectedFault] = []
        self._machines: dict[tuple[str, str], str] = {}
        self._homeless: dict[str, set[tuple[str, str]]] = {}  # members of a machine that was struck
        self._step = 0
        # Batches trained on when the trainer had a version: one that is published anew has a newer number.
        self._batches = {0: 0}
        self._returned: dict[tuple[str, str], tuple[float, list[InjectedFault]]] = {}  # since when, and not at work yet

    @property
    def hears(self) -> dict[type, Callable[[float, Any], None]]:
        """The events and commands that it follows: each is taken with its time, in seconds on the run's clock."""
        return {
            c.Stepped: self._stepped,
            c.Struck: self._strikes,
            c.Down: self._down,
            c.Up: self._up,
            c.Resumed: self._resumed,
            c.Attached: self._resumed,
            c.Restart: self._replaced,
            c.Stop: self._replaced,
            c.Fail: self._failed,
            c.Pulled: self._pulled,
            c.Checkpoint: self._saves,
            c.Step: self._given,
            c.Accumulate: self._given,
        }

    def figures(self, scripted: Iterable[Fault] = ()) -> FaultFigures:
        """What was found so far.

        Args:
            scripted: the faults that were to strike.
        """
        missing = Counter(map(str, scripted)) - Counter(fault.fault for fault in self._struck)
        return FaultFigures(list(self._struck), sorted(missing.elements()))

    def left(self, scripted: Iterable[Fault]) -> list[Fault]:
        """The scripted faults that have not struck yet, in their order. Of equal ones the first struck."""
        struck = Counter(fault.fault for fault in self._struck)
        found = []
        for fault in scripted:
            if struck[str(fault)]:
                struck[str(fault)] -= 1
            else:
                found.append(fault)
        return found

    def _stepped(self, now: float, event: c.Stepped) -> None:
        del now
        self._step += 1
        self._batches[event.version] = self._step

    def _saves(self, now: float, command: c.Checkpoint) -> None:
        del now
        self._batches.setdefault(command.version, self._step)

    def _strikes(self, now: float, event: c.Struck) -> None:
        machine = self._machines.get((event.role, event.id.partition(".")[0]), "")
        if event.role == MACHINE:
            machine = event.id
            self._homeless[machine] = {member for member, where in self._machines.items() if where == machine}
        fault = InjectedFault(
            event.fault, event.role, event.id, machine, event.phase, self._step, event.kind, round(now, 3)
        )
        self._struck.append(fault)

    def _down(self, now: float, event: c.Down) -> None:
        if event.cause is not c.Cause.STOPPED:
            for one in self._open(event.role, event.id):
                one.detected_s, one.reason = round(now, 3), event.reason
            if event.cause is c.Cause.MACHINE:
                for one in self._open(MACHINE, event.machine):
                    one.detected_s, one.reason, one.action = round(now, 3), event.reason, "evict-machine"

    def _up(self, now: float, event: c.Up) -> None:
        self._machines[event.role, event.id] = event.machine
        key = event.role, event.id
        if event.role == TRAINER:
            self._step = self._batches.get(event.version or 0, self._step)
        returned = list(self._unserved(*key))
        for one in returned:
            one.serving_s = round(now, 3)
        for machine in [name for name, members in self._homeless.items() if key in members]:
            returned += self._unserved(MACHINE, machine) if event.role == TRAINER else ()
            self._homeless[machine].discard(key)
            self._settles(machine, now)
        for one in returned:
            assert one.detected_s is not None  # as all of `_unserved`
            one.stages = {"detect": round(one.detected_s - one.struck_s, 3), **event.took}
        self._returned[key] = now, returned

    def _pulled(self, now: float, event: c.Pulled) -> None:
        self._works(REPLICA, event.replica, now)

    def _given(self, now: float, command: c.Step | c.Accumulate) -> None:
        del command
        self._works(TRAINER, "0", now)

    def _works(self, role: str, id_: str, now: float) -> None:
        since_s, returned = self._returned.pop((role, id_), (now, []))
        for one in returned:
            one.stages["reconnect"] = round(now - since_s, 3)

    def _settles(self, machine: str, now: float) -> None:
        """One of a machine's members is up elsewhere, or will not be: if it was the last one, the machine is not missed."""
        if not self._homeless[machine]:
            del self._homeless[machine]
            for one in self._unserved(MACHINE, machine):
                one.serving_s = round(now, 3)

    def _resumed(self, now: float, event: c.Resumed | c.Attached) -> None:
        for one in self._open(CONTROLLER, "0"):
            one.detected_s = one.serving_s = round(now, 3)
            one.action = "resume" if isinstance(event, c.Resumed) else "attach"

    def _replaced(self, now: float, command: c.Restart | c.Stop) -> None:
        self._stands_in(now, command)
        for one in self._unserved(command.role, command.id, decided=False):
            one.action = "restart" if isinstance(command, c.Restart) else "evict"
            if one.detected_s is None:  # the controller took it for down by itself
                one.detected_s, one.reason = round(now, 3), str(command.reason.why)

    def _stands_in(self, now: float, command: c.Restart | c.Stop) -> None:
        if command.reason.why is c.Why.STANDBY:
            for one in self._struck:
                if one.role == MACHINE and one.detected_s == round(now, 3):
                    one.action = "standby"

    def _failed(self, now: float, command: c.Fail) -> None:
        del command
        for one in self._struck:
            if one.detected_s == round(now, 3) and not one.action:
                one.action = "fail"

    def _open(self, role: str, id_: str) -> Iterator[InjectedFault]:
        """Faults of a member that nobody has noticed yet."""
        return (one for one in self._struck if (one.role, one.member) == (role, id_) and one.detected_s is None)

    def _unserved(self, role: str, id_: str, *, decided: bool = True) -> Iterator[InjectedFault]:
        """Faults of a member that nobody has taken the place of yet: with `decided` those that are noticed, else those whose
        action is open."""
        for one in self._struck:
            waits = one.detected_s is not None if decided else not one.action
            if waits and (one.role, one.member) == (role, id_) and one.serving_s is None:
                yield one
