"""The turns of a run's responses, by its events: what the model wrote in each, and how long its environment took.

TurnEnded ──► the environment, with its queue ──► Turned ──► the next turn ... ──► Finished, or Turned with `done`
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.fleetsim.workload.sample import Turns


class MeasuredTurns:
    """A fold. What environments answered is no part of a turn's tokens.

    The seconds of a turn are those from the report of its end to the report of its answer, so that a queue before the
    environment is in them. The last turn has none: whoever ends the trajectory, its reward is what follows.
    """

    def __init__(self) -> None:
        self._turns: dict[str, list[tuple[int, float]]] = {}
        self._open: dict[
            str, tuple[float, int]
        ] = {}  # when a turn ended that is not answered, and all tokens until then
        self._total: dict[str, int] = {}  # all tokens until the last answer, that answer included

    def routed(self, refs: Iterable[c.TrajectoryRef]) -> None:
        """Take in what is routed: what has no tokens begins, perhaps anew."""
        for ref in refs:
            if not ref.kept:
                self._forget(ref.trajectory)

    def heard(self, now: float, event: c.Event) -> Turns | None:
        """The turns of the response that is complete with this event."""
        if isinstance(event, c.TurnEnded):
            self._open.setdefault(event.trajectory, (now, event.tokens))
        elif isinstance(event, c.Turned) and event.trajectory in self._open:
            ended_s, tokens = self._open.pop(event.trajectory)
            return self._add(event.trajectory, tokens, event.tokens, now - ended_s, last=event.done)
        elif isinstance(event, c.Finished):
            return self._add(event.trajectory, event.tokens, event.tokens, 0.0, last=True)
        return None

    def _add(self, name: str, tokens: int, total: int, seconds: float, *, last: bool) -> Turns | None:
        turns = self._turns.setdefault(name, [])
        turns.append((tokens - self._total.get(name, 0), 0.0 if last else max(0.0, seconds)))
        self._total[name] = total
        if not last:
            return None
        self._forget(name)
        return tuple(turns)

    def _forget(self, name: str) -> None:
        for of in (self._turns, self._open, self._total):
            of.pop(name, None)
