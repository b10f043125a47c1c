"""The pool: owns the trajectories that wait for a replica (StaleFlow's trajectory server, section 5.1).

A trajectory with a version waits in the queue of that version: the version of its tokens or, if versions may be mixed, of its
group. A group that has not started waits as a whole.

One decision looks at the first part of a large pool only (`first_of`), and at the replicas that may be given it (`in_turn`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from tailrace.contracts import Pool, ReplicaView, TrajectoryView, Unstarted


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


def first_of(pool: Pool, most: int) -> Pool:
    """The first trajectories of a pool; groups that have not started are not split.

    Args:
        pool: the pool.
        most: number of trajectories; the last group may exceed it.
    """
    first: dict[int | None, dict[str, TrajectoryView] | Unstarted] = {}
    left = most
    for version, level in pool.items():
        if left <= 0:
            break
        if isinstance(level, Unstarted):
            some = Unstarted()
            for group, members in level.groups.items():
                some.add(group, members, level.predicted.get(group), level.left.get(group), level.tokens.get(group, 0))
                left -= len(members)
                if left <= 0:
                    break
            first[version] = some
        else:
            first[version] = dict(islice(level.items(), left))
            left -= len(level)
    return first


def in_turn(views: Sequence[ReplicaView], most: int, turn: int) -> tuple[int, int]:
    """Leave only as many replicas open for new groups as are needed for a part of the pool.

    Each of them then gets as much as it would from the whole pool, and all get their turn.

    Args:
        views: the replicas' views; they are changed, so they must not be in use yet.
        most: trajectories for which there must be room.
        turn: index of the replica whose turn is first.

    Returns:
        Number of trajectories of the pool to look at (the open replicas' room, but at least `most`), and number of replicas
        that had their turn.
    """
    left, passed = most, 0
    while passed < len(views) and left > 0:
        view = views[(turn + passed) % len(views)]
        left -= room(view) if view.open else 0
        passed += 1
    for waits in range(passed, len(views)):
        object.__setattr__(views[(turn + waits) % len(views)], "open", False)
    return max(most, most - left), passed


def room(view: ReplicaView) -> int:
    """Number of trajectories that a replica may still be given."""
    serves = view.version is not None and not view.pulling
    return max(0, view.capacity - view.held) if serves else 0
