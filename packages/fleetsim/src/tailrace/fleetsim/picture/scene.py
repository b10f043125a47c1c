"""What is drawn of a system: some of its members, over its last steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tailrace.fleetsim.picture.watch import Watched
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.causes import ADMITTED
from tailrace.pipeline.run.reporting.folds import evenly
from tailrace.pipeline.run.timeline import Doing, Mark, Span

ROWS = 16
STEPS = 8
MOST_SPANS = 5000

Load = tuple[float, float]
"""Until when, and how many trajectories ran on average since the load before it."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A stretch of a run, and the trainer and some replicas in it.

    Args:
        name: of the system.
        caption: one line under it.
        spans, marks: of the members that are drawn; they may begin before the stretch.
        loads: by replica, in order of time.
        shown_s: the stretch that is drawn.
        steps: when the trainer held which version.
        drawn, of: how many of how many replicas.
    """

    name: str
    caption: str
    spans: Sequence[Span]
    marks: Sequence[Mark]
    loads: Mapping[str, Sequence[Load]]
    shown_s: tuple[float, float]
    steps: Sequence[tuple[float, int]]
    drawn: int
    of: int

    @property
    def rows_note(self) -> str:
        """Which replicas are drawn, if not all are; else empty."""
        return "" if self.drawn == self.of else f"shown are {self.drawn} of {self.of:,} replicas, evenly chosen"

    def over(self, length_s: float) -> Scene:
        """The stretch of this length with the same end; shorter where the run is."""
        return replace(self, shown_s=(max(0.0, self.shown_s[1] - length_s), self.shown_s[1]))

    @property
    def peak(self) -> float:
        """The highest load of any replica, at least 1."""
        return max((running for loads in self.loads.values() for _, running in loads), default=1.0) or 1.0


def scene(watched: Watched, *, caption: str = "", rows: int = ROWS, steps: int = STEPS) -> Scene:
    """The scene of a simulation: the last steps of what was measured, before prompts ran out."""
    timeline, loads = watched.folds.timeline, watched.folds.loads
    names = evenly(loads.replicas, rows)
    places = {name: place for place, name in enumerate(loads.replicas)}
    begin_s, end_s = watched.measured_s
    end_s = before_the_drain(timeline.spans, begin_s, end_s)
    stepped = [(row.at_s, row.version) for row in watched.rows]
    return Scene(
        name=watched.name,
        caption=caption or watched.fleet.description,
        spans=[span for span in timeline.spans if _drawn(span, names)],
        marks=[mark for mark in timeline.marks if _drawn(mark, names)],
        loads={name: list(zip(loads.series.ends_s, loads.series.row(places[name]), strict=True)) for name in names},
        shown_s=last_steps([at_s for at_s, _ in stepped], begin_s, end_s, steps),
        steps=stepped,
        drawn=len(names),
        of=loads.of,
    )


def last_steps(stepped_s: Sequence[float], begin_s: float, end_s: float, steps: int) -> tuple[float, float]:
    """The stretch of the last steps that lie between two moments, from the end of the step before them."""
    inside = [at_s for at_s in stepped_s if begin_s < at_s <= end_s]
    before = [at_s for at_s in stepped_s if at_s <= begin_s]
    ends_s = [before[-1] if before else begin_s, *inside]
    return ends_s[max(0, len(ends_s) - 1 - steps)], end_s


def before_the_drain(spans: Iterable[Span], begin_s: float, end_s: float) -> float:
    """When the first replica found every prompt of the run admitted; the end of the stretch if that leaves nothing of it."""
    idle = (span.start_s for span in spans if span.doing is Doing.IDLE and span.label == ADMITTED)
    drain_s = min((at_s for at_s in idle if at_s < end_s), default=end_s)
    return drain_s if drain_s - begin_s > (end_s - begin_s) / 4 else end_s


def recent(spans: Iterable[Span], most: int = MOST_SPANS) -> list[Span]:
    """The last of them, by their ends."""
    return sorted(spans, key=lambda span: span.end_s)[-most:]


def _drawn(one: Span | Mark, replicas: Sequence[str]) -> bool:
    return one.role == TRAINER or (one.role == REPLICA and one.member in replicas)
