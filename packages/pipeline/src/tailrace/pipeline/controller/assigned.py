"""The trajectories that were routed to a replica and have not come back, and their views for policies."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView

from tailrace.contracts import TrajectoryView
from tailrace.pipeline.controller.states import TrajectoryState


class Assigned(Mapping[str, TrajectoryView]):
    """Trajectories on one replica, in order of routing.

    Views are created when a policy first reads one and are then kept; most policies read none.
    `states` holds the trajectories, `seen` the views of all once a policy has read one.

    Args:
        view: creates the view of a trajectory.
    """

    __slots__ = ("_view", "seen", "states")

    def __init__(self, view: Callable[[TrajectoryState], TrajectoryView]) -> None:
        self.states: dict[str, TrajectoryState] = {}
        self.seen: dict[str, TrajectoryView] | None = None
        self._view = view

    def add(self, states: Sequence[TrajectoryState]) -> None:
        """Add trajectories that were routed here."""
        assigned = self.states
        for state in states:
            assigned[state.id] = state
        if self.seen is not None:
            self.seen.update([(state.id, self._view(state)) for state in states])

    def outdated(self) -> None:
        """What views say has changed: they are created again."""
        self.seen = None

    def clear(self) -> None:
        """Remove all trajectories."""
        self.states, self.seen = {}, None

    def _views(self) -> dict[str, TrajectoryView]:
        if self.seen is None:
            self.seen = {name: self._view(state) for name, state in self.states.items()}
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
