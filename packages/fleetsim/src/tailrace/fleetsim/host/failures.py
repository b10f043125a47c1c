"""Faults of a simulated fleet: deaths that come by themselves, and broken pulls, checkpoints and verifiers."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tailrace.fleetsim.host.clock import VirtualTime
from tailrace.runtime.executor.deployment import REPLICA, TRAINER

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FailureRate:
    """A Poisson process over devices: a device's death is its member's.

    Args:
        per_gpu_s: deaths of a device per second.
        replica_gpus, trainer_gpus: devices of one replica and of the trainer.
        seed: seed of the process.
    """

    per_gpu_s: float = 0.0
    replica_gpus: int = 1
    trainer_gpus: int = 1
    seed: int = 0


class RandomFailures:
    """Ends members at random.

    Args:
        replicas: the replicas' present names, in order.
        end: ends a member.
    """

    def __init__(
        self, rate: FailureRate, time: VirtualTime, replicas: Callable[[], list[str]], end: Callable[[str, str], None]
    ) -> None:
        self._rate, self._time, self._replicas, self._end = rate, time, replicas, end
        self._random = random.Random(f"failures {rate.seed}")
        self._next_s: float | None = None

    def strike(self) -> None:
        """Inject the failures that are due. Called at every tick."""
        rate, replicas = self._rate, self._replicas()
        gpus = rate.trainer_gpus + rate.replica_gpus * len(replicas)
        if not rate.per_gpu_s:
            return
        now = self._time.now()
        if self._next_s is None:
            self._next_s = now + self._random.expovariate(rate.per_gpu_s * gpus)
        while self._next_s <= now:
            self._next_s += self._random.expovariate(rate.per_gpu_s * gpus)
            hit = math.floor(self._random.random() * gpus) - rate.trainer_gpus
            if hit < 0:
                self._end(TRAINER, "0")
            else:
                self._end(REPLICA, replicas[hit // rate.replica_gpus])


@dataclass(slots=True)
class Injuries:
    """The present faults.

    `torn_pulls` counts the next pulls of a replica that arrive damaged, `wrong_loads` those after which its engine has other
    weights than were published. `lost_checkpoints` counts the next ones that cannot be
    written, `stuck_checkpoints` the next ones of whose end a trainer that lives never speaks. `damaged` are checkpoints that
    cannot be read. Until `scoring_broken_until_s` no verifier works. Only the newest `kept_versions` can be pulled; 0 is no
    limit.
    """

    torn_pulls: Counter[str] = field(default_factory=Counter)
    wrong_loads: Counter[str] = field(default_factory=Counter)
    lost_checkpoints: int = 0
    stuck_checkpoints: int = 0
    damaged: set[int] = field(default_factory=set)
    scoring_broken_until_s: float = 0.0
    kept_versions: int = 0

    def torn(self, replica: str) -> bool:
        """Whether the pull of a replica that begins now will arrive damaged."""
        if self.torn_pulls[replica] > 0:
            self.torn_pulls[replica] -= 1
            return True
        return False

    def loads_wrongly(self, replica: str) -> bool:
        """Whether a replica that has got a version has its engine load something else."""
        if self.wrong_loads[replica] > 0:
            self.wrong_loads[replica] -= 1
            return True
        return False

    def loses_checkpoint(self) -> bool:
        """Whether the checkpoint that is being written is lost."""
        if self.lost_checkpoints:
            self.lost_checkpoints -= 1
            return True
        return False

    def sticks_checkpoint(self) -> bool:
        """Whether the checkpoint that is being written never ends."""
        if self.stuck_checkpoints:
            self.stuck_checkpoints -= 1
            return True
        return False
