"""Failures of a simulated fleet: those that a configuration scripts, and those that come by themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace.faulttol import Fault, FaultKind, FaultSchedule
from tailrace.pipeline.controller.controller import REPLICA, TRAINER

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation

DAY_S = 86_400.0


class Failures:
    """When which member dies.

    Args:
        scripted: faults of the configuration.
        per_gpu_s: deaths of a device per second, a Poisson process.
        replica_gpus, trainer_gpus: devices of one replica and of the trainer: a device's death is its member's.
        seed: of the Poisson process.
    """

    def __init__(
        self,
        scripted: Sequence[Fault] = (),
        *,
        per_gpu_s: float = 0.0,
        replica_gpus: int = 1,
        trainer_gpus: int = 1,
        seed: int = 0,
    ) -> None:
        self._schedule = FaultSchedule(scripted)
        self._per_gpu_s, self._replica_gpus, self._trainer_gpus = per_gpu_s, replica_gpus, trainer_gpus
        self._random = random.Random(f"failures {seed}")
        self._next_s: float | None = None

    def strike(self, simulation: Simulation) -> None:
        """What is due now happens. Called at every snapshot and every step."""
        for fault in self._schedule.due(simulation.now, simulation.trainer.version):
            self._strike(simulation, fault.kind, fault.role, fault.member)
        gpus = self._trainer_gpus + self._replica_gpus * len(simulation.replicas)
        rate = self._per_gpu_s * gpus
        if not rate:
            return
        if self._next_s is None:
            self._next_s = simulation.now + self._random.expovariate(rate)
        while self._next_s <= simulation.now:
            self._next_s += self._random.expovariate(rate)
            hit = math.floor(self._random.random() * gpus) - self._trainer_gpus
            role = TRAINER if hit < 0 else REPLICA
            member = "0" if hit < 0 else list(simulation.replicas)[hit // self._replica_gpus]
            simulation.kill(role, member)

    def _strike(self, simulation: Simulation, kind: FaultKind, role: str, member: str | None) -> None:
        if role == REPLICA:
            alive = [name for name, replica in simulation.replicas.items() if replica.up]
            wanted = [name for name in alive if member is None or name in (member, f"r{member}")]
            if not wanted:
                return
            member = wanted[0]
        act = simulation.hang if kind is FaultKind.HANG else simulation.kill
        act(role, member or "0")
