"""Turns: where unfinished trajectories are between them, what became of their sessions, and how long environments took."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.fold.series import Series

_RATIO = 1.02  # of two neighbouring bins: a quantile is within 1 % of a value that was added
_LEAST_S = 1e-4
_LOG = math.log(_RATIO)


class Where(IntEnum):
    """Where a trajectory is: the rows of `TurnFold.counts`."""

    REPLICA = 0
    SESSION = 1
    ENVIRONMENT = 2
    POOL = 3


class TurnFold:
    """Follows the turns of a run.

    `counts` samples at each tick, from the first turn on that ended, how many trajectories are where: those on replicas, those
    whose turn waits for a session, those that an environment answers, and those that have started and wait for a replica.
    `answers` counts turns that environments answered, by where they had the session from, and `latencies` has how long these
    took. `unanswered` counts calls that failed, but for those whose sessions were lost.
    """

    def __init__(self, run: RunView) -> None:
        self.hears: Hears = {c.Tick: self._sample}
        self.counts = Series(len(Where))
        self.answers: Counter[c.SessionOrigin] = Counter()
        self.latencies = Latencies()
        self.unanswered = 0
        self._run = run

    def settle(self, now: float) -> None:
        """The end of an instant."""
        brought = self._run.brought
        self.unanswered += brought.unanswered
        for event in brought.answered:
            self.answers[event.session] += 1
            if event.seconds:  # otherwise a member that is gone took them
                self.latencies.add(now, event.seconds)

    def shares(self) -> list[float]:
        """Share of the trajectories' time that they spent there, from 0 to 1, by `Where`; nothing without turns."""
        spent = [sum(self.counts.row(where)) for where in Where]
        whole = sum(spent)
        return [each / whole for each in spent] if whole else []

    def close(self) -> None:
        """The log ends here."""
        self.counts.close()

    def _sample(self, now: float, event: c.Tick) -> None:
        del event
        run = self._run
        if run.counts.turns:
            self.counts.add(now, (run.on_replicas, run.waiting_turns, run.answering, run.pooled_started))


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
