"""The trajectories that were routed to a replica and have not come back, and their views for policies."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView

from tailrace.contracts import TrajectoryView
from tailrace.pipeline.controller.states import TrajectoryState


class Assigned(Mapping[str, TrajectoryView]):
    """Trajectories on one replica, in order of routing.

    Views are created when a policy first reads one and are then kept; most policies read none.
    `states` holds the trajectories, `seen` the views of all once a policy has read one. `generated` are the response tokens
    that each trajectory would have that ran here all the time.

    Args:
        view: creates the view of a trajectory, from its state and the tokens that it has probably generated here.
    """

    __slots__ = ("_view", "generated", "seen", "states")

    def __init__(self, view: Callable[[TrajectoryState, int], TrajectoryView]) -> None:
        self.states: dict[str, TrajectoryState] = {}
        self.generated = 0.0
        self.seen: dict[str, TrajectoryView] | None = None
        self._view = view

    def add(self, states: Sequence[TrajectoryState]) -> None:
        """Add trajectories that were routed here."""
        assigned = self.states
        for state in states:
            assigned[state.id] = state
            state.since = self.generated
        if self.seen is not None:
            self.seen.update([(state.id, self._view(state, 0)) for state in states])

    def advanced(self, tokens: float) -> None:
        """Each trajectory has probably generated so many tokens more."""
        if tokens > 0:
            self.generated += tokens
            self.seen = None

    def outdated(self) -> None:
        """What views say has changed: they are created again."""
        self.seen = None

    def clear(self) -> None:
        """Remove all trajectories."""
        self.states, self.seen, self.generated = {}, None, 0.0

    def _views(self) -> dict[str, TrajectoryView]:
        if self.seen is None:
            generated = self.generated
            self.seen = {name: self._view(state, int(generated - state.since)) for name, state in self.states.items()}
        return self.seen

    def __getitem__(self, trajectory: str) -> TrajectoryView:
        return self._views()[trajectory]

    def __iter__(self) -> Iterator[str]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __contains__(self, trajectory: object) -> bool:
        return trajectory in self.states

    def values(self) -> ValuesView[TrajectoryView]:
        """The views, in order of routing."""
        return self._views().values()

    def items(self) -> ItemsView[str, TrajectoryView]:
        """Names and views, in order of routing."""
        return self._views().items()
