"""Turns as a log shows them: which trajectories are in environments, and how long those took."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.report.fold.states import Trajectory

_RATIO = 1.02  # of two neighbouring bins: a quantile is within 1 % of a value that was added
_LEAST_S = 1e-4
_LOG = math.log(_RATIO)


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


# Quantiles of many durations, over time, in bounded memory.


@dataclass(frozen=True, slots=True)
class Spell:
    """A stretch of time with durations, from `begin_s` to `end_s` on the run's clock."""

    begin_s: float
    end_s: float
    bins: Counter[int]

    def quantile(self, share: float) -> float:
        """A duration in seconds that this share of them does not exceed, within 1 %."""
        return quantile(self.bins, share)


class Latencies:
    """Durations in seconds and when they ended. Those of one stretch of time are kept as a histogram.

    When there are too many stretches, they become twice as long.

    Args:
        most: stretches, at least two.
    """

    def __init__(self, most: int = 256) -> None:
        self._most, self._width_s = most, 1.0
        self._spells: dict[int, Counter[int]] = {}
        self.count, self.total_s = 0, 0.0

    def add(self, at_s: float, seconds: float) -> None:
        """A duration that ended at a moment."""
        self.count += 1
        self.total_s += seconds
        found = self._spells.get(place := int(at_s / self._width_s))
        if found is None:
            found = self._spells[place] = Counter()
            while len(self._spells) > self._most:
                self._widen()
            found = self._spells[int(at_s / self._width_s)]
        found[_bin(seconds)] += 1

    def spells(self, most: int) -> list[Spell]:
        """The stretches that have any, in their order, at most so many: neighbours are merged evenly."""
        stride = 1
        while len({place // stride for place in self._spells}) > most:
            stride *= 2
        merged = _merged(self._spells.items(), stride)
        width_s = stride * self._width_s
        return [Spell(place * width_s, (place + 1) * width_s, merged[place]) for place in sorted(merged)]

    def quantile(self, share: float) -> float:
        """A duration in seconds that this share of all does not exceed, within 1 %; 0 for none."""
        return quantile(sum(self._spells.values(), Counter()), share)

    @property
    def mean_s(self) -> float:
        """The mean of all; 0 for none."""
        return self.total_s / self.count if self.count else 0.0

    def _widen(self) -> None:
        self._width_s *= 2
        self._spells = _merged(self._spells.items(), 2)


def quantile(bins: Counter[int], share: float) -> float:
    """The middle of the bin with the smallest duration that `share` of all do not exceed; 0 for none."""
    left = max(1, math.ceil(share * bins.total()))
    for place in sorted(bins):
        left -= bins[place]
        if left <= 0:
            return _LEAST_S * _RATIO**place
    return 0.0


def _bin(seconds: float) -> int:
    return round(math.log(seconds / _LEAST_S) / _LOG) if seconds > _LEAST_S else 0


def _merged(spells: Iterable[tuple[int, Counter[int]]], stride: int) -> dict[int, Counter[int]]:
    merged: dict[int, Counter[int]] = {}
    for place, bins in spells:
        merged.setdefault(place // stride, Counter()).update(bins)
    return merged
