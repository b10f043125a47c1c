"""Faults on a schedule: which member is killed, hung, stalled or raises, when, and in which phase. Pure, so all hosts share it.

A fault is written ``[KIND:]ROLE[:MEMBER]@WHEN``, where WHEN is seconds of the run or a step of the trainer, with the phase
in which the member is struck if that matters, or ``everyN``, at random once in N steps:

    replica@60s   replica:1@60s:decode   trainer@step20:backward   trainer@every10   hang:relay@60s   stall:replica@60s
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tailrace.faulttol.errors import FaultError
from tailrace.faulttol.recovery import ROLES

CONTROLLER, MACHINE = "controller", "machine"
STRUCK_ROLES = (*ROLES, CONTROLLER, MACHINE)
"""Roles that a fault may name: those of members, the process that decides, and a machine with all that runs there."""
PHASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trainer": (
            "fetch",
            "forward",
            "backward",
            "optimizer",
            "checkpoint",
            "publish",
            "load",
            "offload",
            "onload",
        ),
        "replica": ("prefill", "decode", "pull", "sleep", "wake"),
        "environment": ("tool",),
    }
)
"""Phases in which a member of a role can be struck."""
LOAD = "load"
"""The phase of a trainer that only one passes which is restarted from a checkpoint."""
LENDING = frozenset({"offload", "onload", "sleep", "wake"})
"""Phases that only members pass whose devices change hands between replicas and trainer."""
WORKER = "worker"
"""Instead of an environment's id, or behind it and a dot: one of the worker processes in which its sessions live."""
_FORM = re.compile(
    r"(?:(?P<kind>kill|hang|stall|raise):)?(?P<role>[a-z-]+)(?::(?P<member>[^\s:@]+))?"
    r"@(?:(?P<seconds>\d+(?:\.\d+)?)s|step(?P<step>\d{1,18})|every(?P<every>\d{1,18}))(?::(?P<phase>[a-z]+))?",
    re.ASCII,
)


class FaultKind(StrEnum):
    """What happens to a member.

    KILL: its process is gone.
    HANG: its process lives and answers nothing.
    STALL: its engine stands still while its process lives and answers. Only a replica has an engine.
    RAISE: an exception that nobody handles is raised in its code.
    """

    KILL = "kill"
    HANG = "hang"
    STALL = "stall"
    RAISE = "raise"

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that causes this in a process; None for what happens inside one."""
        return {FaultKind.KILL: signal.SIGKILL, FaultKind.HANG: signal.SIGSTOP}.get(self)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject: at a time, at a step, or at random once in so many steps.

    Args:
        kind: what happens.
        role: the role of the member that fails.
        member: the member's id; None leaves the choice to whoever injects.
        at_s: seconds since the run began.
        at_step: the trainer's version.
        every: steps among which one is drawn, again and again; see `at_steps`.
        phase: the member stops when it next reaches this phase, and is struck there; empty: wherever it is.

    Raises:
        FaultError: not one of `at_s`, `at_step` and `every` is given, one is out of its range, the role has no engine to stall,
            or it has no such phase.
    """

    kind: FaultKind
    role: str
    member: str | None = None
    at_s: float | None = None
    at_step: int | None = None
    every: int | None = None
    phase: str = ""

    def __post_init__(self) -> None:
        times = f"at_s={self.at_s!r}, at_step={self.at_step!r} and every={self.every!r}"
        if sum(time is not None for time in (self.at_s, self.at_step, self.every)) != 1:
            raise FaultError(f"found {times}, expected one of the three")
        if (
            not 0 <= (self.at_s or 0) < math.inf
            or (self.at_step or 0) < 0
            or (self.every is not None and self.every < 1)
        ):
            raise FaultError(f"found {times}, expected at least 0 seconds or steps, or every 1 step")
        if self.kind is FaultKind.STALL and self.role != "replica":
            raise FaultError(
                f"found the fault '{self}', expected stall:replica: only a replica has an engine that can stand still; "
                "hang stops a whole process of any role"
            )
        if self.phase:
            self._check_phase()
        if self.worker is not None and self.kind not in (FaultKind.KILL, FaultKind.HANG):
            raise FaultError(f"found the fault '{self}', expected kill or hang: a worker is a process")

    def _check_phase(self) -> None:
        phases = PHASES.get(self.role, ())
        if not phases:
            known = ", ".join(PHASES)
            raise FaultError(f"found the fault '{self}', expected no phase: only those of {known} are known")
        if self.phase not in phases:
            raise FaultError(
                f"found the phase {self.phase!r} of a {self.role} in the fault '{self}', expected one of "
                f"{', '.join(phases)}"
            )
        if self.every is not None:
            raise FaultError(
                f"found the phase {self.phase!r} in the fault '{self}', expected none: with every, it is drawn too"
            )

    @property
    def worker(self) -> str | None:
        """The environment of which a worker process is struck, empty for any; None if this is about no worker process."""
        if self.role != "environment" or self.member is None:
            return None
        environment, _, name = self.member.rpartition(".")
        return environment if name == WORKER else None

    def __str__(self) -> str:
        kind = "" if self.kind is FaultKind.KILL else f"{self.kind}:"
        member = "" if self.member is None else f":{self.member}"
        if self.at_s is not None:
            when = f"{self.at_s:f}".rstrip("0").rstrip(".") + "s"
        else:
            when = f"every{self.every}" if self.at_step is None else f"step{self.at_step}"
        return f"{kind}{self.role}{member}@{when}" + (f":{self.phase}" if self.phase else "")


def parse_fault(text: str) -> Fault:
    """Read a fault such as ``"hang:replica:1@60s"``.

    Raises:
        FaultError: the text does not describe a fault.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise FaultError(
            f"found the fault {text!r}, expected ROLE[:MEMBER]@SECONDSs, @stepN or @everyN, for example replica:1@60s, "
            "trainer@step20:backward or trainer@every10, and in front of it kill:, hang:, stall:, raise: or nothing, which is "
            "kill:"
        )
    role = found["role"]
    if role not in STRUCK_ROLES:
        raise FaultError(f"found the role {role!r} in the fault {text!r}, expected one of {', '.join(STRUCK_ROLES)}")
    return Fault(
        kind=FaultKind(found["kind"] or "kill"),
        role=role,
        member=found["member"],
        at_s=None if found["seconds"] is None else float(found["seconds"]),
        at_step=None if found["step"] is None else int(found["step"]),
        every=None if found["every"] is None else int(found["every"]),
        phase=found["phase"] or "",
    )


class FaultSchedule:
    """Faults that wait for their time.

    Args:
        faults: the faults; those due at the same moment happen in this order. One with `every` is never due: see `at_steps`.
        further: faults at ever later seconds, perhaps without end.
    """

    def __init__(self, faults: Iterable[Fault], further: Iterable[Fault] = ()) -> None:
        self._pending = list(faults)
        self._further: Iterator[Fault] = iter(further)
        self._next = next(self._further, None)

    @property
    def pending(self) -> tuple[Fault, ...]:
        """Faults that have not been due yet; of the further ones the next."""
        return (*self._pending, *(() if self._next is None else (self._next,)))

    def due(self, now_s: float, step: int) -> list[Fault]:
        """Faults whose time has come, each once.

        Args:
            now_s: seconds since the run began.
            step: the trainer's version.
        """
        ready = [fault for fault in self._pending if _is_due(fault, now_s, step)]
        self._pending = [fault for fault in self._pending if not _is_due(fault, now_s, step)]
        while self._next is not None and _is_due(self._next, now_s, step):
            ready.append(self._next)
            self._next = next(self._further, None)
        return ready


def _is_due(fault: Fault, now_s: float, step: int) -> bool:
    if fault.at_s is not None:
        return now_s >= fault.at_s
    return fault.at_step is not None and step >= fault.at_step


def strike(pid: int, kind: FaultKind) -> bool:
    """Kill or hang a process.

    Returns:
        Whether the process existed.

    Raises:
        ValueError: `pid` is not above 1 (zero and negative numbers mean whole process groups), or no signal causes a fault
            of this kind.
        PermissionError: the process belongs to another user.
    """
    if pid <= 1:
        raise ValueError(f"found process id {pid}, expected one above 1")
    if kind.signal is None:
        raise ValueError(f"found {str(kind)!r}, expected kill or hang: no signal does it")
    try:
        os.kill(pid, kind.signal)
    except ProcessLookupError:
        return False
    return True
