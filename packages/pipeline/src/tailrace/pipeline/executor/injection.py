"""Scripted faults: who is struck when, on any host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.faulttol import Fault, FaultSchedule
from tailrace.pipeline.executor.running import Running


class Injection:
    """Strikes members as a script says. One that is not up when its time comes is struck once it is.

    Args:
        faults: the script.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._schedule = FaultSchedule(list(faults))
        self._due: list[Fault] = []

    @property
    def pending(self) -> bool:
        """Whether anything is still to happen."""
        return bool(self._due or self._schedule.pending)

    def strike(self, now: float, step: int, members: Iterable[Running]) -> None:
        """Carry out what is due.

        Args:
            step: batches trained on.
        """
        self._due += self._schedule.due(now, step)
        alive = list(members)
        for fault in list(self._due):
            named = {fault.member, f"r{fault.member}"}
            fits = [r for r in alive if r.up and r.role == fault.role and (fault.member is None or r.id in named)]
            if fits:
                self._due.remove(fault)
                alive.remove(fits[0])
                fits[0].member.strike(fault.kind)
