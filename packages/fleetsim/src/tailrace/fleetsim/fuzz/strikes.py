"""When the faults of a case strike, and what each does to a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.fuzz.faults import CaseFault, FaultKind
from tailrace.fleetsim.members.replica import Replica
from tailrace.pipeline.controller.controller import REPLICA, TRAINER

if TYPE_CHECKING:
    from tailrace.fleetsim.fuzz.simulation import FuzzSimulation


class Strikes:
    """The faults of a case that have not struck yet."""

    def __init__(self, simulation: FuzzSimulation) -> None:
        self._simulation = simulation
        self._waiting = list(simulation.case.faults)
        self._due: list[tuple[float, CaseFault]] = []
        self._do: dict[FaultKind, Callable[[CaseFault], None]] = {
            FaultKind.KILL: lambda fault: simulation.kill(fault.role, fault.member),
            FaultKind.HANG: lambda fault: simulation.hang(fault.role, fault.member),
            FaultKind.SLOW: self._slow,
            FaultKind.PARTITION: self._partition,
            FaultKind.TORN_PULL: self._tear,
            FaultKind.LOST_CHECKPOINT: self._lose_checkpoints,
            FaultKind.BROKEN_SCORING: self._break_scoring,
            FaultKind.REPLAY: lambda _: simulation.replay(),
            FaultKind.CRASH: lambda _: simulation.crash(),
        }

    def reached(self, step: int) -> None:
        """The trainer has made so many steps."""
        simulation = self._simulation
        ready = [fault for fault in self._waiting if fault.at_step <= step]
        if ready:
            self._waiting = [fault for fault in self._waiting if fault.at_step > step]
            for fault in ready:
                due = (simulation.now + fault.after_s, fault)
                self._due.append(due)
                simulation.at(due[0], self._now, due)

    def again(self) -> None:
        """After the driver's death nothing is on the way any more, but what was to break still does."""
        for due in self._due:
            self._simulation.at(due[0], self._now, due)

    def strike(self, fault: CaseFault) -> None:
        """It happens."""
        self._do[fault.kind](fault)

    def _now(self, due: tuple[float, CaseFault]) -> None:
        self._due.remove(due)
        self._simulation.strike(due[1])

    def _victim(self, fault: CaseFault) -> Replica | None:
        replica = self._simulation.replicas.get(fault.member)
        return replica if replica is not None and replica.up and not replica.hung else None

    def _slow(self, fault: CaseFault) -> None:
        simulation = self._simulation
        if fault.role == TRAINER:
            incarnation = simulation.trainer.incarnation
            simulation.trainer.set_speed(fault.speed)

            def faster(_: int) -> None:
                if simulation.trainer.incarnation == incarnation:
                    simulation.trainer.set_speed(1.0)

            simulation.at(simulation.now + fault.for_s, faster, 0)
        elif (replica := self._victim(fault)) is not None:
            replica.speed = fault.speed
            replica.set_speed(fault.speed, simulation.now)
            simulation.at(simulation.now + fault.for_s, self._as_fast_as_before, replica)

    def _as_fast_as_before(self, replica: Replica) -> None:
        replica.speed = 1.0
        if replica.up and not replica.hung:
            replica.set_speed(1.0, self._simulation.now)

    def _partition(self, fault: CaseFault) -> None:
        """A member that is out of reach for as long as one that hangs counts as dead; the executor ends it."""
        simulation = self._simulation
        silent_s = simulation.fleet.delays.hang_s
        if fault.role == REPLICA:
            replica = self._victim(fault)
            if replica is None:
                return
            incarnation = replica.incarnation
        else:
            if not simulation.trainer.up or simulation.trainer.hung:
                return
            incarnation = simulation.trainer.incarnation
        name = fault.member if fault.role == REPLICA else TRAINER
        simulation.messages.close(name, simulation.now + fault.for_s)
        if fault.for_s > silent_s / 2:
            simulation.at(
                simulation.now + silent_s / 2, simulation.post, c.Suspect(fault.role, fault.member, silent_s / 2)
            )
        if fault.for_s >= silent_s:
            silent = (fault.role, fault.member, incarnation, silent_s)
            simulation.at(simulation.now + silent_s, simulation.give_up, silent)

    def _tear(self, fault: CaseFault) -> None:
        torn = self._simulation.torn_pulls
        torn[fault.member] = torn.get(fault.member, 0) + fault.count

    def _lose_checkpoints(self, fault: CaseFault) -> None:
        self._simulation.lose_checkpoints += fault.count

    def _break_scoring(self, fault: CaseFault) -> None:
        self._simulation.broken_until_s = self._simulation.now + fault.for_s
