"""Turns and sessions: every turn that ended is answered once, by one environment, and none of its tokens is generated again.

An account of its own, from events and commands alone. What the members really did with the tokens is for `data_plane.py`.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.trajectories import Phase
from tailrace.fuzz.errors import InvariantError
from tailrace.runtime.executor.deployment import ENVIRONMENT

TURNS = "every turn is answered once and kept"


class TurnCheck:
    """What became of every turn and session.

    `lost` counts turns that ended and whose tokens had to be generated again; `excused` what may lose them: sessions that could
    not be had again, and versions whose weights are gone.

    Args:
        most: sessions that a member may have at work when it is given another one; None for no limit.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._ends: dict[str, list[int]] = {}  # tokens at the end of each turn, by trajectory
        self._calls: dict[str, tuple[str, int]] = {}
        self._sessions: dict[str, str] = {}
        self._up: set[str] = set()
        self.lost = self.excused = self.answered = 0

    # ---- events ---------------------------------------------------------------------------------------------------

    def turn_ended(self, event: c.TurnEnded) -> None:
        """A turn ended; the same end may be told again."""
        ends = self._ends.setdefault(event.trajectory, [])
        if event.tokens not in ends:
            ends.append(event.tokens)

    def turned(self, event: c.Turned) -> None:
        """A turn was answered."""
        if not self._ends_call(event):
            return
        self.answered += 1
        ends = self._ends.get(event.trajectory, [])
        if event.turn != len(ends) or event.tokens < ends[-1]:
            raise InvariantError(
                TURNS,
                f"turn {event.turn} of {event.trajectory} was answered with {event.tokens} tokens in all, but its turns ended "
                f"with {ends}",
            )
        if event.done:
            self._sessions.pop(event.trajectory, None)

    def call_failed(self, event: c.CallFailed) -> None:
        """A turn was not answered."""
        if self._ends_call(event):
            self._sessions.pop(event.trajectory, None)

    def up(self, event: c.Up) -> None:
        """An environment is up."""
        if event.role == ENVIRONMENT:
            self._gone(event.id)  # of a process that stood still, no `Down` tells
            self._up.add(event.id)

    def down(self, event: c.Down) -> None:
        """An environment is gone."""
        if event.role == ENVIRONMENT:
            self._gone(event.id)

    def resumed(self, event: c.Resumed) -> None:
        """The driver came back; every process is new."""
        del event
        for member in [*self._up]:
            self._gone(member)
        self._calls.clear()
        self._sessions.clear()

    # ---- commands -------------------------------------------------------------------------------------------------

    def ends(self, command: c.Restart | c.Stop) -> None:
        """An environment is replaced or given up, such as one that is silent: no `Down` tells of its end."""
        if command.role == ENVIRONMENT:
            self._gone(command.id)

    def call(self, command: c.Call, controller: Controller) -> None:
        """Each turn is given to one living member: the one that has its session, or one with room for another."""
        member, before = command.environment, len(self._sessions)
        for name in command.trajectories:
            if member not in self._up:
                raise InvariantError(TURNS, f"{name} is given to environment {member}, which is not up")
            if name in self._calls:
                raise InvariantError(TURNS, f"{name} is given to environment {member} while {self._calls[name]} has it")
            if not self._ends.get(name):
                raise InvariantError(TURNS, f"{name} is given to environment {member}, but no turn of it has ended")
            if self._sessions.setdefault(name, member) != member:
                raise InvariantError(
                    TURNS, f"{name} is given to environment {member}, but {self._sessions[name]} has its session"
                )
            self._calls[name] = (member, command.seq)
        known = controller.ledger.trajectories
        held = [name for name, holder in self._sessions.items() if holder == member and name in known]
        at_work = sum(known[name].phase is not Phase.PENDING for name in held)
        if self._most is not None and at_work > self._most and len(self._sessions) > before:
            raise InvariantError(
                TURNS, f"environment {member} has {at_work} sessions at work, expected at most {self._most}"
            )

    def close(self, command: c.Close) -> None:
        """Sessions end. One that the environment itself ended at this instant may be among them."""
        for name in command.trajectories:
            if self._sessions.pop(name, command.environment) != command.environment:
                raise InvariantError(TURNS, f"environment {command.environment} is to close {name}, which another has")
            self._calls.pop(name, None)

    def route(self, command: c.Route) -> None:
        """A trajectory goes on behind its last turn, unless it begins anew."""
        for ref in command.trajectories:
            ends = self._ends.get(ref.trajectory)
            if not ends:
                continue
            if ref.trajectory in self._calls:
                raise InvariantError(TURNS, f"{ref.trajectory} is routed while an environment answers it")
            gone = [end for end in ends if end > ref.kept]
            self.lost += len(gone)
            self._ends[ref.trajectory] = [end for end in ends if end <= ref.kept]

    def abort(self, command: c.Abort) -> None:
        """Trajectories are dropped, for good or to begin anew."""
        if command.reason.why in (c.Why.SESSION_LOST, c.Why.VERSION_GONE, c.Why.EVALUATION, c.Why.TASK_RESTART):
            self.excused += len(command.trajectories)
            return  # what was lost is seen when they are routed again
        for name in command.trajectories:
            self._ends.pop(name, None)

    # ---- the end --------------------------------------------------------------------------------------------------

    def finished(self, controller: Controller) -> None:
        """Nothing is open any more, and the controller counted as was counted here."""
        counts = controller.ledger.counts
        if self._calls or self._sessions:
            raise InvariantError(
                TURNS, f"at the end calls {self._calls} and sessions {self._sessions} are open, expected none"
            )
        if self.lost > counts.turns_lost or (counts.turns_lost and not self.excused):
            raise InvariantError(
                TURNS,
                f"the controller counts {counts.turns_lost} turns as lost, counted {self.lost}, of {self.excused} trajectories "
                "that had to begin anew",
            )

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _ends_call(self, event: c.Turned | c.CallFailed) -> bool:
        """Whether it answers a call that is open; otherwise it was told twice, or its trajectory was dropped."""
        if self._calls.get(event.trajectory, ("", 0))[1] != event.answers:
            return False
        del self._calls[event.trajectory]
        return True

    def _gone(self, member: str) -> None:
        self._up.discard(member)
        self._calls = {name: call for name, call in self._calls.items() if call[0] != member}
        self._sessions = {name: holder for name, holder in self._sessions.items() if holder != member}
