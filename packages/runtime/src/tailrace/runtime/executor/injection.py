"""Injects faults, on any host: into whichever members fit, wherever they are or in a phase, and into the driver itself.

due ──► a member that fits is up ──► struck
              └─ in a phase: `stop_at` ──► it waits there ──► struck        it dies before: the next one is waited for
                 (before it is given its first command)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tailrace import contracts as c
from tailrace.faulttol import CONTROLLER, Fault, FaultKind, FaultSchedule
from tailrace.faulttol.injection import LOAD, MACHINE, WORKER
from tailrace.runtime.executor.doors import EnvironmentCalls, StopCalls, ask
from tailrace.runtime.executor.running import Running
from tailrace.runtime.executor.seam import MemberDeadError
from tailrace.runtime.executor.waits import Waits

_LOOK_S = 5.0
"""How long a member may take to say that it is not in the phase yet, in seconds; then it is asked again."""


class Injection:
    """Strikes members by a script. A member that is not up when its fault is due is struck once it is up.

    `fatal` is how the driver itself is to be struck, once the event that says so is in the log.

    Args:
        schedule: the script.
        waits: the executor's waits.
        now: seconds on the run's clock.
        tell: takes a `Struck` for each fault.
        strike_machine: see `Host`.
    """

    def __init__(
        self,
        schedule: FaultSchedule,
        waits: Waits,
        now: Callable[[], float],
        tell: Callable[[c.Event], None],
        strike_machine: Callable[[str | None], str | None],
    ) -> None:
        self._strike_machine = strike_machine
        self._schedule, self._waits, self._now, self._tell = schedule, waits, now, tell
        self._due: list[Fault] = []
        self._awaited: dict[Running, Fault] = {}
        self.fatal: FaultKind | None = None

    @property
    def pending(self) -> bool:
        """Whether a fault is still to be injected, but for those that wait for a phase."""
        return bool(self._due or self._schedule.pending)

    def strikes_while_loading(self, role: str, step: int) -> bool:
        """Whether a fault is due that strikes a member of a role while it loads a checkpoint."""
        self._due += self._schedule.due(self._now(), step)
        return any(fault.role == role and fault.phase == LOAD for fault in self._due)

    def inject(self, now: float, step: int, members: Iterable[Running]) -> None:
        """Inject the faults that are due.

        Args:
            now: seconds on the run's clock.
            step: number of batches trained on.
            members: the running members.
        """
        self._inject(now, step, members, lambda _: True)

    def came_up(self, now: float, step: int, members: Iterable[Running]) -> None:
        """Inject what is due for members at a phase or a step. Called before those that came up are given anything to do.

        A member passes a phase such as "pull" as soon as it is up, perhaps for the only time, and a short step is over before
        the next instant at which others are injected.
        """
        self._inject(now, step, members, lambda fault: bool(fault.phase) or fault.at_step is not None)

    def _inject(self, now: float, step: int, members: Iterable[Running], takes: Callable[[Fault], bool]) -> None:
        self._due += self._schedule.due(now, step)
        alive = [running for running in members if running not in self._awaited]
        for fault in filter(takes, list(self._due)):
            if fault.role == CONTROLLER:
                self._due.remove(fault)
                self.fatal = fault.kind
                self._told(fault, "0")
                continue
            if fault.role == MACHINE:
                self._due.remove(fault)
                struck = self._strike_machine(fault.member)
                if struck is not None:
                    self._told(fault, struck)
                continue
            fits = [running for running in alive if _fits(fault, running)]
            if fits:
                self._due.remove(fault)
                alive.remove(fits[0])
                self._take(fits[0], fault)

    def _take(self, running: Running, fault: Fault) -> None:
        if not fault.phase and fault.worker is None:
            self._strike(running, fault)
            return
        self._awaited[running] = fault
        if fault.worker is None:
            answer = ask(running.member, StopCalls.stop_at, fault.phase, _LOOK_S)
        else:
            answer = ask(running.member, EnvironmentCalls.strike_worker, (fault.kind, fault.phase), _LOOK_S)
        self._waits.add(
            f"{running} to reach its phase {fault.phase}",
            self._now(),
            math.inf,
            answer,
            partial(self._looked, running, fault),
            partial(self._gone, running, fault),
        )

    def _looked(self, running: Running, fault: Fault, reached: Any) -> None:
        del self._awaited[running]
        if not reached and not (running.up or running.loads):
            self._due.append(fault)  # it is being ended
        elif not reached:
            self._take(running, fault)
        elif fault.worker is not None:
            self._told(fault, f"{running.leader}.{WORKER}")
        else:
            self._strike(running, fault)

    def _gone(self, running: Running, fault: Fault, error: BaseException) -> None:
        del self._awaited[running]
        if isinstance(error, MemberDeadError):
            self._due.append(fault)  # otherwise the role has no such phase, and the fault did not strike

    def _strike(self, running: Running, fault: Fault) -> None:
        running.member.strike(fault.kind)
        self._told(fault, running.leader)

    def _told(self, fault: Fault, member: str) -> None:
        self._tell(c.Struck(fault.role, member, str(fault.kind), fault.phase, str(fault)))


def _fits(fault: Fault, running: Running) -> bool:
    if running.role != fault.role or (not running.loads if fault.phase == LOAD else not running.up):
        return False
    if fault.worker is not None:
        return fault.worker in ("", running.id)
    return fault.member is None or running.id in (fault.member, f"r{fault.member}")
