"""Discards: what was dropped and has not left the store yet. What begins anew waits for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.lives import TrajectoryState
from tailrace.pipeline.controller.outbox import Outbox


@dataclass(slots=True)
class Discards:
    """Aborts that the store has not answered, by number: whom they drop, and which of those begin anew."""

    ledger: Ledger
    outbox: Outbox
    pending: dict[int, tuple[tuple[str, ...], c.Reason]] = field(default_factory=dict)

    def abort(self, names: Sequence[str], reason: c.Reason, replicas: Sequence[str] = ()) -> None:
        """Drop trajectories."""
        if names:
            seq = self.outbox.send(
                c.Abort, trajectories=tuple(names), replicas=tuple(dict.fromkeys(replicas)), reason=reason
            )
            self.pending[seq] = (tuple(names), reason)

    def begin_anew(self, states: Sequence[TrajectoryState], reason: c.Reason) -> None:
        """What exists of pending trajectories is dropped; they are in the pool again once that is done."""
        for state in states:
            self.ledger.discarding_begins(state)
        self.abort([state.id for state in states], reason)

    def done(self, event: c.Discarded) -> None:
        """The store has dropped them."""
        entry = self.pending.pop(event.answers, None)
        if entry is None:
            return
        still = {name for names, _ in self.pending.values() for name in names} if self.pending else ()
        for name in entry[0]:
            if name in self.ledger.discarding and name not in still:
                self.ledger.restarted(self.ledger.trajectories[name])

    def again(self) -> None:
        """The store is a new process, which may not have heard of what is pending."""
        pending, self.pending = self.pending, {}
        for names, reason in pending.values():
            self.abort(names, reason)
