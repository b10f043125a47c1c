"""Injects scripted faults, on any host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.faulttol import Fault, FaultSchedule
from tailrace.pipeline.executor.running import Running


class Injection:
    """Strikes members by a script. A member that is not up when its fault is due is struck once it is up.

    Args:
        faults: the script.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._schedule = FaultSchedule(list(faults))
        self._due: list[Fault] = []

    @property
    def pending(self) -> bool:
        """Whether a fault is still to be injected."""
        return bool(self._due or self._schedule.pending)

    def strike(self, now: float, step: int, members: Iterable[Running]) -> list[tuple[Running, Fault]]:
        """Inject the faults that are due. Returns whom each one struck.

        Args:
            now: seconds on the run's clock.
            step: number of batches trained on.
            members: the running members.
        """
        self._due += self._schedule.due(now, step)
        alive = list(members)
        struck: list[tuple[Running, Fault]] = []
        for fault in list(self._due):
            named = {fault.member, f"r{fault.member}"}
            fits = [r for r in alive if r.up and r.role == fault.role and (fault.member is None or r.id in named)]
            if fits:
                self._due.remove(fault)
                alive.remove(fits[0])
                fits[0].member.strike(fault.kind)
                struck.append((fits[0], fault))
        return struck
