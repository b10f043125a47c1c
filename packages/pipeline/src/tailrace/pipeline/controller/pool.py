"""The pool: owns the trajectories that wait for a replica (StaleFlow's trajectory server, section 5.1).

A trajectory with a version waits in the queue of that version: the version of its tokens or, if versions may be mixed, of its
group. A group that has not started waits as a whole.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tailrace.contracts import Pool, TrajectoryView, Unstarted


@dataclass(slots=True)
class Waiting:
    """The trajectories and groups in the pool.

    Args:
        queues: trajectories by version, in order of arrival.
        level_of: the version in whose queue each trajectory is.
        unstarted: groups that have not started.
    """

    queues: dict[int, dict[str, TrajectoryView]] = field(default_factory=dict)
    level_of: dict[str, int] = field(default_factory=dict)
    unstarted: Unstarted = field(default_factory=Unstarted)

    def __len__(self) -> int:
        return len(self.level_of) + len(self.unstarted)

    def __contains__(self, trajectory: object) -> bool:
        """Whether a trajectory that has a version waits."""
        return trajectory in self.level_of

    def levels(self) -> Pool:
        """All queues, oldest version first, groups that have not started last."""
        levels: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {
            version: self.queues[version] for version in sorted(self.queues)
        }
        if self.unstarted.groups:
            levels[None] = self.unstarted
        return levels

    def add(self, version: int, view: TrajectoryView) -> None:
        """Add a trajectory to the queue of a version."""
        self.queues.setdefault(version, {})[view.trajectory] = view
        self.level_of[view.trajectory] = version

    def remove(self, trajectory: str) -> TrajectoryView | None:
        """Remove a trajectory. Returns None if it was not here, or waits with its group."""
        version = self.level_of.pop(trajectory, None)
        if version is None:
            return None
        queue = self.queues[version]
        view = queue.pop(trajectory)
        if not queue:
            del self.queues[version]
        return view

    def measure(self, trajectory: str, prompt: int, response: int) -> None:
        """Set the tokens of a trajectory's prompt and response, if it waits here by itself."""
        version = self.level_of.get(trajectory)
        if version is not None:
            queue = self.queues[version]
            queue[trajectory] = dataclasses.replace(queue[trajectory], tokens=prompt + response, prompt_tokens=prompt)

    def predict(self, trajectory: str, tokens: float | None, left: float | None) -> None:
        """Set the response tokens predicted for a trajectory, in all and from now on, if it waits here by itself."""
        version = self.level_of.get(trajectory)
        if version is not None:
            queue = self.queues[version]
            queue[trajectory] = dataclasses.replace(queue[trajectory], predicted=tokens, left=left)
