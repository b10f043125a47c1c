"""Members that share processor cores slow each other down: a laptop, not a fleet.

With more members computing than there are cores, each gets an equal share: the operating system's processor sharing. What
others need beside them (data, scoring, relays, the driver) comes off the cores: `tailrace profile` measures it.
"""

from __future__ import annotations

from typing import Protocol

from tailrace.fleetsim.fleet import SimulatedFleet


class Computing(Protocol):
    """A member that computes on shared cores."""

    @property
    def cores(self) -> float:
        """Cores that it keeps busy now, 0 while it computes nothing."""
        ...

    def share(self, share: float) -> None:
        """Run at a share of its speed from now on."""
        ...


class Cores:
    """The members that compute on shared cores.

    Args:
        fleet: has the number of cores; None if every member has its own devices.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._count = fleet.cores
        self._members: list[Computing] = []
        self._share = 1.0
        self._dirty = False

    def add(self, member: Computing) -> None:
        """One more that computes on them."""
        self._members.append(member)

    def changed(self) -> None:
        """Update the shares after a member began or stopped computing."""
        self._dirty = self._count is not None

    def settle(self) -> None:
        """Give everybody their share, if that has changed."""
        if not self._dirty:
            return
        self._dirty = False
        assert self._count is not None
        wanted = sum(member.cores for member in self._members)
        share = min(1.0, self._count / wanted) if wanted else 1.0
        if share != self._share:
            self._share = share
            for member in self._members:
                member.share(share)
