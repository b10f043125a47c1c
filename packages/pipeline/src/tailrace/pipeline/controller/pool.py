"""The pool: one owner for what waits for a replica (StaleFlow's trajectory server, section 5.1).

What has a version waits by itself, in the queue of the version that it is bound to: that of its tokens where a trajectory has
one version, that of its group where versions may be mixed. What has none waits as a group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts import Pool, TrajectoryView, Unstarted


@dataclass(slots=True)
class Waiting:
    """Everything in the pool.

    Args:
        queues: by version, in order of arrival.
        level_of: the version of whose queue a trajectory is in.
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
        """All queues, the oldest version first, what has none last."""
        levels: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {
            version: self.queues[version] for version in sorted(self.queues)
        }
        if self.unstarted.groups:
            levels[None] = self.unstarted
        return levels

    def add(self, version: int, view: TrajectoryView) -> None:
        """A trajectory waits for a replica of a version."""
        self.queues.setdefault(version, {})[view.trajectory] = view
        self.level_of[view.trajectory] = version

    def remove(self, trajectory: str) -> TrajectoryView | None:
        """A trajectory does not wait any more; None if it did not, or waits with its group."""
        version = self.level_of.pop(trajectory, None)
        if version is None:
            return None
        queue = self.queues[version]
        view = queue.pop(trajectory)
        if not queue:
            del self.queues[version]
        return view
