"""Turns as a log shows them: which trajectories are in environments, and how long those took."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter

from tailrace import contracts as c
from tailrace.report.fold.latencies import Latencies
from tailrace.report.fold.states import Trajectory


class TurnHistory:
    """The part of a history that hears of turns.

    `away` has the replica that each trajectory left for its environment; `turns` counts turns that ended, `answers` those that
    environments answered, by where they had the session from, and `latencies` has how long these took. `turns_of_each` counts
    training trajectories that were seen to end, by their turns. `unanswered` has the calls that failed, by trajectory and
    number, but for those whose sessions were lost: `sessions_lost` counts them.
    """

    trajectories: dict[str, Trajectory]
    pending: dict[str, Trajectory]
    version: int
    now: float

    def __init__(self) -> None:
        self.away: dict[str, str] = {}
        self.turns = 0
        self.answers: Counter[c.SessionOrigin] = Counter()
        self.latencies = Latencies()
        self.turns_of_each: Counter[int] = Counter()
        self.unanswered: set[tuple[str, int]] = set()
        self.sessions_lost = 0
        self._calls: dict[str, tuple[str, int]] = {}

    @abstractmethod
    def _left(self, replica: str, name: str) -> Trajectory | None: ...

    def _finishes(self, name: str, known: Trajectory) -> None:
        known.replica, known.finished, known.completed_at = None, True, self.version
        self.pending.pop(name, None)
        self.turns_of_each[known.turns + 1] += known.ref.purpose is c.Purpose.TRAIN

    def _on_turnended(self, event: c.TurnEnded) -> None:
        known = self.trajectories.get(event.trajectory)
        if known is None or known.replica != event.replica:
            return  # it was dropped, or is elsewhere
        again = event.tokens == known.turn_end <= known.tokens
        if event.tokens < known.tokens or (again and known.answered):
            return  # its environment has answered that turn by now
        self._left(event.replica, event.trajectory)
        self.turns += not again  # unless the driver died before it was answered
        known.turn_end, known.answered = event.tokens, False
        known.replica, known.tokens, self.away[event.trajectory] = None, event.tokens, event.replica

    def _on_turned(self, event: c.Turned) -> None:
        known = self.trajectories.get(event.trajectory)
        if known is None or not self._ends_call(event):
            return
        self.answers[event.session] += 1
        if event.seconds:  # otherwise a member that is gone took them
            self.latencies.add(self.now, event.seconds)
        known.observed += event.tokens - known.tokens
        known.tokens, known.answered = event.tokens, True
        if event.done:
            self._finishes(event.trajectory, known)
            known.truncated = event.reason is c.FinishReason.LENGTH
        else:
            known.turns, self.pending[event.trajectory] = event.turn, known

    def _on_callfailed(self, event: c.CallFailed) -> None:
        if not self._ends_call(event):
            return
        if event.lost:
            self.sessions_lost += 1
            self.pending[event.trajectory] = self.trajectories[event.trajectory]
        else:
            self.unanswered.add((event.trajectory, event.answers or 0))

    def _on_call(self, command: c.Call) -> None:
        self._calls.update(dict.fromkeys(command.trajectories, (command.environment, command.seq)))

    def _on_close(self, command: c.Close) -> None:
        for name in command.trajectories:
            self._calls.pop(name, None)

    def asked(self, trajectory: str) -> str | None:
        """The environment that is to answer a trajectory's last turn; None if none is."""
        return self._calls[trajectory][0] if trajectory in self._calls else None

    @property
    def answering(self) -> int:
        """Trajectories that an environment answers; the others that are away wait for a session."""
        return len(self._calls.keys() & self.away.keys())

    def _ends_call(self, event: c.Turned | c.CallFailed) -> bool:
        """Whether an environment answers a call that is open; otherwise its trajectory was dropped, or it is said again."""
        if self._calls.get(event.trajectory, ("", 0))[1] != event.answers:
            return False
        del self._calls[event.trajectory]
        return self.away.pop(event.trajectory, None) is not None
