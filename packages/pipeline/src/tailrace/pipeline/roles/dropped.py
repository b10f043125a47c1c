"""Trajectories that were dropped last, so that a `Route` that was given before and arrives after does not begin them again.

controller ──Route 7──► replica ─────────────(late)────────────► begin at the store: left out, since 8 dropped it
          └──Abort 8──► store: its tokens are deleted ──Discarded──► controller, which routes it again at 9 or never
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace.contracts import TrajectoryRef

MOST = 65_536
"""Trajectories that are remembered: more than are dropped while one command is on its way."""


class Dropped:
    """Remembers by which `Abort` trajectories were dropped. What begins after it was routed after it.

    Otherwise the tokens of a trajectory that nobody wants would stay in the store for good: its replica is told to stop it, but
    the store has dropped it already. What a process of the store remembers ends with it.

    Args:
        most: trajectories that are remembered, those that were dropped last.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seqs: dict[str, int] = {}

    def note(self, names: Iterable[str], seq: int) -> None:
        """Note that an `Abort` of a number dropped trajectories."""
        for name in names:
            self._seqs.pop(name, None)
            self._seqs[name] = seq
        while len(self._seqs) > self._most:
            del self._seqs[next(iter(self._seqs))]

    def wanted(self, refs: Sequence[TrajectoryRef], seq: int) -> Sequence[TrajectoryRef]:
        """Trajectories of the `Route` with this number that were not dropped since it was given."""
        if not self._seqs:
            return refs
        return [ref for ref in refs if self._seqs.get(ref.trajectory, 0) < seq]

    def forget(self) -> None:
        """Forget all: the numbers begin anew, with another controller or process."""
        self._seqs.clear()
