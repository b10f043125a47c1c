"""Every trajectory that a replica was given: its prompt, length, reward, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tailrace import contracts as c
from tailrace.controller.trajectories import GroupPhase
from tailrace.controller.view import RunView
from tailrace.pipeline.run.figures.folding import Hears
from tailrace.report.reason_words import why

MOST = 100_000
ANEW = frozenset({c.Why.VERSION_GONE, c.Why.EVALUATION, c.Why.SESSION_LOST, c.Why.TASK_RESTART})
"""Reasons of an `Abort` after which a trajectory begins anew."""


class Fate(StrEnum):
    """How far a trajectory has come."""

    OPEN = "open"
    TRAINED = "trained"
    DROPPED = "dropped"
    EVALUATED = "evaluated"


@dataclass(slots=True)
class TrajectoryEntry:
    """A trajectory.

    Args:
        at_s: when a replica was given it first, on the run's clock.
        replica: the one that was given it last.
        tokens: its response tokens, as it ended; None until then.
        dropped: why it was dropped, in words; empty if it was not.
        consumed_for: the version that a batch with it makes; None before it is in one.
    """

    name: str
    prompt: int
    group: int
    evaluation: bool
    at_s: float
    replica: str
    tokens: int | None = None
    reward: float | None = None
    correct: bool | None = None
    truncated: bool = False
    dropped: str = ""
    consumed_for: int | None = None


class Trajectories:
    """Hears of every trajectory. The oldest ones are forgotten where there are more than `most`; `forgotten` counts them."""

    def __init__(self, run: RunView, most: int = MOST) -> None:
        self.hears: Hears = {
            c.Route: self._routed,
            c.Finished: self._finished,
            c.Turned: self._turned,
            c.Scored: self._scored,
            c.Abort: self._aborted,
            c.Step: self._given,
            c.Accumulate: self._accumulated,
        }
        self.entries: dict[str, TrajectoryEntry] = {}
        self.forgotten = 0
        self._run, self._most = run, most

    def newest(self, fate: Fate | None = None, like: str = "") -> Iterator[TrajectoryEntry]:
        """The trajectories, those first that were begun last.

        Args:
            fate: only those that have come so far.
            like: only those whose name begins so.
        """
        for entry in reversed(self.entries.values()):
            if entry.name.startswith(like) and (fate is None or self.fate(entry) is fate):
                yield entry

    def fate(self, entry: TrajectoryEntry) -> Fate:
        """How far it has come, by the controller's view as long as that knows it."""
        known = self._run.trajectory(entry.name)
        if known is not None and known.group is not GroupPhase.TRAINED:
            return Fate.OPEN
        if entry.evaluation:
            return Fate.EVALUATED
        return Fate.DROPPED if entry.dropped else Fate.TRAINED if entry.consumed_for is not None else Fate.OPEN

    def _routed(self, now: float, command: c.Route) -> None:
        for ref in command.trajectories:
            entry = self.entries.get(ref.trajectory)
            if entry is not None:
                entry.replica, entry.dropped = command.replica, ""
                continue
            if len(self.entries) >= self._most:
                del self.entries[next(iter(self.entries))]
                self.forgotten += 1
            evaluation = ref.purpose is c.Purpose.EVAL
            self.entries[ref.trajectory] = TrajectoryEntry(
                ref.trajectory, ref.prompt, ref.group, evaluation, now, command.replica
            )

    def _finished(self, now: float, event: c.Finished) -> None:
        del now
        if (entry := self.entries.get(event.trajectory)) is not None:
            entry.tokens, entry.truncated = event.tokens, event.reason is c.FinishReason.LENGTH

    def _turned(self, now: float, event: c.Turned) -> None:
        del now
        if event.done and (entry := self.entries.get(event.trajectory)) is not None:
            entry.tokens, entry.truncated = event.tokens, event.reason is c.FinishReason.LENGTH

    def _scored(self, now: float, event: c.Scored) -> None:
        del now
        if (entry := self.entries.get(event.trajectory)) is not None:
            entry.reward, entry.correct = event.reward, event.correct

    def _aborted(self, now: float, command: c.Abort) -> None:
        del now
        said = "" if command.reason.why in ANEW else why(command.reason)
        for entry in self._known(command.trajectories):
            entry.tokens, entry.reward, entry.dropped = (entry.tokens, entry.reward, said) if said else (None, None, "")

    def _given(self, now: float, command: c.Step) -> None:
        del now
        for entry in self._known(name for part in command.mini_batches for name in part):
            entry.consumed_for = command.version

    def _accumulated(self, now: float, command: c.Accumulate) -> None:
        del now
        for entry in self._known(command.trajectories):
            entry.consumed_for = command.version

    def _known(self, names: Iterable[str]) -> Iterator[TrajectoryEntry]:
        return (entry for name in names if (entry := self.entries.get(name)) is not None)
