"""What became of every fault that was injected, and which of the scripted ones never struck. Folded from the event log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tailrace import contracts as c
from tailrace.faulttol import CONTROLLER, Fault
from tailrace.pipeline.run.eventlog import Instant


@dataclass(slots=True)
class InjectedFault:
    """A fault that struck. Times in seconds on the run's clock; None for what did not happen before the run's end.

    Args:
        fault: as it was written.
        machine: of the member, empty where it is unknown.
        step: batches that were trained on when it struck.
        detected_s: when the member was known to be down.
        serving_s: when its successor was up, or the driver's had taken over.
        action: restart, evict, fail or resume; empty while nothing was decided.
        reason: why the member was taken for down.
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
        """As keys of ``summary.json``."""
        return {"faults": [asdict(fault) for fault in self.struck], "faults_not_struck": self.not_struck}


def fault_figures(log: Iterable[Instant], scripted: Iterable[Fault] = ()) -> FaultFigures:
    """The faults of a log.

    Args:
        log: its instants.
        scripted: the faults that were to strike.
    """
    fold = _Fold()
    for instant in log:
        fold.take(instant)
    missing = Counter(map(str, scripted)) - Counter(fault.fault for fault in fold.struck)
    return FaultFigures(fold.struck, sorted(missing.elements()))


class _Fold:
    def __init__(self) -> None:
        self.struck: list[InjectedFault] = []
        self._machines: dict[tuple[str, str], str] = {}
        self._step = 0

    def take(self, instant: Instant) -> None:
        now = round(instant.now, 3)
        for event in instant.events:
            match event:
                case c.Stepped(version=version):
                    self._step = version
                case c.Struck(role=role, id=id_, kind=kind, phase=phase, fault=fault):
                    machine = self._machines.get((role, id_.partition(".")[0]), "")
                    self.struck.append(InjectedFault(fault, role, id_, machine, phase, self._step, kind, now))
                case c.Down(role=role, id=id_, cause=cause, reason=reason) if cause is not c.Cause.STOPPED:
                    for one in self._open(role, id_):
                        one.detected_s, one.reason = now, reason
                case c.Up(role=role, id=id_, machine=machine):
                    self._machines[role, id_] = machine
                    for one in self._unserved(role, id_):
                        one.serving_s = now
                case c.Resumed():
                    for one in self._open(CONTROLLER, "0"):
                        one.detected_s = one.serving_s = now
                        one.action = "resume"
                case _:
                    pass
        for command in instant.commands:
            self._decided(command, now)

    def _decided(self, command: c.Command, now: float) -> None:
        match command:
            case c.Restart(role=role, id=id_, reason=reason) | c.Stop(role=role, id=id_, reason=reason):
                for one in self._unserved(role, id_, decided=False):
                    one.action = "restart" if isinstance(command, c.Restart) else "evict"
                    if one.detected_s is None:  # the controller took it for down by itself
                        one.detected_s, one.reason = now, str(reason.why)
            case c.Fail():
                for one in self.struck:
                    if one.detected_s == now and not one.action:
                        one.action = "fail"
            case _:
                pass

    def _open(self, role: str, id_: str) -> Iterator[InjectedFault]:
        """Faults of a member that nobody has noticed yet."""
        return (one for one in self.struck if (one.role, one.member) == (role, id_) and one.detected_s is None)

    def _unserved(self, role: str, id_: str, *, decided: bool = True) -> Iterator[InjectedFault]:
        """Faults of a member that nobody has taken the place of yet; with `decided`, that are noticed."""
        for one in self.struck:
            waits = one.serving_s is None and (one.detected_s is not None) >= decided
            if (one.role, one.member) == (role, id_) and waits and (decided or not one.action):
                yield one
