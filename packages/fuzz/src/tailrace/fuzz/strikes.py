"""When the faults of a case strike, and what each does to a simulated fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tailrace.faulttol import FaultKind as Injury
from tailrace.fleetsim.errors import DriverDiedError
from tailrace.fleetsim.host.host import VirtualMember
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fuzz.controller_deaths import Deaths
from tailrace.fuzz.faults import BreakKind, CaseFault
from tailrace.fuzz.messages import Messages
from tailrace.runtime.executor.deployment import REPLICA, TRAINER

_INJURIES = {BreakKind.KILL: Injury.KILL, BreakKind.HANG: Injury.HANG, BreakKind.STALL: Injury.STALL}


class Strikes:
    """The faults of a case that have not struck yet.

    `struck` counts those that have, by kind; `silenced` are members that could not answer for a while.

    Args:
        replay: the controller dies alone, and its log rebuilds it.
        deaths: of the controller, whose members live on.
    """

    def __init__(
        self,
        faults: tuple[CaseFault, ...],
        simulation: Simulation,
        messages: Messages,
        replay: Callable[[], None],
        deaths: Deaths,
    ) -> None:
        self._simulation, self._messages, self._replay, self._deaths = simulation, messages, replay, deaths
        self._waiting = list(faults)
        self._due: list[tuple[float, CaseFault]] = []
        self.struck: Counter[str] = Counter()
        self.silenced: set[tuple[str, str]] = set()

    def reached(self, step: int) -> None:
        """The trainer has made so many steps."""
        time = self._simulation.world.time
        ready = [fault for fault in self._waiting if fault.at_step <= step]
        self._waiting = [fault for fault in self._waiting if fault.at_step > step]
        for fault in ready:
            due = (time.now() + fault.after_s, fault)
            self._due.append(due)
            time.at(due[0], self._now, due)

    def again(self) -> None:
        """Schedule again what was to break: after the driver's death nothing else is on the way any more."""
        for due in self._due:
            self._simulation.world.time.at(due[0], self._now, due)

    def _now(self, due: tuple[float, CaseFault]) -> None:
        self._due.remove(due)
        fault = due[1]
        self.struck[str(fault.kind)] += 1
        simulation, injuries, now = self._simulation, self._simulation.world.injuries, self._simulation.now
        member = simulation.host.members.get((fault.role, fault.member))
        if fault.kind in (BreakKind.HANG, BreakKind.PARTITION):
            self.silenced.add((fault.role, fault.member))
        match fault.kind:
            case BreakKind.KILL | BreakKind.HANG | BreakKind.STALL:
                if member is not None:
                    self._strike(member, fault)
            case BreakKind.SLOW:
                self._slow(fault)
            case BreakKind.PARTITION:
                if member is not None and not member.dead:
                    self._part(member, fault)
            case BreakKind.TORN_PULL:
                injuries.torn_pulls[fault.member] += fault.count
            case BreakKind.WRONG_LOAD:
                injuries.wrong_loads[fault.member] += fault.count
            case BreakKind.LOST_CHECKPOINT:
                injuries.lost_checkpoints += fault.count
            case BreakKind.STUCK_CHECKPOINT:
                injuries.stuck_checkpoints += fault.count
            case BreakKind.DAMAGED_CHECKPOINT:
                injuries.damaged |= set(simulation.world.checkpoints[-1:])
            case BreakKind.BROKEN_SCORING:
                injuries.scoring_broken_until_s = now + fault.for_s
            case BreakKind.REPLAY:
                self._replay()
            case BreakKind.CRASH:
                raise DriverDiedError
            case BreakKind.MACHINE:
                simulation.host.strike_machine(fault.member)
            case BreakKind.ATTACH:
                self._deaths.strike(fault)

    def _strike(self, member: VirtualMember, fault: CaseFault) -> None:
        """Strike at once, or at the end of the instant in which the member reaches the phase.

        A member that dies earlier is not struck.
        """
        injury, time = _INJURIES[fault.kind], self._simulation.world.time
        if fault.phase:
            member.phases.wait(fault.phase, lambda: time.at(time.now(), member.strike, injury))
        else:
            member.strike(injury)

    def _part(self, member: VirtualMember, fault: CaseFault) -> None:
        """Nothing gets to a member or away from it, its heartbeat neither."""
        until_s = self._simulation.now + fault.for_s
        self._messages.close(member.role, member.id, until_s)
        self._simulation.host.unreachable_until_s[member.role, member.id] = until_s

    def _slow(self, fault: CaseFault) -> None:
        simulation, models = self._simulation, self._simulation.models
        if fault.role == TRAINER:
            trainer, incarnation = models.trainer, models.trainer.incarnation
            trainer.set_speed(fault.speed)

            def faster(_: int) -> None:
                if trainer.incarnation == incarnation:
                    trainer.set_speed(1.0)

            simulation.world.time.at(simulation.now + fault.for_s, faster, 0)
        elif fault.role == REPLICA and fault.member in models.replicas:
            replica = models.replicas[fault.member]
            replica.slow_down(fault.speed)
            simulation.world.time.at(simulation.now + fault.for_s, replica.slow_down, 1.0)
