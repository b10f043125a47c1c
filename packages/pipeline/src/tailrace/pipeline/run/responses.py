"""When responses are complete, by the events of a log: ended by the model, by a limit, or by their environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tailrace import contracts as c


class CompleteResponses:
    """A fold that says how long complete responses are, without what environments answered."""

    def __init__(self) -> None:
        self._answered: Counter[str] = Counter()  # tokens by trajectory
        self._ended: dict[str, int] = {}  # tokens at the end of a turn that is not answered yet

    def heard(self, event: c.Event) -> tuple[str, int] | None:
        """The trajectory whose response is complete with this event, and the tokens that the model generated."""
        if isinstance(event, c.TurnEnded):
            self._ended[event.trajectory] = event.tokens
            return None
        if not isinstance(event, c.Finished | c.Turned):
            return None
        name = event.trajectory
        ended = self._ended.pop(name, event.tokens)
        if isinstance(event, c.Turned):
            self._answered[name] += event.tokens - ended
            if not event.done:
                return None
        return name, event.tokens - self._answered.pop(name, 0)

    def routed(self, refs: Iterable[c.TrajectoryRef]) -> None:
        """Take in what is routed: what has no tokens begins, perhaps anew."""
        for ref in refs:
            if not ref.kept:
                self._answered.pop(ref.trajectory, None)
                self._ended.pop(ref.trajectory, None)
