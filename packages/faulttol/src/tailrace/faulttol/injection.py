"""Faults on a schedule: which member is killed, hung or stalled, and when. Pure, so all hosts share it.

A fault is written ``[KIND:]ROLE[:MEMBER]@WHEN``, where WHEN is seconds of the run or a step of the trainer:

    replica@60s   replica:1@60s   trainer@step20   hang:relay@60s   stall:replica@60s
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from tailrace.faulttol.errors import FaultError
from tailrace.faulttol.recovery import ROLES

_FORM = re.compile(
    r"(?:(?P<kind>kill|hang|stall):)?(?P<role>[a-z-]+)(?::(?P<member>[^\s:@]+))?"
    r"@(?:(?P<seconds>\d+(?:\.\d+)?)s|step(?P<step>\d+))",
    re.ASCII,
)


class FaultKind(StrEnum):
    """What happens to a member.

    KILL: its process is gone.
    HANG: its process lives and answers nothing.
    STALL: its engine stands still while its process lives and answers. Only a replica has an engine.
    """

    KILL = "kill"
    HANG = "hang"
    STALL = "stall"

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that causes this in a process; None for a stall, which happens inside one."""
        return {FaultKind.KILL: signal.SIGKILL, FaultKind.HANG: signal.SIGSTOP}.get(self)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject, either at a time or at a step.

    Args:
        kind: what happens.
        role: the role of the member that fails.
        member: the member's id; None leaves the choice to whoever injects.
        at_s: seconds since the run began.
        at_step: the trainer's version.

    Raises:
        FaultError: neither or both of `at_s` and `at_step` are given, one is negative, or a role without engine stalls.
    """

    kind: FaultKind
    role: str
    member: str | None = None
    at_s: float | None = None
    at_step: int | None = None

    def __post_init__(self) -> None:
        if (self.at_s is None) == (self.at_step is None):
            raise FaultError(f"found at_s={self.at_s!r} and at_step={self.at_step!r}, expected one of the two")
        if (self.at_s or 0) < 0 or (self.at_step or 0) < 0:
            raise FaultError(f"found at_s={self.at_s!r} and at_step={self.at_step!r}, expected at least 0")
        if self.kind is FaultKind.STALL and self.role != "replica":
            raise FaultError(
                f"found the fault '{self}', expected stall:replica: only a replica has an engine that can stand still; "
                "hang stops a whole process of any role"
            )

    def __str__(self) -> str:
        kind = "" if self.kind is FaultKind.KILL else f"{self.kind}:"
        member = "" if self.member is None else f":{self.member}"
        when = f"step{self.at_step}" if self.at_s is None else f"{self.at_s:f}".rstrip("0").rstrip(".") + "s"
        return f"{kind}{self.role}{member}@{when}"


def parse_fault(text: str) -> Fault:
    """Read a fault such as ``"hang:replica:1@60s"``.

    Raises:
        FaultError: the text does not describe a fault.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise FaultError(
            f"found the fault {text!r}, expected ROLE[:MEMBER]@SECONDSs or ROLE[:MEMBER]@stepN, for example replica:1@60s "
            "or trainer@step20, and in front of it kill:, hang:, stall: or nothing, which is kill:"
        )
    role = found["role"]
    if role not in ROLES:
        raise FaultError(f"found the role {role!r} in the fault {text!r}, expected one of {', '.join(ROLES)}")
    return Fault(
        kind=FaultKind(found["kind"] or "kill"),
        role=role,
        member=found["member"],
        at_s=None if found["seconds"] is None else float(found["seconds"]),
        at_step=None if found["step"] is None else int(found["step"]),
    )


class FaultSchedule:
    """Faults that wait for their time.

    Args:
        faults: the faults; those due at the same moment happen in this order.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._pending = list(faults)

    @property
    def pending(self) -> tuple[Fault, ...]:
        """Faults that have not been due yet."""
        return tuple(self._pending)

    def due(self, now_s: float, step: int) -> list[Fault]:
        """Faults whose time has come, each once.

        Args:
            now_s: seconds since the run began.
            step: the trainer's version.
        """
        ready = [fault for fault in self._pending if _is_due(fault, now_s, step)]
        self._pending = [fault for fault in self._pending if not _is_due(fault, now_s, step)]
        return ready


def _is_due(fault: Fault, now_s: float, step: int) -> bool:
    if fault.at_s is not None:
        return now_s >= fault.at_s
    return fault.at_step is not None and step >= fault.at_step
