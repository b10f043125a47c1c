"""All that is folded from a log, instant by instant: while a simulation runs, or from the file of any run."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.history import History
from tailrace.pipeline.run.reporting.loads import Loads
from tailrace.pipeline.run.reporting.observed import Observed
from tailrace.pipeline.run.timeline import Timeline
from tailrace.pipeline.spec import PipelineSpec

MOST_REPLICAS = 256


class Folds:
    """Observes a log. Of a large fleet, timeline and loads are those of some replicas, evenly chosen.

    Args:
        spec: the pipeline.
        first: the version that the run began with.
        most: replicas that are looked at.
    """

    def __init__(self, spec: PipelineSpec, *, first: int = 0, most: int = MOST_REPLICAS) -> None:
        self.history, self.observed, self.loads = History(spec, first=first), Observed(), Loads()
        self.timeline = Timeline(lambda replica: not self.sampled or replica in self._watched)
        self._most = most
        self._watched: frozenset[str] = frozenset()

    @property
    def replicas(self) -> tuple[str, ...]:
        """Those that are looked at."""
        return self.loads.replicas

    @property
    def sampled(self) -> bool:
        """Whether that is only some."""
        return len(self.loads.replicas) < self.loads.of

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """One instant."""
        history = self.history
        history.observe(now, events, commands)
        if not self._watched:
            names = [id_ for role, id_ in history.members if role == REPLICA]
            self.loads.watch(evenly(names, self._most), len(names))
            self._watched = frozenset(self.loads.replicas)
        self.loads.observe(now, events, history.version)
        self.observed.observe(now, events, commands, history)
        self.timeline.observe(now, events, commands, history)

    def close(self) -> None:
        """The log ends here."""
        self.timeline.close(self.history.now)
        self.loads.close()


def evenly(names: Sequence[str], most: int) -> list[str]:
    """At most so many, evenly chosen, in their order."""
    count = min(len(names), most)
    return [names[place * len(names) // count] for place in range(count)]
