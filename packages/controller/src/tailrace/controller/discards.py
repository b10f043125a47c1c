"""Discards: dropped trajectories that the store has not deleted yet.

Invariant: one that begins anew is in the pool only once no abort of it is pending. Otherwise the store would drop what it has
begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.controller.ledger import Ledger
from tailrace.controller.outbox import Outbox
from tailrace.controller.sessions import Sessions
from tailrace.controller.trajectories import TrajectoryState


@dataclass(slots=True)
class Discards:
    """Aborts that the store has not answered. `pending` has the trajectories and the reason of each, by its number.

    What is dropped has no session any more.
    """

    ledger: Ledger
    outbox: Outbox
    sessions: Sessions
    pending: dict[int, tuple[tuple[str, ...], c.Reason]] = field(default_factory=dict)

    def abort(self, names: Sequence[str], reason: c.Reason, replicas: Sequence[str] = ()) -> None:
        """Drop trajectories."""
        if names:
            self.sessions.close(names)
            seq = self.outbox.send(
                c.Abort, trajectories=tuple(names), replicas=tuple(dict.fromkeys(replicas)), reason=reason
            )
            self.pending[seq] = (tuple(names), reason)

    def begin_anew(self, states: Sequence[TrajectoryState], reason: c.Reason) -> None:
        """Drop the tokens of pending trajectories, and put them in the pool again once that is done."""
        for state in states:
            self.ledger.discarding_begins(state)
        self.abort([state.id for state in states], reason)

    def done(self, event: c.Discarded) -> None:
        """Note that the store has dropped the trajectories of an abort."""
        entry = self.pending.pop(event.answers, None)
        if entry is None:
            return
        begin = [name for name in entry[0] if name in self.ledger.discarding]
        still = {name for names, _ in self.pending.values() for name in names} if begin else ()
        for name in begin:
            if name not in still:
                self.ledger.restarted(self.ledger.trajectories[name])

    def again(self) -> None:
        """Send pending aborts again, since the store is a new process that may not have got them."""
        pending, self.pending = self.pending, {}
        for names, reason in pending.values():
            self.abort(names, reason)
