"""The sessions of environments: which member has whose, who waits for one, and the calls that are not answered.

    ask(trajectory) ──► waiting ──Call──► calls ──answered──► session stays with its member ──► ask ... ──► close or over
                          ▲                 │ member down                    │ member down
                          └─────────────────┘                                └──► any member: it restores or replays

A session opens with the first call of a trajectory. A member has at most `most` of them at work; what exceeds that waits, the
first to ask first. One that has a session is never held back. A session whose trajectory waits for a replica is not at work:
otherwise it could wait for a replica that is held by trajectories which wait for its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace import contracts as c
from tailrace.controller.ledger import Ledger
from tailrace.controller.members import ENVIRONMENT, Members
from tailrace.controller.outbox import Outbox
from tailrace.controller.trajectories import Phase


class Sessions:
    """Owns them.

    `of` has the member of each session by trajectory, `calls` the member and the number of the call that each trajectory
    waits for, `waiting` the trajectories whose call waits for a member.

    Args:
        ledger: knows which trajectories wait for a replica.
        members: all members, those of the environment role among them.
        outbox: takes the commands.
        most: sessions that a member may have at work when it is given another one; None for no limit.
    """

    def __init__(self, ledger: Ledger, members: Members, outbox: Outbox, most: int | None) -> None:
        self._ledger, self._members, self._outbox, self._most = ledger, members, outbox, most
        self.of: dict[str, str] = {}
        self.calls: dict[str, tuple[str, int]] = {}
        self.waiting: dict[str, None] = {}

    def ask(self, trajectory: str) -> None:
        """Have an environment answer a trajectory's last turn, as soon as one may."""
        self.waiting[trajectory] = None

    def send(self) -> None:
        """Give the calls that wait to members that are up: to the one that has the session, or that has the fewest.

        Call it last in an instant, when everything that can be has been routed.
        """
        if not self.waiting:
            return
        up = [member.id for member in self._members.of(ENVIRONMENT) if member.health is c.Health.UP]
        at_work: dict[str, int] | None = None  # known once a session is to open: it takes a look at every session
        given: dict[str, list[str]] = {}
        for name in list(self.waiting) if up else ():
            member = self.of.get(name)
            if member is None:
                at_work = self._at_work(up) if at_work is None else at_work
                member = min(up, key=at_work.__getitem__)
                if self._most is not None and at_work[member] >= self._most:
                    continue
                self.of[name] = member
                at_work[member] += 1
            elif member not in up:
                continue
            del self.waiting[name]
            given.setdefault(member, []).append(name)
        for member, names in given.items():
            seq = self._outbox.send(c.Call, environment=member, trajectories=tuple(names))
            self.calls.update(dict.fromkeys(names, (member, seq)))

    def answered(self, event: c.Turned | c.CallFailed) -> str | None:
        """Take an answer in. Returns the member that gave it; None if nobody waits for it any more."""
        member, seq = self.calls.get(event.trajectory, ("", 0))
        if not member or event.answers not in (None, seq):
            return None
        del self.calls[event.trajectory]
        self._members.worked(ENVIRONMENT, member)
        return member

    def over(self, trajectory: str) -> None:
        """Note that its member has ended a session by itself."""
        self.of.pop(trajectory, None)

    def close(self, trajectories: Iterable[str]) -> None:
        """End sessions, and forget the calls, of trajectories that are complete, dropped or begin anew."""
        closed: dict[str, list[str]] = {}
        for name in trajectories:
            self.waiting.pop(name, None)
            self.calls.pop(name, None)
            member = self.of.pop(name, None)
            if member is not None:
                closed.setdefault(member, []).append(name)
        for member, names in closed.items():
            self._outbox.send(c.Close, environment=member, trajectories=tuple(names))

    def went_down(self, member: str) -> None:
        """Note that a member is gone with its sessions. What it was to answer waits for another, before what came later."""
        lost = [name for name, (asked, _) in self.calls.items() if asked == member]
        for name in lost:
            del self.calls[name]
        self.waiting = dict.fromkeys(lost) | self.waiting
        self.of = {name: holder for name, holder in self.of.items() if holder != member}

    def forget(self) -> None:
        """Forget all, since every process is new."""
        self.of.clear()
        self.calls.clear()
        self.waiting.clear()

    def plain(self) -> dict[str, Any]:
        """The whole state as plain data."""
        return {"of": dict(self.of), "calls": dict(self.calls), "waiting": list(self.waiting)}

    def _at_work(self, members: Sequence[str]) -> dict[str, int]:
        """Number of sessions at work by member."""
        counts = dict.fromkeys(members, 0)
        if len(members) == 1 and self._most is None:
            return counts  # nobody has to choose
        trajectories = self._ledger.trajectories
        for name, member in self.of.items():
            if member in counts and trajectories[name].phase is not Phase.PENDING:
                counts[member] += 1
        return counts
